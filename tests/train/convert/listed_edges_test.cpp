// SPDX-License-Identifier: Apache-2.0
// Edges that a file lists, kept as they are or made symmetric, with their fields.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/listed_edges.h>

#include "support.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;

namespace {

using Ints = std::vector<int32_t>;
using Floats = std::vector<float>;

// 0 to 1, a loop at 1, 1 to 2 twice; rows of w are 10 times the column over two frames.
RawTrajectory graph() {
  RawTrajectory t;
  t.name = "a.npz";
  t.nodes = 3;
  t.frames = 2;
  t.edges = {0, 1, 1, 1, 1, 1, 2, 2};
  t.fields = {{.name = "w", .values = Floats{0, 10, 20, 30, 100, 110, 120, 130}, .on = FieldOn::edge}};
  return t;
}

}  // namespace

TEST_CASE("directed edges stay, and their fields follow the order") {
  RawTrajectory t = graph();
  choose_direction(t, true);
  CHECK(t.directed);
  t.edges = {1, 0, 1, 1, 2, 1, 2, 1};  // 1 to 2, 0 to 1, 1 to 2, 1 to 1
  const MeshEdges edges = take_edges(t, CellKind::none);
  CHECK(edges.senders == Ints{0, 1, 1, 1});
  CHECK(edges.receivers == Ints{1, 1, 2, 2});
  CHECK(std::get<Floats>(t.fields[0].values) == Floats{10, 30, 0, 20, 110, 130, 100, 120});
  CHECK(t.rows(FieldOn::edge) == 4);
}

TEST_CASE("a note says which edges have a field one way only") {
  RawTrajectory t = graph();
  t.dim = 2;
  t.edges = {0, 1, 2, 1, 1, 0, 1, 2};  // 0 to 1, 1 to 0, 2 to 1, 1 to 2
  CHECK(graph_notes(t).empty());
  t.edges = {0, 1, 2, 2, 1, 0, 1, 0};  // 2 to 1 and 2 to 0 have none back
  CHECK(contains(graph_notes(t).front(), "[a.npz] 2 of 4 edges are listed in one direction"));
  t.directed = true;
  CHECK(graph_notes(t).empty());
}

TEST_CASE("undirected edges join both ways, once, without loops") {
  RawTrajectory t = graph();
  t.fields.clear();
  choose_direction(t, false);
  CHECK_FALSE(t.directed);
  const MeshEdges edges = take_edges(t, CellKind::none);
  CHECK(edges.senders == Ints{1, 0, 2, 1});
  CHECK(edges.receivers == Ints{0, 1, 1, 2});
}

TEST_CASE("ambiguous lists are refused only without positions") {
  RawTrajectory t = graph();
  const std::string error = message_of([&] { choose_direction(t, {}); });
  CHECK(contains(error,
                 "[a.npz: field edges] needed to know whether edges are directed, got 4 edges, of "
                 "which 2 have none back, 1 are loops and 1 are listed again; fix: --directed keeps"));
  t.dim = 2;
  choose_direction(t, {});
  CHECK_FALSE(t.directed);
  t.dim = 0;
  t.edges = {0, 1, 1, 0};  // both ways: the two readings are the same
  choose_direction(t, {});
  CHECK_FALSE(t.directed);
}

TEST_CASE("edges of cells cannot be directed") {
  RawTrajectory t = graph();
  t.cells = {0, 1, 2};
  t.nodes_per_cell = 3;
  CHECK(contains(message_of([&] { choose_direction(t, true); }),
                 "[a.npz] needed edges that are listed, for --directed, got cells"));
}

TEST_CASE("a graph without positions may have no edge") {
  RawTrajectory t = graph();
  t.edges.clear();
  t.fields.clear();
  choose_direction(t, {});
  CHECK(take_edges(t, CellKind::none).receiver_offsets == Ints{0, 0, 0, 0});
  t.dim = 2;
  CHECK(contains(message_of([&] { take_edges(t, CellKind::none); }), "at least one edge"));
}
