// SPDX-License-Identifier: Apache-2.0
// Many graphs in one NPZ file.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/data/dataset.h>

#include <fstream>

#include "support.h"
#include "train/npz_arrays.h"

namespace meshgrad {
namespace {

using test::contains;
using test::message_of;
using test::npy;
using test::NpzArrays;

/// 0 -> 1 of 2 nodes, and 1 -> 2, 2 -> 0 of 3.
NpzArrays two_graphs() {
  return {{"node_offsets", npy<int64_t>("<i8", "(3,)", {0, 2, 5})},
          {"edge_offsets", npy<int64_t>("<i8", "(3,)", {0, 1, 3})},
          {"edges", npy<int32_t>("<i4", "(3, 2)", {0, 1, 1, 2, 2, 0})},
          {"x", npy<float>("<f4", "(5, 2)", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9})},
          {"kind", npy<int32_t>("<i4", "(5,)", {0, 1, 2, 3, 4})},
          {"edge:length", npy<float>("<f4", "(3,)", {10, 20, 30})},
          {"load", npy<float>("<f4", "(2, 2)", {1, 2, 3, 4})},
          {"label", npy<int32_t>("<i4", "(2,)", {7, 8})}};
}

struct PackedGraphs {
  test::ScratchDirectory scratch;

  Dataset pack(const NpzArrays& arrays, bool split_list = false) const {
    test::write_npz(scratch.path / "two.npz", arrays, true);
    ConvertOptions options;
    options.input = scratch.path / "two.npz";
    options.output = scratch.path / "two.mgd";
    options.directed = true;
    options.split = {1.0};
    if (split_list) {
      std::ofstream(scratch.path / "splits.txt") << "train: two.npz:1\ntest: two.npz:0\n";
      options.split.clear();
      options.split_list = scratch.path / "splits.txt";
    }
    convert(options);
    return Dataset::open(options.output);
  }
  std::string refused(const char* name, const std::string& array) const {
    NpzArrays arrays = two_graphs();
    arrays[name] = array;
    return message_of([&] { pack(arrays); });
  }
};

template <class T>
std::vector<T> frame(const TrajectoryView& graph, const char* field) {
  const auto values = graph.field(field).frame_of<T>(0);
  return {values.begin(), values.end()};
}

TEST_CASE("one NPZ file holds many graphs by offsets") {
  const PackedGraphs packed;
  for (const bool of_file : {false, true}) {
    NpzArrays arrays = two_graphs();
    if (of_file) arrays["edges"] = npy<int32_t>("<i4", "(3, 2)", {0, 1, 3, 4, 4, 2});
    const Dataset dataset = packed.pack(arrays);
    REQUIRE(dataset.trajectories() == 2);
    const TrajectoryView first = dataset.trajectory(0), second = dataset.trajectory(1);
    CHECK(second.name() == "two.npz: graph 1");
    CHECK(first.mesh().nodes == 2);
    CHECK(second.mesh().nodes == 3);
    CHECK(frame<float>(first, "x") == std::vector<float>{0, 1, 2, 3});
    CHECK(frame<float>(second, "x") == std::vector<float>{4, 5, 6, 7, 8, 9});
    CHECK(frame<int32_t>(second, "kind") == std::vector<int32_t>{2, 3, 4});
    CHECK(frame<float>(second, "load") == std::vector<float>{3, 4});
    CHECK(frame<int32_t>(first, "label") == std::vector<int32_t>{7});
    CHECK(frame<int32_t>(second, "label") == std::vector<int32_t>{8});
    CHECK(dataset.field("label").on == FieldOn::graph);
    CHECK(frame<float>(first, "length") == std::vector<float>{10});
    const MeshView& mesh = second.mesh();  // sorted by receiver
    CHECK(std::vector<int32_t>(mesh.senders.begin(), mesh.senders.end()) == std::vector<int32_t>{2, 1});
    CHECK(std::vector<int32_t>(mesh.receivers.begin(), mesh.receivers.end()) == std::vector<int32_t>{0, 2});
    CHECK(frame<float>(second, "length") == std::vector<float>{30, 20});
  }
}

TEST_CASE("a list of splits names graphs of one file") {
  const PackedGraphs packed;
  const Dataset dataset = packed.pack(two_graphs(), true);
  CHECK(dataset.trajectory("train", 0).mesh().nodes == 3);
  CHECK(dataset.trajectory("test", 0).mesh().nodes == 2);
}

TEST_CASE("offsets and arrays of many graphs that disagree") {
  const PackedGraphs packed;
  CHECK(contains(packed.refused("node_offsets", npy<int32_t>("<i4", "(3,)", {0, 5, 2})),
                 "array node_offsets] needed one number more than there are graphs, ascending from 0"));
  CHECK(contains(packed.refused("edge_offsets", npy<int32_t>("<i4", "(2,)", {0, 3})),
                 "edge_offsets of 2 graphs beside node_offsets, got 2 edge_offsets"));
  CHECK(contains(packed.refused("edge_offsets", npy<int32_t>("<i4", "(3,)", {0, 1, 4})),
                 "array edges] needed 4 edges, where edge_offsets end, got 3"));
  CHECK(contains(packed.refused("edges", npy<int32_t>("<i4", "(3, 2)", {0, 1, 1, 2, 2, 9})),
                 "needed nodes of graph 1, numbered from 0 in each graph or in the file, got 1 at edge 1"));
  CHECK(contains(packed.refused("other", npy<float>("<f4", "(4,)", {1, 2, 3, 4})),
                 "array other] needed 5 rows of nodes, 3 of edges or 2 of graphs, got 4 rows"));
  NpzArrays same = two_graphs();
  same["edge_offsets"] = npy<int32_t>("<i4", "(3,)", {0, 2, 5});
  same["edges"] = npy<int32_t>("<i4", "(5, 2)", {0, 1, 1, 0, 1, 2, 2, 0, 0, 1});
  same.erase("edge:length");
  CHECK(contains(message_of([&] { packed.pack(same); }),
                 "got 5 rows, as many as nodes and edges; fix: save it as node:NAME"));
  NpzArrays both = two_graphs();
  both["edges"] = npy<int32_t>("<i4", "(3, 2)", {0, 1, 2, 2, 2, 2});
  CHECK(contains(
      message_of([&] { packed.pack(both); }),
      "array edges] needed nodes numbered from 0 in each graph, or in the file, got numbers that fit "
      "both"));
}

TEST_CASE("positions, types and masks of many graphs are read") {
  const PackedGraphs packed;
  NpzArrays arrays = two_graphs();
  arrays["pos"] = npy<float>("<f4", "(5, 2)", {0, 0, 1, 0, 5, 5, 6, 5, 5, 6});
  arrays["types"] = npy<int32_t>("<i4", "(5,)", {0, 1, 0, 0, 4});
  const Dataset dataset = packed.pack(arrays);
  CHECK(dataset.dim() == 2);
  const MeshView mesh = dataset.trajectory(1).mesh();
  CHECK(mesh.node_type[2] == 4);
  CHECK(mesh.positions[2] - mesh.positions[0] == 1);
}

}  // namespace
}  // namespace meshgrad
