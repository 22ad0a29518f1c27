// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/cell_graph.h>
#include <meshgrad/train/convert/sources/moving_positions.h>
#include <meshgrad/train/convert/sources/vtk_cells.h>
#include <meshgrad/train/convert/sources/vtk_pieces.h>
#include <meshgrad/train/convert/sources/vtk_trajectory.h>
#include <meshgrad/train/data/value_offset.h>

namespace meshgrad {
namespace {

using Points = std::span<const int64_t>;

bool in_a_plane(const VtkArray& points) {
  return std::visit(
      [](const auto& values) {
        for (size_t i = 2; i < values.size(); i += 3)
          if (static_cast<double>(values[i]) != static_cast<double>(values[2])) return false;
        return true;
      },
      points.values);
}

// Corners in the order of a quad or a hexahedron, some of them twice.
std::vector<int32_t> as_hexahedron(VtkCell type, Points points) {
  const std::vector<int32_t> p(points.begin(), points.end());
  switch (type) {
    case VtkCell::tetrahedron:
    case VtkCell::lagrange_tetrahedron:
      return {p[0], p[1], p[2], p[2], p[3], p[3], p[3], p[3]};
    case VtkCell::pyramid:
    case VtkCell::lagrange_pyramid:
      return {p[0], p[1], p[2], p[3], p[4], p[4], p[4], p[4]};
    case VtkCell::wedge:
    case VtkCell::lagrange_wedge:
      return {p[0], p[1], p[2], p[2], p[3], p[4], p[5], p[5]};
    case VtkCell::voxel:
      return {p[0], p[1], p[3], p[2], p[4], p[5], p[7], p[6]};
    default:
      return p;
  }
}

std::vector<int32_t> as_polygon(VtkCell type, Points p, size_t width) {
  std::vector<int32_t> corners(p.begin(), p.end());
  if (type == VtkCell::pixel) std::swap(corners[2], corners[3]);
  corners.resize(width, corners.back());
  return corners;
}

void append_cell(std::vector<int32_t>& cells, const std::vector<int32_t>& corners) {
  cells.insert(cells.end(), corners.begin(), corners.end());
}

std::vector<double> as_doubles(const VtkArray& array) {
  return std::visit([](const auto& values) { return std::vector<double>(values.begin(), values.end()); },
                    array.values);
}

bool fits_int32(const std::vector<int64_t>& values) {
  return std::all_of(values.begin(), values.end(), [](int64_t value) {
    return value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max();
  });
}

// Columns first .. of each row of `width`.
template <class T>
std::vector<T> first_columns(const std::vector<T>& values, size_t width, size_t columns) {
  std::vector<T> kept;
  kept.reserve(values.size() / width * columns);
  for (size_t row = 0; row + width <= values.size(); row += width)
    kept.insert(kept.end(), values.begin() + static_cast<std::ptrdiff_t>(row),
                values.begin() + static_cast<std::ptrdiff_t>(row + columns));
  return kept;
}

// Whether the third of three components is 0 everywhere, or nan everywhere, as what a plane has not.
bool third_is_empty(const VtkArray& array) {
  if (array.components != 3) return false;
  return std::visit(
      [](const auto& values) {
        bool zero = true, nan = true;
        for (size_t i = 2; i < values.size() && (zero || nan); i += 3) {
          zero = zero && values[i] == 0;
          nan = nan && std::isnan(static_cast<double>(values[i]));
        }
        return zero || nan;
      },
      array.values);
}

void drop_third(VtkArray& array) {
  std::visit([](auto& values) { values = first_columns(values, 3, 2); }, array.values);
  array.components = 2;
}

// The last row.
VtkArray last_row(const VtkArray& array) {
  return rows_of_array(array, {static_cast<int64_t>(array.size()) / array.components - 1});
}

std::vector<int64_t> type_numbers(const VtkArray& array, const std::string& name) {
  const auto wrong = [&](const std::string& got) {
    return data_error(fmt::format("{}: array {}", name, array.name),
                      "node types: one integer from 0 to 65535 for each row", got,
                      "name another array: --node-types NAME");
  };
  if (array.components != 1) throw wrong(fmt::format("{} components", array.components));
  std::vector<int64_t> types;
  for (const double value : as_doubles(array)) {
    if (!(value >= 0 && value <= 65535) || value != static_cast<double>(static_cast<int64_t>(value)))
      throw wrong(fmt::format("{}", value));
    types.push_back(static_cast<int64_t>(value));
  }
  return types;
}

const VtkArray* find_array(const std::vector<VtkArray>& arrays, std::string_view name) {
  const auto found =
      std::find_if(arrays.begin(), arrays.end(), [&](const VtkArray& array) { return array.name == name; });
  return found == arrays.end() ? nullptr : &*found;
}

constexpr std::string_view kDefaultTypes = "node_type";
constexpr std::array<std::string_view, 4> kTimeArrays{"TimeValue", "TIME", "Time", "time"};

/// Arrays of the whole grid that say something of its time, or of VTK.
bool is_about_time(const VtkArray& array) {
  return std::ranges::find(kTimeArrays, array.name) != kTimeArrays.end() || array.name == "CYCLE" ||
         array.name.starts_with("vtk") || array.size() == 0;
}

}  // namespace

VtkTrajectory::VtkTrajectory(const VtkGrid& grid, std::string name, std::optional<std::string> node_types,
                             WarningCallback warn)
    : wanted_types_(std::move(node_types)), warn_(std::move(warn)) {
  trajectory_.name = std::move(name);
  trajectory_.nodes = grid.point_count();
  choose_cells(grid);
  trajectory_.dim = cell_dim_ < 3 && in_a_plane(grid.points) ? 2 : 3;
  if (cell_dim_ == 1) build_lines(grid);
  if (cell_dim_ == 2) build_surface(grid);
  if (cell_dim_ == 3) build_solid(grid);
  mesh_ = {grid.points, grid.connectivity, grid.ends, grid.types, grid.faces, grid.face_ends, {}, {}, {}, {}};
  choose_arrays(grid);
  read_node_types(grid);
}

void VtkTrajectory::choose_cells(const VtkGrid& grid) {
  for (const uint8_t type : grid.types) cell_dim_ = std::max(cell_dim_, linear_shape(type).dim);
  if (cell_dim_ == 0) {
    throw data_error(trajectory_.name, "a mesh with lines, surfaces or solids",
                     grid.types.empty() ? "no cells" : "only points", "save the cells, too");
  }
  for (int64_t cell = 0; cell < grid.cell_count(); ++cell)
    if (linear_shape(grid.types[static_cast<size_t>(cell)]).dim == cell_dim_) cells_.push_back(cell);
}

void VtkTrajectory::build_lines(const VtkGrid& grid) {
  std::vector<int32_t> senders, receivers;
  for (const int64_t cell : cells_) {
    const Points points = points_of(grid, cell);
    for (size_t i = 1; i < points.size(); ++i) {
      senders.push_back(static_cast<int32_t>(points[i - 1]));
      receivers.push_back(static_cast<int32_t>(points[i]));
    }
  }
  trajectory_.edges = std::move(senders);
  trajectory_.edges.insert(trajectory_.edges.end(), receivers.begin(), receivers.end());
}

void VtkTrajectory::build_surface(const VtkGrid& grid) {
  size_t width = 3;
  for (const int64_t cell : cells_) width = std::max(width, points_of(grid, cell).size());
  const bool polygons = width > 4;
  if (!polygons) {
    trajectory_.nodes_per_cell = static_cast<int>(width);
    trajectory_.cell_kind = width == 3 ? CellKind::triangle : CellKind::quad;
  }
  for (const int64_t cell : cells_) {
    const Points points = points_of(grid, cell);
    if (points.size() < 3) {
      throw data_error(trajectory_.name, "polygons of at least 3 points",
                       fmt::format("{} in cell {}", points.size(), cell), "leave this cell out");
    }
    const auto type = static_cast<VtkCell>(grid.types[static_cast<size_t>(cell)]);
    const std::vector<int32_t> corners = as_polygon(type, points, polygons ? points.size() : width);
    if (polygons) {
      add_faces_of(corners, CellKind::none, trajectory_.faced);
    } else {
      append_cell(trajectory_.cells, corners);
    }
  }
}

void VtkTrajectory::build_solid(const VtkGrid& grid) {
  if (!grid.face_ends.empty()) {
    build_polyhedra(grid);
    return;
  }
  const bool tetrahedra = std::all_of(cells_.begin(), cells_.end(), [&](int64_t cell) {
    return linear_shape(grid.types[static_cast<size_t>(cell)]).points == 4;
  });
  trajectory_.nodes_per_cell = tetrahedra ? 4 : 8;
  trajectory_.cell_kind = tetrahedra ? CellKind::tetrahedron : CellKind::hexahedron;
  for (const int64_t cell : cells_) {
    const Points points = points_of(grid, cell);
    append_cell(trajectory_.cells,
                tetrahedra
                    ? std::vector<int32_t>(points.begin(), points.end())
                    : as_hexahedron(static_cast<VtkCell>(grid.types[static_cast<size_t>(cell)]), points));
  }
}

void VtkTrajectory::build_polyhedra(const VtkGrid& grid) {
  FacedCells& faced = trajectory_.faced;
  for (const int64_t cell : cells_) {
    const auto type = static_cast<VtkCell>(grid.types[static_cast<size_t>(cell)]);
    if (type != VtkCell::polyhedron) {
      add_faces_of(as_hexahedron(type, points_of(grid, cell)), CellKind::hexahedron, faced);
      continue;
    }
    for_each_vtk_face(faces_of(grid, cell), [&](Points face) {
      append_cell(faced.nodes, std::vector<int32_t>(face.begin(), face.end()));
      faced.face_ends.push_back(static_cast<int64_t>(faced.nodes.size()));
    });
    faced.cell_ends.push_back(static_cast<int64_t>(faced.face_ends.size()));
  }
}

// The rows of an array that belong to the mesh.
VtkArray VtkTrajectory::rows_of(const VtkArray& array, FieldOn on) const {
  return on == FieldOn::cell ? rows_of_array(array, cells_) : array;
}

/// Conditions of the whole grid.
void VtkTrajectory::choose_graph_arrays(const VtkGrid& grid, std::vector<std::string>& left_out) {
  constexpr size_t kMost = 64;
  for (const VtkArray& array : grid.field_arrays) {
    if (is_about_time(array)) continue;
    names_.insert(array.name);
    const bool integers = std::holds_alternative<std::vector<int64_t>>(array.values);
    const bool known =
        std::ranges::any_of(sources_, [&](const Source& source) { return source.values.name == array.name; });
    if (integers || known || array.name.empty() || array.size() > kMost) {
      left_out.push_back(array.name + " of the whole grid");
    } else {
      sources_.push_back({FieldOn::graph, {array.name, static_cast<int>(array.size()), array.values}});
    }
  }
}

void VtkTrajectory::choose_arrays(const VtkGrid& grid) {
  const std::string types = wanted_types_.value_or("");
  std::vector<std::string> left_out = grid.left_out;
  const bool a_row_an_edge = trajectory_.edges.size() == cells_.size() * 2;
  for (const FieldOn on : {FieldOn::node, FieldOn::cell}) {
    const bool of_points = on == FieldOn::node;
    for (const VtkArray& array : of_points ? grid.point_arrays : grid.cell_arrays) {
      names_.insert(array.name);
      if (array.name == kDefaultTypes && wanted_types_ != "" && types != kDefaultTypes && warn_) {
        warn_(fmt::format("[{}] the array node_type is not used, since --node-types names another one",
                          trajectory_.name));
      }
      if ((!types.empty() && array.name == types) || array.name == kDefaultTypes ||
          array.name.starts_with("vtk"))
        continue;
      const bool known = std::any_of(sources_.begin(), sources_.end(),
                                     [&](const Source& source) { return source.values.name == array.name; });
      if (array.name.empty() || known || (!of_points && cell_dim_ == 1 && !a_row_an_edge)) {
        left_out.push_back(array.name.empty() ? "one without a name"
                                              : array.name + (of_points ? " of points" : " of cells"));
      } else {
        sources_.push_back({on, rows_of(array, on)});
      }
    }
  }
  choose_graph_arrays(grid, left_out);
  if (left_out.empty() || !warn_) return;
  warn_(fmt::format(
      "[{}] arrays left out (no numbers, more than 64 or integers of the whole grid, or the name of "
      "another one): {}",
      trajectory_.name, fmt::join(left_out, ", ")));
}

void VtkTrajectory::read_node_types(const VtkGrid& grid) {
  if (!wanted_types_) return;
  const std::string& wanted = *wanted_types_;
  const std::string name = wanted.empty() ? std::string(kDefaultTypes) : wanted;
  if (const VtkArray* array = find_array(grid.point_arrays, name)) {
    if (!wanted.empty()) types_ = *array;
    for (const int64_t type : type_numbers(*array, trajectory_.name))
      trajectory_.node_type.push_back(static_cast<int32_t>(type));
    return;
  }
  const VtkArray* array = find_array(grid.cell_arrays, name);
  if (array == nullptr) {
    if (wanted.empty()) return;
    std::vector<std::string> names;
    for (const VtkArray& known : grid.point_arrays) names.push_back(known.name);
    for (const VtkArray& known : grid.cell_arrays) names.push_back(known.name);
    throw data_error(trajectory_.name, fmt::format("the array {}, as --node-types says", wanted),
                     names.empty() ? "no arrays" : fmt::format("{}", fmt::join(names, ", ")),
                     "name one of its arrays");
  }
  const std::vector<int64_t> tags = type_numbers(*array, trajectory_.name);
  for (const int64_t cell : cells_)
    trajectory_.cell_type.push_back(static_cast<int32_t>(tags[static_cast<size_t>(cell)]));
  const bool boundary = cells_.size() < tags.size();  // cells of lower dimension say it
  trajectory_.node_type.assign(static_cast<size_t>(trajectory_.nodes), 0);
  for (size_t cell = 0; cell < tags.size(); ++cell) {
    if (boundary && linear_shape(grid.types[cell]).dim == cell_dim_) continue;
    for (const int64_t point : points_of(grid, static_cast<int64_t>(cell))) {
      int32_t& type = trajectory_.node_type[static_cast<size_t>(point)];
      type = std::max(type, static_cast<int32_t>(tags[cell]));
    }
  }
}

bool VtkTrajectory::take_cell_order(VtkGrid& grid) const {
  const auto cells = find_cells(mesh_, grid);
  if (!cells) return false;
  if (!std::ranges::is_sorted(*cells))
    for (VtkArray& array : grid.cell_arrays) array = rows_of_array(array, *cells);
  return true;
}

std::optional<size_t> VtkTrajectory::first_permuted_node(const VtkGrid& grid) const {
  if (!moving_.empty()) return std::nullopt;
  std::vector<double> first = as_doubles(mesh_.points), now = as_doubles(grid.points);
  if (first == now || first.size() != now.size()) return std::nullopt;
  const auto differs = static_cast<size_t>(std::ranges::mismatch(first, now).in1 - first.begin()) / 3;
  const auto sort_points = [](std::vector<double>& values) {
    std::vector<std::array<double, 3>> points(values.size() / 3);
    for (size_t i = 0; i < points.size(); ++i)
      points[i] = {values[3 * i], values[3 * i + 1], values[3 * i + 2]};
    std::ranges::sort(points);
    return points;
  };
  return sort_points(first) == sort_points(now) ? std::optional(differs) : std::nullopt;
}

void VtkTrajectory::check_types(const VtkGrid& grid, const std::string& name) const {
  if (!types_) return;
  const VtkArray* array = find_array(grid.point_arrays, types_->name);
  if (array == nullptr) return;
  const std::vector<double> first = as_doubles(*types_), now = as_doubles(*array);
  const auto other = std::ranges::mismatch(now, first).in1;
  if (other == now.end()) return;
  throw data_error(fmt::format("{}: array {}", name, types_->name),
                   fmt::format("the node types of {}, which hold for all frames", trajectory_.name),
                   fmt::format("{} at node {}", *other, other - now.begin()),
                   "name an array that does not change: --node-types NAME");
}

void VtkTrajectory::append(const VtkGrid& grid, const std::string& name) {
  keep_points(grid.points);
  check_types(grid, name);
  ++trajectory_.frames;
  for (const auto* arrays : {&grid.point_arrays, &grid.cell_arrays, &grid.field_arrays}) {
    for (const VtkArray& array : *arrays) {
      if ((arrays == &grid.field_arrays && is_about_time(array)) || !names_.insert(array.name).second ||
          !warn_)
        continue;
      warn_(fmt::format("[{}] array {} left out, since the first frame of {} has none", name, array.name,
                        trajectory_.name));
    }
  }
  for (Source& source : sources_) {
    const VtkArray* array = find_array(source.on == FieldOn::node   ? grid.point_arrays
                                       : source.on == FieldOn::cell ? grid.cell_arrays
                                                                    : grid.field_arrays,
                                       source.values.name);
    const VtkArray last = source.on == FieldOn::graph ? last_row(source.values) : VtkArray{};
    if (array == nullptr && source.on == FieldOn::graph && !source.changes) {
      keep_condition(source, name);
      array = &last;
    }
    const bool other_size =
        array != nullptr &&
        (source.on == FieldOn::graph ? static_cast<int64_t>(array->size()) != source.values.components
                                     : array->components != source.values.components);
    if (array == nullptr || other_size || array->values.index() != source.values.values.index()) {
      throw data_error(fmt::format("{}: array {}", name, source.values.name),
                       describe_array(source.values) + ", as in the first frame",
                       array == nullptr ? "none" : describe_array(*array),
                       "save the same arrays in every frame");
    }
    if (source.on == FieldOn::graph && array->values != last.values) {
      source.changes = true;
      if (!source.without.empty()) {
        throw data_error(fmt::format("{}: array {} of the whole grid", name, source.values.name),
                         fmt::format("the value of the first frame, as {} has none", source.without),
                         fmt::format("{}", fmt::join(as_doubles(*array), " ")), "save it in every frame");
      }
    }
    const VtkArray more = rows_of(*array, source.on);
    std::visit(
        [&](auto& values) {
          const auto& added = std::get<std::remove_reference_t<decltype(values)>>(more.values);
          values.insert(values.end(), added.begin(), added.end());
        },
        source.values.values);
  }
}

/// A condition that a program writes once holds for the frames after it.
void VtkTrajectory::keep_condition(Source& source, const std::string& name) {
  if (!source.without.empty()) return;
  source.without = name;
  if (!warn_) return;
  warn_(fmt::format("[{}] array {} of the whole grid is missing: that of the first frame, {}, was taken",
                    name, source.values.name, trajectory_.name));
}

/// Points of all frames, from the first frame that moves on.
void VtkTrajectory::keep_points(const VtkArray& points) {
  const std::vector<double> first = as_doubles(mesh_.points), now = as_doubles(points);
  if (moving_.empty()) {
    if (now == first) return;
    for (int64_t frame = 0; frame < trajectory_.frames; ++frame)
      moving_.insert(moving_.end(), first.begin(), first.end());
  }
  moving_.insert(moving_.end(), now.begin(), now.end());
}

RawTrajectory VtkTrajectory::finish(bool series) {
  RawTrajectory& t = trajectory_;
  if (t.dim == 2) drop_third(mesh_.points);
  t.wide_positions = as_doubles(mesh_.points);
  t.positions.assign(t.wide_positions.begin(), t.wide_positions.end());
  const bool f64 = std::holds_alternative<std::vector<double>>(mesh_.points.values);
  if (!f64 || !are_coarse_positions(t.wide_positions, t.dim)) t.wide_positions.clear();
  for (Source& source : sources_) t.fields.push_back(field_of(source, series));
  if (!moving_.empty()) {
    VtkArray positions{std::string(kWorldPosition), 3, std::move(moving_)};
    const bool flat = t.dim == 2 && third_is_empty(positions);
    auto& wide = std::get<std::vector<double>>(positions.values);
    std::vector<float> all(wide.begin(), wide.end());
    add_world_position(t, positions.components, std::move(all),
                       f64 ? std::move(wide) : std::vector<double>());
    t.fields.back().third_is_empty = flat;
  }
  std::sort(t.fields.begin(), t.fields.end(),
            [](const RawField& a, const RawField& b) { return a.name < b.name; });
  return std::move(t);
}

RawField VtkTrajectory::field_of(Source& source, bool series) const {
  RawField field;
  field.third_is_empty = trajectory_.dim == 2 && source.on != FieldOn::graph && third_is_empty(source.values);
  field.name = source.values.name;
  field.components = source.values.components;
  field.dynamic = series || trajectory_.frames > 1;
  field.on = source.on == FieldOn::cell && cell_dim_ == 1 ? FieldOn::edge : source.on;
  field.repeats = source.on == FieldOn::graph && field.dynamic && !source.changes;
  if (auto* floats = std::get_if<std::vector<float>>(&source.values.values)) {
    field.values = std::move(*floats);
  } else if (auto* doubles = std::get_if<std::vector<double>>(&source.values.values)) {
    field.values = std::vector<float>(doubles->begin(), doubles->end());
    if (is_coarse_in_f32(*doubles, field.components)) field.wide = std::move(*doubles);
  } else {
    auto& integers = std::get<std::vector<int64_t>>(source.values.values);
    if (fits_int32(integers)) {
      field.values = std::vector<int32_t>(integers.begin(), integers.end());
    } else {
      field.values = std::move(integers);
    }
  }
  return field;
}

std::optional<double> time_of(const VtkGrid& grid) {
  for (const std::string_view name : kTimeArrays) {
    const VtkArray* array = find_array(grid.field_arrays, name);
    if (array != nullptr && array->size() == 1) return as_doubles(*array)[0];
  }
  return std::nullopt;
}

}  // namespace meshgrad
