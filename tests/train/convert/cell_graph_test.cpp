// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/cell_graph.h>
#include <meshgrad/train/convert/sources/vtk_cells.h>
#include <meshgrad/train/convert/sources/vtk_trajectory.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "support.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;

namespace {

using Pairs = std::set<std::pair<int32_t, int32_t>>;

Pairs pairs_of(const RawTrajectory& graph) {
  Pairs pairs;
  const size_t half = graph.edges.size() / 2;
  for (size_t i = 0; i < half; ++i) pairs.insert(std::minmax(graph.edges[i], graph.edges[half + i]));
  return pairs;
}

// A quad beside a triangle beside a triangle, as quads.
RawTrajectory strip() {
  RawTrajectory t;
  t.name = "strip";
  t.nodes = 6;
  t.dim = 2;
  t.frames = 2;
  t.positions = {0, 0, 1, 0, 1, 1, 0, 1, 2, 0, 2, 1};
  t.cells = {0, 1, 2, 3, 1, 4, 2, 2, 4, 5, 2, 2};
  t.nodes_per_cell = 4;
  t.node_type = {6, 0, 3, 6, 3, 3};
  t.fields.push_back({"p", 1, true, "Pa", std::vector<float>{1, 2, 3, 4, 5, 6}, FieldOn::cell, {}});
  return t;
}

}  // namespace

TEST_CASE("cells that share a side are joined") {
  const RawTrajectory graph = graph_on_cells(strip(), CellKind::quad, {});
  validate(graph);
  CHECK(graph.nodes == 3);
  CHECK(pairs_of(graph) == Pairs{{0, 1}, {1, 2}});
  CHECK(graph.positions[0] == 0.5F);
  CHECK(graph.positions[2] == doctest::Approx(4.0 / 3.0));
  CHECK(graph.fields.front().on == FieldOn::node);
  CHECK(graph.fields.front().unit == "Pa");
  // The type that all corners have, or 0.
  CHECK(graph.node_type == std::vector<int32_t>{0, 0, 3});
}

TEST_CASE("solids are joined by faces, not by edges") {
  // Two hexahedra on each other, a wedge beside the upper one at an edge only, a pyramid on top.
  RawTrajectory t;
  t.name = "solids";
  t.nodes = 15;
  t.dim = 3;
  for (int layer = 0; layer < 3; ++layer)
    for (const auto& [x, y] : {std::pair{0, 0}, {1, 0}, {1, 1}, {0, 1}})
      for (const int c : {x, y, layer}) t.positions.push_back(static_cast<float>(c));
  for (const float c : {0.5F, 0.5F, 3.0F, 2.0F, 0.0F, 1.0F, 2.0F, 0.0F, 2.0F}) t.positions.push_back(c);
  t.cells = {0, 1, 2,  3,  4,  5,  6,  7,  4, 5,  6,  7, 8, 9,  10, 11,
             8, 9, 10, 11, 12, 12, 12, 12, 5, 13, 13, 5, 9, 14, 14, 9};
  t.nodes_per_cell = 8;
  const RawTrajectory graph = graph_on_cells(t, CellKind::hexahedron, {});
  CHECK(pairs_of(graph) == Pairs{{0, 1}, {1, 2}});
}

TEST_CASE("means of node fields, what is left out, and wrong cells") {
  RawTrajectory t = strip();
  t.fields.push_back({"u", 1, false, "", std::vector<float>{0, 3, 6, 3, 9, 0}, FieldOn::node, {}});
  t.fields.push_back({"id", 1, false, "", std::vector<int32_t>(6, 1), FieldOn::node, {}});
  CHECK_FALSE(fields_are_on_cells(t));
  CHECK(fields_are_on_cells(strip()));
  std::string warning;
  const RawTrajectory graph =
      graph_on_cells(t, CellKind::quad, [&](const std::string& text) { warning = text; });
  CHECK(contains(warning, "id"));
  REQUIRE(graph.fields.size() == 2);
  CHECK(std::get<std::vector<float>>(graph.fields[1].values) == std::vector<float>{3, 6, 5});
  t.cells[0] = 6;
  CHECK(contains(message_of([&] { graph_on_cells(t, CellKind::quad, {}); }), "6 in cell 0"));
  t.cells.clear();
  CHECK(contains(message_of([&] { graph_on_cells(t, CellKind::none, {}); }), "--graph nodes"));
}

TEST_CASE("polygons become their sides") {
  RawTrajectory t = strip();
  t.cells.clear();
  add_faces_of(std::vector<int32_t>{0, 1, 4, 5, 2, 3}, CellKind::none, t.faced);
  add_faces_of(std::vector<int32_t>{1, 4, 5, 2, 2}, CellKind::none, t.faced);
  t.fields.front().values = std::vector<float>{1, 2, 3, 4};
  validate(t);
  CHECK(pairs_of(graph_on_cells(t, CellKind::none, {})) == Pairs{{0, 1}});
  RawTrajectory point = t;
  point.faced = {};
  add_faces_of(std::vector<int32_t>{2, 2, 2}, CellKind::none, point.faced);
  CHECK(contains(message_of([&] { graph_on_cells(point, CellKind::none, {}); }), "got 1 point in cell 0"));
  faces_to_edges(t, {});
  CHECK(t.faced.count() == 0);
  CHECK(t.fields.empty());
  CHECK(pairs_of(t) == Pairs{{0, 1}, {1, 4}, {4, 5}, {2, 5}, {2, 3}, {0, 3}, {1, 2}});
}

namespace {

using Point = std::array<double, 3>;

/// A grid of quadratic cells of straight sides, whose points are numbered as they come or the other way
/// round.
class QuadraticGrid {
 public:
  void add(uint8_t type, const std::vector<Point>& corners, const std::vector<std::array<size_t, 2>>& sides) {
    for (const Point& corner : corners) add(corner);
    for (const auto& [a, b] : sides) {
      Point middle{};
      for (size_t axis = 0; axis < 3; ++axis) middle[axis] = (corners[a][axis] + corners[b][axis]) / 2;
      add(middle);
    }
    grid_.ends.push_back(static_cast<int64_t>(grid_.connectivity.size()));
    grid_.types.push_back(type);
  }
  VtkGrid finish(bool reversed) const {
    VtkGrid grid = grid_;
    std::vector<double> points(numbers_.size() * 3);
    const auto number_of = [&](int64_t number) {
      return reversed ? static_cast<int64_t>(numbers_.size()) - 1 - number : number;
    };
    for (const auto& [point, number] : numbers_)
      std::ranges::copy(point, points.begin() + static_cast<std::ptrdiff_t>(3 * number_of(number)));
    for (int64_t& point : grid.connectivity) point = number_of(point);
    grid.point_arrays = {{"p", 1, std::vector<float>(numbers_.size(), 0)}};
    grid.points = {"points", 3, std::move(points)};
    return grid;
  }

 private:
  void add(const Point& point) {
    const auto number = static_cast<int64_t>(numbers_.size());
    grid_.connectivity.push_back(numbers_.try_emplace(point, number).first->second);
  }
  VtkGrid grid_;
  std::map<Point, int64_t> numbers_;
};

/// The area of the faces that only one cell has; `graph` has an edge for each of the others.
double free_area(const RawTrajectory& t, const RawTrajectory& graph) {
  FacedCells cells;
  for (size_t cell = 0; cell < t.cells.size(); cell += 4)
    add_faces_of(std::span(t.cells).subspan(cell, 4), CellKind::tetrahedron, cells);
  std::map<std::set<int32_t>, int> faces;
  for (size_t at = 0; at < cells.nodes.size(); at += 3)
    ++faces[{cells.nodes.begin() + static_cast<std::ptrdiff_t>(at),
             cells.nodes.begin() + static_cast<std::ptrdiff_t>(at + 3)}];
  double area = 0;
  size_t shared = 0;
  for (const auto& [nodes, count] : faces) {
    CHECK(count <= 2);
    shared += count == 2 ? 1 : 0;
    if (count == 2) continue;
    std::array<Point, 3> p{};
    size_t corner = 0;
    for (const int32_t node : nodes) {
      for (size_t axis = 0; axis < 3; ++axis)
        p[corner][axis] = static_cast<double>(t.positions[static_cast<size_t>(node) * 3 + axis]);
      ++corner;
    }
    double square = 0;
    for (size_t axis = 0; axis < 3; ++axis) {
      const size_t a = (axis + 1) % 3, b = (axis + 2) % 3;
      square +=
          std::pow((p[1][a] - p[0][a]) * (p[2][b] - p[0][b]) - (p[1][b] - p[0][b]) * (p[2][a] - p[0][a]), 2);
    }
    area += std::sqrt(square) / 2;
  }
  CHECK(graph.edges.size() == 2 * shared);
  return area;
}

}  // namespace

TEST_CASE("quadratic solids that share a face cut it alike") {
  const auto cube = [](double x) {
    return std::vector<Point>{{x, 0, 0}, {x + 1, 0, 0}, {x + 1, 1, 0}, {x, 1, 0},
                              {x, 0, 1}, {x + 1, 0, 1}, {x + 1, 1, 1}, {x, 1, 1}};
  };
  const std::vector<std::array<size_t, 2>> upright{{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  std::vector<std::array<size_t, 2>> sides{{0, 1}, {1, 2}, {2, 3}, {3, 0}, {4, 5}, {5, 6}, {6, 7}, {7, 4}};
  sides.insert(sides.end(), upright.begin(), upright.end());
  QuadraticGrid made;
  made.add(25, cube(0), sides);
  made.add(25, cube(1), sides);
  made.add(27, {{0, 0, 1}, {1, 0, 1}, {1, 1, 1}, {0, 1, 1}, {0.5, 0.5, 2}},
           {{0, 1}, {1, 2}, {2, 3}, {3, 0}, {0, 4}, {1, 4}, {2, 4}, {3, 4}});
  made.add(26, {{2, 0, 0}, {3, 0, 0}, {2, 1, 0}, {2, 0, 1}, {3, 0, 1}, {2, 1, 1}},
           {{0, 1}, {1, 2}, {2, 0}, {3, 4}, {4, 5}, {5, 3}, {0, 3}, {1, 4}, {2, 5}});
  for (const bool reversed : {false, true}) {
    const VtkGrid grid = linear_grid(made.finish(reversed), "a.vtu");
    const RawTrajectory t = VtkTrajectory(grid, "a.vtu", "", {}).finish(false);
    REQUIRE(t.nodes_per_cell == 4);
    const RawTrajectory graph = graph_on_cells(t, CellKind::tetrahedron, {});
    // Of the row of two cubes and half a cube, less the square below the pyramid, and four of its sides.
    CHECK(free_area(t, graph) == doctest::Approx(2 * 2.5 + 3 + 2 + 1 + std::sqrt(2) - 1 + std::sqrt(5)));
  }
}
