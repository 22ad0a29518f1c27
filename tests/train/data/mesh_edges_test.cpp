// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/mesh_edges.h>

#include <set>
#include <utility>

#include "support.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;

namespace {

using Ints = std::vector<int32_t>;

size_t connections(CellKind kind, const Ints& cell, int64_t nodes) {
  return edges_from_cells(cell, kind, nodes, "test").senders.size() / 2;
}

}  // namespace

TEST_CASE("the path 0-1-2 has four directed edges") {
  const MeshEdges edges = edges_from_pairs(Ints{1, 0}, Ints{2, 1}, 3, "test");
  //                edge:             0  1  2  3
  CHECK(edges.receivers == Ints{0, 1, 1, 2});
  CHECK(edges.senders == Ints{1, 0, 2, 1});
  CHECK(edges.receiver_offsets == Ints{0, 1, 3, 4});
  CHECK(edges.sender_offsets == Ints{0, 1, 3, 4});
  CHECK(edges.sender_order ==
        Ints{1, 0, 3, 2});  // sender 0: edge 1; sender 1: edges 0 and 3; sender 2: edge 2
}

TEST_CASE("repeated connections count once, loops never") {
  const MeshEdges edges = edges_from_pairs(Ints{0, 1, 0, 2}, Ints{1, 0, 1, 2}, 3, "test");
  CHECK(edges.receivers == Ints{0, 1});
  CHECK(edges.senders == Ints{1, 0});
  CHECK(edges.receiver_offsets == Ints{0, 1, 2, 2});  // node 2 has only a loop
}

TEST_CASE("two triangles share an edge") {
  const MeshEdges edges = edges_from_cells(Ints{0, 1, 2, 0, 2, 3}, CellKind::triangle, 4, "test");
  std::set<std::pair<int32_t, int32_t>> got;
  for (size_t e = 0; e < edges.senders.size(); ++e) got.emplace(edges.senders[e], edges.receivers[e]);
  const std::set<std::pair<int32_t, int32_t>> expected{{0, 1}, {1, 0}, {1, 2}, {2, 1}, {2, 0},
                                                       {0, 2}, {2, 3}, {3, 2}, {3, 0}, {0, 3}};
  CHECK(got == expected);
  CHECK(edges.senders.size() == 10);
}

TEST_CASE("each kind of cell has its sides and no diagonals") {
  CHECK(connections(CellKind::triangle, {0, 1, 2}, 3) == 3);
  CHECK(connections(CellKind::quad, {0, 1, 2, 3}, 4) == 4);
  CHECK(connections(CellKind::tetrahedron, {0, 1, 2, 3}, 4) == 6);
  CHECK(connections(CellKind::hexahedron, {0, 1, 2, 3, 4, 5, 6, 7}, 8) == 12);
  const MeshEdges quad = edges_from_cells(Ints{0, 1, 2, 3}, CellKind::quad, 4, "test");
  CHECK(quad.senders == Ints{1, 3, 0, 2, 1, 3, 0, 2});  // receiver 0: 1 and 3; 1: 0 and 2; ..
  const MeshEdges hexahedron =
      edges_from_cells(Ints{0, 1, 2, 3, 4, 5, 6, 7}, CellKind::hexahedron, 8, "test");
  for (size_t n = 0; n < 8; ++n) {
    CHECK(hexahedron.receiver_offsets[n + 1] - hexahedron.receiver_offsets[n] == 3);
  }
  CHECK(cell_kind_of(4, 2, "test") == CellKind::quad);
  CHECK(cell_kind_of(4, 3, "test") == CellKind::tetrahedron);
}

TEST_CASE("bad meshes are named") {
  const std::string range = message_of([] {
    edges_from_cells(Ints{0, 1, 2, 1, 2, 3}, CellKind::triangle, 3, "a.npz: field cells");
  });
  CHECK(range ==
        "[a.npz: field cells] needed node numbers in 0..2, got 3 in cell 1; fix: node numbers count from 0 "
        "and must be below the number of positions");
  CHECK(contains(message_of([] { edges_from_pairs(Ints{-1}, Ints{0}, 2, "x"); }), "got -1 in edge 0"));
  CHECK(contains(message_of([] { edges_from_pairs(Ints{1}, Ints{1}, 2, "x"); }), "got no edge"));
  CHECK(contains(message_of([] { edges_from_pairs({}, {}, 2, "x"); }), "got no edge"));
  CHECK_THROWS_AS(cell_kind_of(5, 3, "x"), DataError);
  CHECK_THROWS_AS(cell_kind_of(8, 2, "x"), DataError);
  CHECK_THROWS_AS(edges_from_cells(Ints{0, 1}, CellKind::triangle, 3, "x"), DataError);
}

TEST_CASE("directed edges keep loops, parallel edges and their order") {
  const std::vector<int32_t> first{2, 0, 0, 1, 0}, second{0, 0, 2, 2, 2};
  const DirectedEdges listed = directed_edges(first, second, 3, "graph");
  CHECK(listed.columns == std::vector<int32_t>{1, 0, 2, 4, 3});
  CHECK(listed.edges.senders == std::vector<int32_t>{0, 2, 0, 0, 1});
  CHECK(listed.edges.receivers == std::vector<int32_t>{0, 0, 2, 2, 2});
  CHECK(listed.edges.receiver_offsets == std::vector<int32_t>{0, 2, 2, 5});
  CHECK(listed.edges.sender_order == std::vector<int32_t>{0, 2, 3, 4, 1});
  CHECK(directed_edges({}, {}, 2, "graph").edges.receiver_offsets == std::vector<int32_t>{0, 0, 0});
  CHECK(test::contains(test::message_of([&] { directed_edges(first, second, 2, "graph"); }),
                       "[graph] needed node numbers in 0..1, got 2 in edge 0"));
  CHECK(test::contains(test::message_of([&] { directed_edges({}, second, 3, "graph"); }),
                       "needed as many senders as receivers, got 0 and 5"));
}
