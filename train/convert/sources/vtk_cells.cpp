// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/engine/offsets.h>
#include <meshgrad/train/convert/sources/vtk_cells.h>
#include <meshgrad/train/convert/sources/vtk_pieces.h>

namespace meshgrad {
namespace {

// Lagrange cells are linear if they have the points of their corners.
std::optional<VtkShape> shape_of(uint8_t type) {
  switch (static_cast<VtkCell>(type)) {
    case VtkCell::vertex:
    case VtkCell::poly_vertex:
      return VtkShape{0, 0};
    case VtkCell::line:
    case VtkCell::lagrange_curve:
      return VtkShape{1, 2};
    case VtkCell::poly_line:
      return VtkShape{1, 0};
    case VtkCell::triangle:
    case VtkCell::lagrange_triangle:
      return VtkShape{2, 3};
    case VtkCell::pixel:
    case VtkCell::quad:
    case VtkCell::lagrange_quad:
      return VtkShape{2, 4};
    case VtkCell::polygon:
      return VtkShape{2, 0};
    case VtkCell::tetrahedron:
    case VtkCell::lagrange_tetrahedron:
      return VtkShape{3, 4};
    case VtkCell::voxel:
    case VtkCell::hexahedron:
    case VtkCell::lagrange_hexahedron:
      return VtkShape{3, 8};
    case VtkCell::wedge:
    case VtkCell::lagrange_wedge:
      return VtkShape{3, 6};
    case VtkCell::pyramid:
    case VtkCell::lagrange_pyramid:
      return VtkShape{3, 5};
    case VtkCell::polyhedron:
      return VtkShape{3, 0};
    case VtkCell::triangle_strip:
      break;
  }
  return std::nullopt;
}

struct Part {
  VtkCell type;
  std::vector<uint8_t> points;
  std::vector<std::vector<uint8_t>> faces{};  ///< of a polyhedron, which becomes tetrahedra; normals inwards
};

// A quadratic cell: its type as VTK numbers it, its points, the linear cell of its corners, which come first,
// and the linear cells that have all of its points. Where a solid has no node in its middle, a tetrahedron is
// cut off at each corner, and what is left is a polyhedron.
struct Quadratic {
  uint8_t type;
  size_t points;
  VtkCell lagrange;  ///< the same points as a Lagrange cell; vertex: there is none
  Part corners;
  std::vector<Part> parts;
};

Part corners_of(VtkCell type, uint8_t count) {
  Part part{type, {}};
  for (uint8_t i = 0; i < count; ++i) part.points.push_back(i);
  return part;
}

std::vector<Quadratic> quadratic_surfaces() {
  const Part line = corners_of(VtkCell::line, 2), triangle = corners_of(VtkCell::triangle, 3),
             quad = corners_of(VtkCell::quad, 4);
  const auto tri = [](uint8_t a, uint8_t b, uint8_t c) { return Part{VtkCell::triangle, {a, b, c}}; };
  const auto four = [](uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
    return Part{VtkCell::quad, {a, b, c, d}};
  };
  return {
      {21, 3, VtkCell::lagrange_curve, line, {{VtkCell::line, {0, 2}}, {VtkCell::line, {2, 1}}}},
      {22, 6, VtkCell::lagrange_triangle, triangle, {tri(0, 3, 5), tri(3, 1, 4), tri(5, 4, 2), tri(3, 4, 5)}},
      {34,
       7,
       VtkCell::vertex,
       triangle,
       {tri(0, 3, 6), tri(3, 1, 6), tri(1, 4, 6), tri(4, 2, 6), tri(2, 5, 6), tri(5, 0, 6)}},
      {23,
       8,
       VtkCell::vertex,
       quad,
       {tri(0, 4, 7), tri(1, 5, 4), tri(2, 6, 5), tri(3, 7, 6), four(4, 5, 6, 7)}},
      {28,
       9,
       VtkCell::lagrange_quad,
       quad,
       {four(0, 4, 8, 7), four(4, 1, 5, 8), four(8, 5, 2, 6), four(7, 8, 6, 3)}},
      {30, 6, VtkCell::vertex, quad, {four(0, 4, 5, 3), four(4, 1, 2, 5)}},
  };
}

Part tet(uint8_t a, uint8_t b, uint8_t c, uint8_t d) { return {VtkCell::tetrahedron, {a, b, c, d}}; }
Part wedge(std::vector<uint8_t> points) { return {VtkCell::wedge, std::move(points)}; }
Part hex(std::vector<uint8_t> points) { return {VtkCell::hexahedron, std::move(points)}; }
Part polyhedron(std::vector<std::vector<uint8_t>> faces) {
  return {VtkCell::polyhedron, {}, std::move(faces)};
}

std::vector<Quadratic> quadratic_solids() {
  const Part hexahedron = corners_of(VtkCell::hexahedron, 8), prism = corners_of(VtkCell::wedge, 6);
  return {
      {24,
       10,
       VtkCell::lagrange_tetrahedron,
       corners_of(VtkCell::tetrahedron, 4),
       {tet(0, 4, 6, 7), tet(4, 1, 5, 8), tet(6, 5, 2, 9), tet(7, 8, 9, 3), tet(6, 8, 4, 5), tet(6, 8, 5, 9),
        tet(6, 8, 9, 7), tet(6, 8, 7, 4)}},
      {29,
       27,
       VtkCell::lagrange_hexahedron,
       hexahedron,
       {hex({0, 8, 24, 11, 16, 22, 26, 20}), hex({8, 1, 9, 24, 22, 17, 21, 26}),
        hex({24, 9, 2, 10, 26, 21, 18, 23}), hex({11, 24, 10, 3, 20, 26, 23, 19}),
        hex({16, 22, 26, 20, 4, 12, 25, 15}), hex({22, 17, 21, 26, 12, 5, 13, 25}),
        hex({26, 21, 18, 23, 25, 13, 6, 14}), hex({20, 26, 23, 19, 15, 25, 14, 7})}},
      {31,
       12,
       VtkCell::vertex,
       prism,
       {wedge({0, 6, 8, 3, 9, 11}), wedge({6, 1, 7, 9, 4, 10}), wedge({8, 7, 2, 11, 10, 5}),
        wedge({6, 7, 8, 9, 10, 11})}},
      {32,
       18,
       VtkCell::lagrange_wedge,
       prism,
       {wedge({0, 6, 8, 12, 15, 17}), wedge({6, 1, 7, 15, 13, 16}), wedge({8, 7, 2, 17, 16, 14}),
        wedge({6, 7, 8, 15, 16, 17}), wedge({12, 15, 17, 3, 9, 11}), wedge({15, 13, 16, 9, 4, 10}),
        wedge({17, 16, 14, 11, 10, 5}), wedge({15, 16, 17, 9, 10, 11})}},
      {33,
       24,
       VtkCell::vertex,
       hexahedron,
       {wedge({0, 8, 11, 16, 22, 20}), wedge({1, 9, 8, 17, 21, 22}), wedge({2, 10, 9, 18, 23, 21}),
        wedge({3, 11, 10, 19, 20, 23}), hex({8, 9, 10, 11, 22, 21, 23, 20}), wedge({16, 22, 20, 4, 12, 15}),
        wedge({17, 21, 22, 5, 13, 12}), wedge({18, 23, 21, 6, 14, 13}), wedge({19, 20, 23, 7, 15, 14}),
        hex({22, 21, 23, 20, 12, 13, 14, 15})}},
  };
}

std::vector<Quadratic> solids_with_nodes_on_sides() {
  return {
      {25,
       20,
       VtkCell::vertex,
       corners_of(VtkCell::hexahedron, 8),
       {tet(0, 8, 11, 16), tet(1, 9, 8, 17), tet(2, 10, 9, 18), tet(3, 11, 10, 19), tet(4, 15, 12, 16),
        tet(5, 12, 13, 17), tet(6, 13, 14, 18), tet(7, 14, 15, 19),
        polyhedron({{8, 9, 10, 11},
                    {15, 14, 13, 12},
                    {8, 16, 12, 17},
                    {9, 17, 13, 18},
                    {10, 18, 14, 19},
                    {11, 19, 15, 16},
                    {8, 11, 16},
                    {9, 8, 17},
                    {10, 9, 18},
                    {11, 10, 19},
                    {15, 12, 16},
                    {12, 13, 17},
                    {13, 14, 18},
                    {14, 15, 19}})}},
      {26,
       15,
       VtkCell::vertex,
       corners_of(VtkCell::wedge, 6),
       {tet(0, 6, 8, 12), tet(1, 7, 6, 13), tet(2, 8, 7, 14), tet(3, 11, 9, 12), tet(4, 9, 10, 13),
        tet(5, 10, 11, 14),
        polyhedron({{6, 7, 8},
                    {11, 10, 9},
                    {6, 12, 9, 13},
                    {7, 13, 10, 14},
                    {8, 14, 11, 12},
                    {6, 8, 12},
                    {7, 6, 13},
                    {8, 7, 14},
                    {11, 9, 12},
                    {9, 10, 13},
                    {10, 11, 14}})}},
      {27,
       13,
       VtkCell::vertex,
       corners_of(VtkCell::pyramid, 5),
       {tet(0, 5, 8, 9), tet(1, 6, 5, 10), tet(2, 7, 6, 11), tet(3, 8, 7, 12),
        polyhedron({{9, 10, 11, 12}, {9, 4, 10}, {10, 4, 11}, {11, 4, 12}, {12, 4, 9}}),
        polyhedron({{5, 6, 7, 8},
                    {12, 11, 10, 9},
                    {5, 9, 10},
                    {6, 10, 11},
                    {7, 11, 12},
                    {8, 12, 9},
                    {5, 8, 9},
                    {6, 5, 10},
                    {7, 6, 11},
                    {8, 7, 12}})}},
  };
}

const Quadratic* find_quadratic(uint8_t type, size_t points) {
  static const std::vector<Quadratic> known = [] {
    std::vector<Quadratic> all = quadratic_surfaces();
    for (std::vector<Quadratic> solids : {quadratic_solids(), solids_with_nodes_on_sides()})
      std::move(solids.begin(), solids.end(), std::back_inserter(all));
    return all;
  }();
  const auto found = std::find_if(known.begin(), known.end(), [&](const Quadratic& cell) {
    const bool lagrange = cell.lagrange != VtkCell::vertex && type == static_cast<uint8_t>(cell.lagrange);
    return cell.points == points && (type == cell.type || lagrange);
  });
  return found == known.end() ? nullptr : &*found;
}

bool is_float(const VtkArray& array) { return !std::holds_alternative<std::vector<int64_t>>(array.values); }

// The rows of an array with these numbers, in their order.
void take_rows(VtkArray& array, const std::vector<int64_t>& rows) {
  const auto width = static_cast<std::ptrdiff_t>(array.components);
  std::visit(
      [&](auto& values) {
        std::remove_cvref_t<decltype(values)> taken;
        taken.reserve(rows.size() * static_cast<size_t>(width));
        for (const int64_t row : rows)
          taken.insert(taken.end(), values.begin() + row * width, values.begin() + (row + 1) * width);
        values = std::move(taken);
      },
      array.values);
}

// Without the points of `dropped`.
void drop_points(VtkGrid& grid, const std::vector<bool>& dropped) {
  std::vector<int64_t> kept, number(dropped.size(), -1);
  for (size_t point = 0; point < dropped.size(); ++point) {
    if (dropped[point]) continue;
    number[point] = static_cast<int64_t>(kept.size());
    kept.push_back(static_cast<int64_t>(point));
  }
  take_rows(grid.points, kept);
  for (VtkArray& array : grid.point_arrays) take_rows(array, kept);
  for (int64_t& point : grid.connectivity) point = number[static_cast<size_t>(point)];
  for (size_t at = 0; at < grid.faces.size();) {
    const size_t end = at + 1 + static_cast<size_t>(grid.faces[at]);
    for (++at; at < end; ++at) grid.faces[at] = number[static_cast<size_t>(grid.faces[at])];
  }
}

class LinearCells {
 public:
  explicit LinearCells(VtkGrid& grid) : grid_(grid) {
    // What is only on cells belongs to whole cells, and their mid-side nodes carry nothing.
    corners_alone_ = std::none_of(grid.point_arrays.begin(), grid.point_arrays.end(), is_float) &&
                     std::any_of(grid.cell_arrays.begin(), grid.cell_arrays.end(), is_float);
  }

  void make() {
    std::vector<bool> middle(static_cast<size_t>(grid_.point_count()), false);
    for (int64_t cell = 0; cell < grid_.cell_count(); ++cell) {
      const std::span<const int64_t> points = points_of(grid_, cell);
      const uint8_t type = grid_.types[static_cast<size_t>(cell)];
      const Quadratic* quadratic = find_quadratic(type, points.size());
      if (quadratic == nullptr) {
        add(type, points, cell);
      } else if (corners_alone_) {
        const size_t corners = quadratic->corners.points.size();
        add(static_cast<uint8_t>(quadratic->corners.type), points.first(corners), cell);
        for (const int64_t point : points.subspan(corners)) middle[static_cast<size_t>(point)] = true;
      } else {
        add_parts(*quadratic, points, cell);
      }
    }
    grid_.connectivity = std::move(connectivity_);
    grid_.ends = std::move(ends_);
    grid_.types = std::move(types_);
    grid_.face_ends = std::move(face_ends_);
    if (!corners_alone_) {
      for (VtkArray& array : grid_.cell_arrays) take_rows(array, from_);
      return;
    }
    for (const int64_t point : grid_.connectivity) middle[static_cast<size_t>(point)] = false;
    for_each_vtk_face(grid_.faces, [&](std::span<const int64_t> face) {
      for (const int64_t point : face) middle[static_cast<size_t>(point)] = false;
    });
    drop_points(grid_, middle);
  }

 private:
  void add(uint8_t type, std::span<const int64_t> points, int64_t cell) {
    connectivity_.insert(connectivity_.end(), points.begin(), points.end());
    ends_.push_back(static_cast<int64_t>(connectivity_.size()));
    types_.push_back(type);
    if (!grid_.face_ends.empty()) face_ends_.push_back(grid_.face_ends[static_cast<size_t>(cell)]);
    from_.push_back(cell);
  }

  void add_parts(const Quadratic& quadratic, std::span<const int64_t> points, int64_t cell) {
    std::vector<int64_t> ordered(points.begin(), points.end());
    if (quadratic.type == 29 && upright_edges_are_swapped(ordered)) std::swap(ordered[18], ordered[19]);
    std::vector<int64_t> corners;
    for (const Part& part : quadratic.parts) {
      if (!part.faces.empty()) add_tetrahedra(part.faces, ordered, cell);
      if (!part.faces.empty()) continue;
      corners.clear();
      for (const uint8_t number : part.points) corners.push_back(ordered[number]);
      add(static_cast<uint8_t>(part.type), corners, cell);
    }
  }

  // Each face is cut from its point of the lowest number in the grid, so that both cells at it cut it alike;
  // and all triangles are joined to the polyhedron's lowest point, whose own faces are cut from it (Dompierre
  // et al. 1999, "How to subdivide pyramids, prisms and hexahedra into tetrahedra").
  void add_tetrahedra(const std::vector<std::vector<uint8_t>>& faces, const std::vector<int64_t>& points,
                      int64_t cell) {
    int64_t lowest = std::numeric_limits<int64_t>::max();
    for (const std::vector<uint8_t>& face : faces)
      for (const uint8_t number : face) lowest = std::min(lowest, points[number]);
    for (const std::vector<uint8_t>& face : faces) {
      std::vector<int64_t> ring;
      for (const uint8_t number : face) ring.push_back(points[number]);
      std::rotate(ring.begin(), std::min_element(ring.begin(), ring.end()), ring.end());
      for (size_t i = 2; i < ring.size() && ring[0] != lowest; ++i)
        add(static_cast<uint8_t>(VtkCell::tetrahedron), std::array{ring[0], ring[i - 1], ring[i], lowest},
            cell);
    }
  }

  // Files of VTK before 9.1 have the last two upright edges of Lagrange hexahedra the other way round.
  bool upright_edges_are_swapped(const std::vector<int64_t>& points) const {
    return std::visit(
        [&](const auto& values) {
          const auto coordinate = [&](size_t number, size_t axis) {
            return static_cast<double>(values[static_cast<size_t>(points[number]) * 3 + axis]);
          };
          const auto off = [&](size_t middle, size_t a, size_t b) {
            double square = 0;
            for (size_t axis = 0; axis < 3; ++axis) {
              const double from = coordinate(middle, axis) - (coordinate(a, axis) + coordinate(b, axis)) / 2;
              square += from * from;
            }
            return square;
          };
          return off(18, 3, 7) + off(19, 2, 6) < off(18, 2, 6) + off(19, 3, 7);
        },
        grid_.points.values);
  }

  VtkGrid& grid_;
  bool corners_alone_ = false;
  std::vector<int64_t> connectivity_, ends_, face_ends_,
      from_;  ///< from_: of each cell the one that it is a part of
  std::vector<uint8_t> types_;
};

void check_sizes(const VtkGrid& grid, const std::string& name) {
  const auto bad = [&](std::string_view needed, std::string_view got) {
    return data_error(name, needed, got, "copy the file again, or write it with VTK or meshio");
  };
  if (grid.types.size() != grid.ends.size())
    throw bad(fmt::format("{} cell types", grid.ends.size()), fmt::format("{}", grid.types.size()));
  const std::string fault = find_descent(std::span<const int64_t>(grid.ends), std::ssize(grid.connectivity));
  if (!fault.empty()) {
    throw bad(fmt::format("offsets of cells that ascend, to {} at most", grid.connectivity.size()), fault);
  }
  const int64_t points = grid.point_count();
  if (grid.points.size() % 3 != 0)
    throw bad("3 coordinates a point", fmt::format("{} coordinates", grid.points.size()));
  if (points > std::numeric_limits<int32_t>::max())
    throw bad("at most 2147483647 points", fmt::format("{}", points));
  for (const bool of_points : {true, false}) {
    const auto rows = static_cast<size_t>(of_points ? points : grid.cell_count());
    for (const VtkArray& array : of_points ? grid.point_arrays : grid.cell_arrays) {
      const size_t wanted = rows * static_cast<size_t>(array.components);
      if (array.size() != wanted)
        throw bad(fmt::format("{} numbers in {}", wanted, array.name), fmt::format("{}", array.size()));
    }
  }
  for (const int64_t point : grid.connectivity)
    if (point < 0 || point >= points)
      throw bad(fmt::format("point numbers in 0..{}", points - 1), fmt::format("{}", point));
  for_each_vtk_face(grid.faces, [&](std::span<const int64_t> face) {
    for (const int64_t point : face)
      if (point < 0 || point >= points)
        throw bad(fmt::format("point numbers in 0..{} in faces", points - 1), fmt::format("{}", point));
  });
}

}  // namespace

std::span<const int64_t> points_of(const VtkGrid& grid, int64_t cell) {
  const auto at = static_cast<size_t>(cell);
  const auto begin = static_cast<size_t>(at == 0 ? 0 : grid.ends[at - 1]);
  return std::span(grid.connectivity).subspan(begin, static_cast<size_t>(grid.ends[at]) - begin);
}

std::span<const int64_t> faces_of(const VtkGrid& grid, int64_t cell) {
  if (grid.face_ends.empty()) return {};
  const auto at = static_cast<size_t>(cell);
  const auto begin = static_cast<size_t>(at == 0 ? 0 : grid.face_ends[at - 1]);
  return std::span(grid.faces).subspan(begin, static_cast<size_t>(grid.face_ends[at]) - begin);
}

bool add_polyhedron(VtkGrid& grid, size_t cell, std::span<const int64_t> stream, int64_t shift) {
  if (stream.empty() || stream[0] < 1) return false;
  grid.face_ends.resize(cell, static_cast<int64_t>(grid.faces.size()));
  size_t at = 1;
  for (int64_t face = 0; face < stream[0]; ++face) {
    const int64_t points = at < stream.size() ? stream[at] : 0;
    if (points < 3 || static_cast<size_t>(points) >= stream.size() - at) return false;
    grid.faces.push_back(points);
    for (const int64_t point : stream.subspan(at + 1, static_cast<size_t>(points)))
      grid.faces.push_back(std::min(point, int64_t{1} << 41) + shift);  // refused when it is too large
    at += static_cast<size_t>(points) + 1;
  }
  grid.face_ends.push_back(static_cast<int64_t>(grid.faces.size()));
  return at == stream.size();
}

std::string describe_array(const VtkArray& array) {
  constexpr std::array<const char*, 3> kTypes{"floats", "doubles", "integers"};
  return fmt::format("{}, {} component{}", kTypes[array.values.index()], array.components,
                     array.components == 1 ? "" : "s");
}

VtkShape linear_shape(uint8_t type) {
  const auto shape = shape_of(type);
  check_internal(shape.has_value(), "a cell that no check saw");
  return *shape;
}

VtkGrid linear_grid(VtkGrid grid, const std::string& name) {
  if (!grid.face_ends.empty())
    grid.face_ends.resize(grid.ends.size(), static_cast<int64_t>(grid.faces.size()));
  check_sizes(grid, name);
  grid = without_ghosts(std::move(grid), name);
  bool quadratic = false;
  for (size_t cell = 0; cell < grid.types.size(); ++cell) {
    const size_t has = points_of(grid, static_cast<int64_t>(cell)).size();
    const auto shape = shape_of(grid.types[cell]);
    const bool polyhedron = grid.types[cell] == static_cast<uint8_t>(VtkCell::polyhedron);
    if (polyhedron && faces_of(grid, static_cast<int64_t>(cell)).empty()) {
      throw data_error(name, "polyhedra with their faces", fmt::format("cell {} without faces", cell),
                       "save the file again with VTK or the solver");
    }
    if (shape && (shape->points == 0 || shape->points == static_cast<int64_t>(has))) continue;
    quadratic = quadratic || find_quadratic(grid.types[cell], has) != nullptr;
    if (find_quadratic(grid.types[cell], has) != nullptr) continue;
    throw data_error(
        name,
        "linear or quadratic cells: lines, triangles, quads, tetrahedra, hexahedra, wedges, pyramids; "
        "polygons or polyhedra",
        fmt::format("cell {} of VTK's type {} with {} points", cell, grid.types[cell], has),
        "save linear cells; in ParaView, Tessellate makes them of others and of strips");
  }
  if (quadratic) LinearCells(grid).make();
  return grid;
}

}  // namespace meshgrad
