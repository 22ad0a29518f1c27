// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/cell_graph.h>

#include <algorithm>
#include <set>

#include "train/deepmind_folder.h"

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

TEST_CASE("cells that share a side are joined; a repeated corner is no side") {
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
  CHECK(contains(message_of([&] { graph_on_cells(point, CellKind::none, {}); }), "one in cell 0"));
  faces_to_edges(t, {});
  CHECK(t.faced.count() == 0);
  CHECK(t.fields.empty());
  CHECK(pairs_of(t) == Pairs{{0, 1}, {1, 4}, {4, 5}, {2, 5}, {2, 3}, {0, 3}, {1, 2}});
}
