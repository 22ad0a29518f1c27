// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/sources/array_trajectory.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/graph_arrays.h>
#include <meshgrad/train/convert/sources/moving_positions.h>
#include <meshgrad/train/convert/sources/npy_axes.h>
#include <meshgrad/train/data/statistics.h>
#include <meshgrad/train/data/value_offset.h>

namespace meshgrad {
namespace {

// [rows, columns] of an array whose leading ones are dropped.
std::optional<std::pair<int64_t, int64_t>> as_matrix(const NpyArray& array) {
  std::vector<int64_t> shape = array.shape;
  while (shape.size() > 2 && shape.front() == 1) shape.erase(shape.begin());
  if (shape.size() == 1) return std::pair{shape[0], int64_t{1}};
  if (shape.size() != 2) return std::nullopt;
  return std::pair{shape[0], shape[1]};
}

class ArrayReader {
 public:
  ArrayReader(std::vector<NamedArray> arrays, const std::string& name, const ArrayOptions& options,
              const WarningCallback& warn)
      : entries_(std::move(arrays)),
        masks_(node_masks(entries_)),
        options_(options),
        name_(name),
        warn_(warn) {}

  RawTrajectory read() {
    RawTrajectory t;
    t.name = name_;
    const bool graph =
        find("mesh_pos") == nullptr && find("mesh_edge") != nullptr && find("cells") == nullptr;
    if (!graph) read_positions(t);
    for (NamedArray& entry : entries_) keep_one_of_repeated(entry, t.nodes);
    if (const NamedArray* cells = find("cells")) {
      note_use(*cells, t);
      t.nodes_per_cell =
          static_cast<int>(std::min<int64_t>(matrix(*cells, "[cells, nodes of a cell]").second, 65535));
      t.cells = to_indices(cells->array, where(*cells));
      count_from_zero(t.cells, options_.first_node, t.nodes, where(*cells));
    }
    // Beside cells, only edge fields need to know which edges are meant.
    const NamedArray* edges = find("mesh_edge");
    if (edges != nullptr && !t.cells.empty() && !has_edge_fields()) {
      warn(fmt::format("[{}] mesh_edge was not used: the sides of the cells are the edges", name_));
      edges = nullptr;
    }
    if (edges != nullptr) {
      note_use(*edges, t);
      t.edges = edges_of_array(*edges, where(*edges));
    }
    if (graph) t.nodes = nodes_of_graph(entries_, std::ssize(t.edges) / 2, name_);
    if (edges != nullptr) count_from_zero(t.edges, options_.first_node, t.nodes, where(*edges));
    read_types(t);
    for (const NamedArray& entry : entries_) {
      if (!entry.numbers) {
        left_out_.push_back(entry.name + " (no numbers)");
      } else if (are_times(entry, t.nodes)) {
        continue;
      } else if (entry.name == "dt" && entry.array.size() == 1) {
        note_use(entry, t);
        const auto dt = in_seconds(entry);
        if (!dt) throw data_error(where(entry), "a unit of time", entry.unit, "save it in seconds");
        t.dt = checked_dt(dt->front(), where(entry));
      } else if (masks_.contains(entry.name)) {
        t.read_as[entry.name] = entry.source;
      } else if (!is_mesh_array(entry.name)) {
        read_field(entry, t);
      } else if (entry.name == "facets" && !t.read_as.contains("facets")) {
        left_out_.push_back("facets (without node types)");
      }
    }
    std::ranges::move(node_splits(entries_, t.nodes, name_), std::back_inserter(t.fields));
    if (!moving_.empty()) {
      add_world_position(t, t.dim, std::move(moving_), std::move(wide_moving_));
      t.fields.back().repeats = rests_;
    }
    read_times(t);
    if (!graph) check_order_of_axes(t);
    if (!left_out_.empty()) {
      warn(fmt::format("[{}] left out, since they are no fields on {} nodes: {}", name_, t.nodes,
                       fmt::join(left_out_, ", ")));
    }
    // Arrays come in the order of the zip; sorted names make files of one data set agree.
    std::sort(t.fields.begin(), t.fields.end(),
              [](const RawField& a, const RawField& b) { return a.name < b.name; });
    return t;
  }

 private:
  void warn(const std::string& text) const {
    if (warn_) warn_(text);
  }

  static void note_use(const NamedArray& entry, RawTrajectory& t) {
    t.read_as[name_in_map(entry.name)] = entry.source;
  }

  bool has_edge_fields() const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [](const NamedArray& entry) { return named_field(entry.name).on == FieldOn::edge; });
  }

  const NamedArray* find(std::string_view name) const {
    const auto found =
        std::find_if(entries_.begin(), entries_.end(), [&](const NamedArray& e) { return e.name == name; });
    return found == entries_.end() ? nullptr : &*found;
  }

  std::string where(const NamedArray& entry) const { return fmt::format("{}: array {}", name_, entry.name); }

  DataError wrong_shape(const NamedArray& entry, std::string_view needed) const {
    return data_error(where(entry), needed, shape_text(entry.array), "save the array in that shape");
  }

  DataError over_frames(const NamedArray& entry, std::string_view needed) const {
    return data_error(
        where(entry), needed, shape_text(entry.array),
        "node types stay the same: save the first frame, and what changes as a field of another name");
  }

  /// What does not change over time, of an array of the mesh that has it for every frame.
  void keep_one_of_repeated(NamedArray& entry, int64_t nodes) const {
    if (!entry.numbers || !is_mesh_array(entry.name) || entry.name == "mesh_pos") return;
    const std::vector<int64_t>& shape = entry.array.shape;
    const bool list = entry.name == "node_type" && shape.size() == 2 && shape[1] == nodes;
    if ((shape.size() != 3 && !list) || shape[0] < 2 || shape[0] == nodes) return;
    const int64_t change = first_change(entry.array);
    if (change == 0) {
      keep_first(entry);
    } else if (entry.name != "node_type") {
      throw data_error(where(entry), "one mesh in all frames",
                       fmt::format("{}, where frame {} differs", shape_text(entry.array), change),
                       "save a trajectory for each mesh");
    }
  }

  std::vector<int32_t> nodes_of_facets(const NamedArray& entry, int64_t nodes) const {
    std::vector<int32_t> numbers = to_indices(entry.array, where(entry));
    // A boundary may lack node 0.
    if (options_.first_node) count_from_zero(numbers, options_.first_node, nodes, where(entry));
    return numbers;
  }

  // Types on nodes, or tags of cells or facets of which a node gets the largest around it. Of an array that
  // does not say which, its length does.
  void read_types(RawTrajectory& t) const {
    const NamedArray* types = nullptr;
    for (const std::string_view name : kTypeArrays) {
      const NamedArray* found = find(name);
      if (found != nullptr && types != nullptr) {
        throw data_error(where(*found), "one array of node types",
                         fmt::format("{} and {}", types->source, found->source),
                         "name one of them: --node-types ARRAY");
      }
      if (found != nullptr) types = found;
    }
    if (types == nullptr) return;
    note_use(*types, t);
    const std::vector<int64_t>& shape = types->array.shape;
    if (types->name == "node_type" && shape.size() > 1 && shape[0] > 1 && shape[1] == t.nodes)
      throw over_frames(*types, "[nodes]: types that do not change over time");
    const auto [rows, columns] = matrix(*types, "[nodes, 1]");
    const int64_t count = rows * columns;
    const int64_t listed = rows == 1 || columns == 1 ? count : 0;  // not [nodes, types], one-hot
    const NamedArray* facets = find("facets");
    const int64_t cells = t.rows(FieldOn::cell);
    const int64_t facet_count = facets == nullptr ? 0 : matrix(*facets, "[facets, nodes of a facet]").first;
    const bool unsaid = types->name == "node_type" && count != t.nodes;
    std::vector<int32_t> tags = to_indices(types->array, where(*types));
    if (types->name == "node_type" && count == t.nodes) {
      t.node_type = std::move(tags);
    } else if ((types->name == "facet:node_type" || unsaid) && listed == facet_count && listed > 0) {
      note_use(*facets, t);
      spread(tags, nodes_of_facets(*facets, t.nodes), where(*types), where(*facets), t);
    } else if ((types->name == "cell:node_type" || unsaid) && listed == cells && listed > 0) {
      spread(tags, t.cells, where(*types), "", t);
      t.cell_type = std::move(tags);
    } else {
      throw wrong_shape(
          *types, fmt::format("{} node types (or {} of cells, {} of facets)", t.nodes, cells, facet_count));
    }
  }

  // to_indices makes -1 of all negative numbers.
  static std::string in_row(int32_t number, size_t row) {
    return fmt::format("{} in row {}", number < 0 ? "a negative number" : fmt::format("{}", number), row);
  }

  // A node's type is the largest tag of what it belongs to, or 0. `owners` names the array of `nodes`; that
  // of cells is checked with the mesh.
  static void spread(const std::vector<int32_t>& tags, const std::vector<int32_t>& nodes,
                     const std::string& where, const std::string& owners, RawTrajectory& t) {
    t.node_type.assign(static_cast<size_t>(t.nodes), 0);
    const size_t width = nodes.size() / tags.size();
    for (size_t i = 0; i < tags.size(); ++i) {
      if (tags[i] < 0 || tags[i] >= kMaxNodeTypes) {
        throw data_error(where, fmt::format("node types from 0 to {}", kMaxNodeTypes - 1), in_row(tags[i], i),
                         "number the boundaries from 1 on, and the inside 0");
      }
      for (size_t k = i * width; k < (i + 1) * width; ++k) {
        if (nodes[k] >= 0 && nodes[k] < t.nodes) {
          int32_t& type = t.node_type[static_cast<size_t>(nodes[k])];
          type = std::max(type, tags[i]);
        } else if (!owners.empty()) {
          throw data_error(owners, fmt::format("nodes from 0 to {}", t.nodes - 1), in_row(nodes[k], i),
                           "save the numbers of the nodes as mesh_pos has them");
        }
      }
    }
  }

  // Times with one distance give dt.
  void read_times(RawTrajectory& t) {
    for (const NamedArray& entry : entries_) {
      if (entry.numbers && t.frames > 1 && t.frames == t.nodes && are_times(entry, 0)) {
        throw data_error(
            where(entry), "a length that tells times from a field on nodes",
            fmt::format("{}, of {} frames and {} nodes", shape_text(entry.array), t.frames, t.nodes),
            fmt::format("leave it out and give --dt; save a field as [1, {}, 1]", t.nodes));
      }
      if (!entry.numbers || !are_times(entry, t.nodes)) continue;
      const auto times = in_seconds(entry);
      if (!times || std::ssize(*times) != t.frames || t.frames < 2) {
        left_out_.push_back(entry.name + " " + (times ? shape_text(entry.array) : "in " + entry.unit));
        continue;
      }
      const auto dt = even_spacing(*times);
      t.times = *times;
      constexpr double kSame = 1e-3;
      if (!dt) continue;
      if (t.dt != 0 && std::abs(t.dt - *dt) > kSame * *dt) {
        throw data_error(where(entry), fmt::format("times {} apart, as dt says", t.dt),
                         fmt::format("{} apart", *dt), "correct one of the two arrays, or leave it out");
      } else if (t.dt == 0) {
        t.dt = *dt;
        t.read_as["times"] = entry.source;
      }
    }
  }

  // [nodes, frames] reads as a static field of as many components as there are frames.
  void check_order_of_axes(const RawTrajectory& t) const {
    constexpr int64_t kMostColumns = 16;
    int64_t frames = t.frames;
    for (const NamedArray& entry : entries_) {
      if (entry.numbers && frames == 1 && are_times(entry, t.nodes)) frames = entry.array.shape[0];
    }
    for (const NamedArray& entry : entries_) {
      const std::vector<int64_t>& shape = entry.array.shape;
      const FieldOn on = named_field(entry.name).on;
      const bool mesh = is_mesh_array(entry.name) || on == FieldOn::graph;
      if (mesh || shape.size() != 2 || shape[0] != t.rows(on) || shape[1] < 4) continue;
      const std::string of = fmt::format("{}s", name_of(on));
      if (shape[1] == frames) {
        throw data_error(where(entry), fmt::format("[frames, {}], frames first", of),
                         fmt::format("{} and {} frames", shape_text(entry.array), frames),
                         fmt::format("transpose it; save a static field as [1, {}, {}]", of, shape[1]));
      }
      if (shape[1] > kMostColumns && !options_.axes.contains(entry.source))
        throw two_shapes(entry, of + ",components", of + ",frames");
    }
  }

  /// Whether something else in the file has so many frames. A dt does not: it may stand beside one frame.
  bool frames_are_said(const NamedArray& of, const RawTrajectory& t) const {
    const int64_t frames = of.array.shape[0];
    return std::ranges::any_of(entries_, [&](const NamedArray& entry) {
      const std::vector<int64_t>& shape = entry.array.shape;
      if (!entry.numbers || &entry == &of) return false;
      if (shape.empty() || shape[0] != frames) return false;
      if (are_times(entry, t.nodes) || (entry.name == "mesh_pos" && shape.size() == 3)) return true;
      const bool many = shape.size() == 3 || (shape.size() == 2 && frames > 3);  // not components in space
      return many && !is_mesh_array(entry.name) && shape[1] != frames &&
             shape[1] == t.rows(named_field(entry.name).on);
    });
  }

  bool times_say(int64_t frames) const {
    return frames > 1 && std::ranges::any_of(entries_, [&](const NamedArray& entry) {
             return entry.numbers && are_times(entry, 0) && entry.array.shape[0] == frames;
           });
  }

  DataError two_shapes(const NamedArray& entry, std::string_view one, std::string_view other) const {
    return data_error(
        where(entry), "a shape that can be read in one way",
        fmt::format("{}, which is [{}] or [{}]", shape_text(entry.array), one, other),
        fmt::format("--axes {0}={1} or --axes {0}={2} says it; or save [frames, nodes, components]",
                    entry.source, one, other));
  }

  /// Throws where nothing tells whether an axis is frames or components.
  void check_one_reading(const NamedArray& entry, const RawTrajectory& t, int64_t rows, FieldOn on) const {
    const std::vector<int64_t>& shape = entry.array.shape;
    if (options_.axes.contains(entry.source) || rows < 2 || shape.size() < 2) return;
    const std::string of = fmt::format("{}s", name_of(on));
    const bool space = shape[0] == 2 || shape[0] == 3;
    if (shape.size() == 2 && shape[1] == rows) {
      if (shape[0] == rows) throw two_shapes(entry, "frames," + of, of + ",frames");
      if (space && !frames_are_said(entry, t)) throw two_shapes(entry, "frames," + of, "components," + of);
    }
    if (shape.size() != 3 || shape[1] != rows) return;
    if (shape[0] == rows && !frames_are_said(entry, t))
      throw two_shapes(entry, "frames," + of + ",components", of + ",frames,components");
    // A scalar, a vector or a tensor has these; times may say more frames than there are components.
    const bool columns = shape[2] <= 4 || shape[2] == 6 || shape[2] == 9;
    if (space && (!columns || times_say(shape[2])) && !frames_are_said(entry, t))
      throw two_shapes(entry, "frames," + of + ",components", "components," + of + ",frames");
  }

  std::pair<int64_t, int64_t> matrix(const NamedArray& entry, std::string_view needed) const {
    const auto shape = as_matrix(entry.array);
    if (!shape || shape->first < 1 || shape->second < 1) throw wrong_shape(entry, needed);
    return *shape;
  }

  void read_positions(RawTrajectory& t) {
    const NamedArray* positions = find("mesh_pos");
    if (positions == nullptr) {
      std::string names;
      for (const NamedArray& entry : entries_) names += (names.empty() ? "" : ", ") + entry.name;
      throw data_error(
          name_, "an array \"mesh_pos\"", names.empty() ? "no arrays" : names,
          "name the arrays: --map positions=ARRAY --map cells=ARRAY; or save them under DeepMind's names: "
          "mesh_pos, node_type, cells, and the fields");
    }
    std::vector<int64_t> shape = positions->array.shape;
    while (shape.size() > 2 && shape.front() == 1) shape.erase(shape.begin());
    const bool over_frames = shape.size() == 3;
    if (over_frames) shape.erase(shape.begin());
    if (shape.size() != 2 || (shape[1] != 2 && shape[1] != 3) || positions->array.size() == 0)
      throw wrong_shape(*positions, "[nodes, 2 or 3], or over frames [frames, nodes, 2 or 3]");
    note_use(*positions, t);
    t.nodes = shape[0];
    t.dim = static_cast<int>(shape[1]);
    t.positions = to_floats(positions->array);
    if (is_f64(positions->array)) t.wide_positions = to_doubles(positions->array);
    if (over_frames) {
      t.frames = positions->array.size() / (t.nodes * t.dim);
      rests_ = first_change(positions->array) == 0;
      moving_ = t.positions;
      wide_moving_ = t.wide_positions;
      t.positions.resize(static_cast<size_t>(t.nodes * t.dim));
      t.wide_positions.resize(t.wide_positions.empty() ? 0 : t.positions.size());
    }
    if (!are_coarse_positions(t.wide_positions, t.dim)) t.wide_positions.clear();
  }

  // "edge:length" is a field "length" on edges; a name without a prefix is one on nodes.
  static RawField named_field(const std::string& array) {
    RawField field;
    field.name = array;
    for (size_t i = 0; i < kFieldOnNames.size(); ++i) {
      const std::string prefix = std::string(kFieldOnNames[i]) + ":";
      if (!array.starts_with(prefix)) continue;
      field.name = array.substr(prefix.size());
      field.on = static_cast<FieldOn>(i);
    }
    return field;
  }

  struct FieldShape {
    int64_t frames, components;
    bool dynamic;
  };

  static bool is_f64(const NpyArray& array) { return array.kind == 'f' && array.bytes == 8; }

  static std::optional<FieldShape> shape_of_field(const std::vector<int64_t>& shape, int64_t rows) {
    if (shape.size() == 3 && shape[1] == rows) return FieldShape{shape[0], shape[2], shape[0] > 1};
    if (!shape.empty() && shape.size() <= 2 && shape[0] == rows) {
      return FieldShape{1, shape.size() == 2 ? shape[1] : 1, false};
    }
    if (shape.size() == 2 && shape[1] == rows) return FieldShape{shape[0], 1, shape[0] > 1};
    return std::nullopt;
  }

  // A graph has one row, which may be left out: a number, [components] or [frames, components].
  static std::optional<FieldShape> shape_of_graph_field(const std::vector<int64_t>& shape) {
    if (shape.empty()) return FieldShape{1, 1, false};
    if (shape.size() == 1) return FieldShape{1, shape[0], false};
    if (shape.size() == 2) return FieldShape{shape[0], shape[1], shape[0] > 1};
    return shape_of_field(shape, 1);
  }

  // Labels and identifiers of graphs are i32, also where NumPy made them i64, if they fit.
  static void narrow_labels(RawField& field) {
    const auto* wide = std::get_if<std::vector<int64_t>>(&field.values);
    if (wide == nullptr || !std::ranges::all_of(*wide, [](int64_t n) { return std::in_range<int32_t>(n); }))
      return;
    std::vector<int32_t> narrow;
    narrow.reserve(wide->size());
    for (const int64_t number : *wide) narrow.push_back(static_cast<int32_t>(number));
    field.values = std::move(narrow);
  }

  void read_field(const NamedArray& entry, RawTrajectory& t) {
    RawField field = named_field(entry.name);
    const bool graph = field.on == FieldOn::graph;
    if (field.on == FieldOn::node && field.name == entry.name && entry.array.shape.size() < 2 &&
        entry.array.size() != t.nodes) {
      left_out_.push_back(entry.name + " " + shape_text(entry.array));
      return;
    }
    const int64_t rows = t.rows(field.on);
    if (rows == 0 && (field.on != FieldOn::edge || find("mesh_edge") == nullptr)) {
      throw data_error(where(entry),
                       field.on == FieldOn::cell ? "the array cells beside it"
                                                 : "the array mesh_edge [2, edges] beside it",
                       "none", "save what its rows belong to, in the order of the rows");
    }
    if (!graph && t.dim > 0) check_one_reading(entry, t, rows, field.on);
    const std::string needed = graph ? "[components] or [frames, components]"
                                     : fmt::format("[frames, {}s, components]", name_of(field.on));
    const auto shape =
        graph ? shape_of_graph_field(entry.array.shape) : shape_of_field(entry.array.shape, rows);
    if (!shape && entry.array.shape.size() > 1 && entry.array.shape[0] == rows) {
      throw data_error(where(entry), fmt::format("{} with {} {}s", needed, rows, name_of(field.on)),
                       shape_text(entry.array), "move the axis of frames to the front");
    }
    if (!shape) throw wrong_shape(entry, fmt::format("{} with {} {}s", needed, rows, name_of(field.on)));
    if (shape->frames < 1 || shape->components < 1 || shape->components > 65535) {
      throw wrong_shape(entry, needed);
    }
    field.dynamic = shape->dynamic;
    if (field.dynamic && shape->frames != t.frames) {
      if (t.frames != 1)
        throw wrong_shape(entry, fmt::format("{} frames, as the arrays before it", t.frames));
      t.frames = shape->frames;
    }
    field.components = static_cast<int>(shape->components);
    field.repeats = field.dynamic && field.name != kWorldPosition && first_change(entry.array) == 0;
    field.values = to_field_values(entry.array, where(entry));
    if (t.dim == 0) narrow_labels(field);
    if (is_f64(entry.array)) {
      field.wide = to_doubles(entry.array);
      if (!is_coarse_in_f32(field.wide, field.components)) field.wide.clear();
    }
    t.fields.push_back(std::move(field));
    // "positions" alone would be the mesh's.
    const bool like_mesh = is_mesh_array(name_of_array(entry.name));
    t.read_as[(like_mesh ? "node:" : "") + entry.name] = entry.source;
  }

  std::vector<NamedArray> entries_;
  std::set<std::string> masks_;  // names of arrays that split the nodes
  const ArrayOptions& options_;
  std::string name_;
  const WarningCallback& warn_;
  std::vector<std::string> left_out_;  // names with shapes
  std::vector<float> moving_;          // positions over frames, if there are
  std::vector<double> wide_moving_;
  bool rests_ = false;  // they are the same in all frames
};

}  // namespace

RawTrajectory trajectory_of_arrays(std::vector<NamedArray> arrays, const std::string& name,
                                   const ArrayOptions& options, const WarningCallback& warn) {
  arrays = arrays_by_map(std::move(arrays), name, options.map, warn);
  for (const auto& [source, axes] : options.axes) {
    const auto array = std::ranges::find(arrays, source, &NamedArray::source);
    if (array == arrays.end() || !array->numbers) {
      throw data_error(name, fmt::format("the array {}, as --axes {}={} says", source, source, axes),
                       "no array of numbers", "name an array of the file");
    }
    put_axes_in_order(*array, axes, fmt::format("{}: array {}", name, source));
  }
  for (const NamedArray& array : arrays) {
    if (array.numbers || !is_mesh_array(array.name)) continue;
    throw data_error(fmt::format("{}: array {}", name, array.name), "numbers", "text, dates or objects",
                     "save it as an array of numbers");
  }
  return ArrayReader(std::move(arrays), name, options, warn).read();
}

}  // namespace meshgrad
