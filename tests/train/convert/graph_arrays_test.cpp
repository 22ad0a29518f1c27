// SPDX-License-Identifier: Apache-2.0
// Graphs without positions from arrays: edges, numbers of nodes, labels, node splits, and what is ambiguous.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/sources/npz_source.h>

#include <nlohmann/json.hpp>

#include "support.h"
#include "train/npz_arrays.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::counting;
using meshgrad::test::message_of;
using meshgrad::test::npy;
using meshgrad::test::NpzArrays;
using meshgrad::test::ScratchDirectory;
using meshgrad::test::write_npz;

namespace {

using Ints = std::vector<int32_t>;

template <class T>
std::vector<T> list_of(std::span<const T> values) {
  return {values.begin(), values.end()};
}

// Five nodes; 0 to 1 twice, a loop at 4, 3 to 2.
NpzArrays citations() {
  return {{"edges", npy<int64_t>("<i8", "(4, 2)", {0, 1, 4, 4, 0, 1, 3, 2})},
          {"x", npy<float>("<f4", "(5, 3)", counting(15))},
          {"label", npy<int64_t>("<i8", "(5,)", {6, 0, -1, 2, 3})},
          {"edge:kind", npy<int32_t>("<i4", "(4,)", {7, 8, 9, 10})},
          {"edge:weight", npy<float>("<f4", "(4,)", {0.5F, 1, 1.5F, 2})},
          {"graph:class", npy<int64_t>("<i8", "()", {1})},
          {"train_mask", npy<uint8_t>("|b1", "(5,)", {1, 0, 0, 0, 1})},
          {"val_mask", npy<uint8_t>("|b1", "(5,)", {0, 1, 0, 0, 0})},
          {"test_mask", npy<uint8_t>("|b1", "(5,)", {0, 0, 1, 0, 0})}};
}

struct ConvertedGraph {
  ConvertReport report;
  Dataset data;
};

ConvertedGraph convert_npz(const std::filesystem::path& folder, const NpzArrays& arrays,
                           std::optional<bool> directed = true, std::map<std::string, std::string> map = {}) {
  write_npz(folder / "graph.npz", arrays, false);
  ConvertOptions options;
  options.input = folder / "graph.npz";
  options.output = folder / "graph.mgd";
  options.split = {1.0};
  options.directed = directed;
  options.map = std::move(map);
  ConvertReport report = convert(options);
  return {std::move(report), Dataset::open(options.output)};
}

RawTrajectory read(const std::filesystem::path& folder, const NpzArrays& arrays) {
  const std::string file = write_npz(folder / "graph.npz", arrays, false);
  return trajectory_of_npz(std::as_bytes(std::span(file)), "graph.npz");
}

}  // namespace

TEST_CASE("a graph of an NPZ file keeps edges, labels and splits") {
  const ScratchDirectory scratch;
  const auto [report, data] = convert_npz(scratch.path, citations());
  CHECK(report.dim == 0);
  CHECK(report.directed);
  REQUIRE(report.warnings.size() == 1);
  CHECK(contains(report.warnings[0], "read as by --map edges=edges;"));
  CHECK(data.dim() == 0);
  CHECK(data.directed());
  const TrajectoryView graph = data.trajectory("train", 0);
  CHECK(graph.mesh().nodes == 5);
  CHECK(list_of(graph.mesh().senders) == Ints{0, 0, 3, 4});
  CHECK(list_of(graph.mesh().receivers) == Ints{1, 1, 2, 4});
  CHECK(list_of(graph.field("kind").frame_of<int32_t>(0)) == Ints{7, 9, 10, 8});
  CHECK(list_of(graph.field("weight").frame(0)) == std::vector<float>{0.5F, 1.5F, 2, 1});
  CHECK(list_of(graph.field("label").frame_of<int32_t>(0)) == Ints{6, 0, -1, 2, 3});
  CHECK(graph.field("class").frame_of<int32_t>(0)[0] == 1);
  CHECK(list_of(graph.field("x").frame(0)) == counting(15));
  CHECK(data.node_splits() == std::vector<std::string>{"mask"});
  CHECK(list_of(graph.node_split("mask")) == Ints{1, 2, 3, 0, 1});
  CHECK(data.field_stats("x").mean == std::vector<double>{6, 7, 8});
  REQUIRE(report.notes.size() == 2);
  CHECK(contains(report.notes[0], "there are no positions: read as a graph of 5 nodes"));
  CHECK(contains(report.notes[1], "mask splits the nodes: 2 train, 1 valid, 1 test, 1 in none"));
  const auto manifest = nlohmann::json::parse(data.manifest());
  CHECK(manifest["trajectories"][0]["files"] == std::vector<std::string>{"graph.npz"});
  CHECK(manifest["read_as"]["edges"] == "edges");
  CHECK(manifest["read_as"]["train_mask"] == "train_mask");
}

TEST_CASE("a one-way list of edges without positions needs a choice") {
  const ScratchDirectory scratch;
  NpzArrays arrays = citations();
  CHECK(contains(message_of([&] { convert_npz(scratch.path, arrays, std::nullopt); }),
                 "needed to know whether edges are directed, got 4 edges, of which 2 have none back"));
  arrays.erase("edge:kind");
  arrays.erase("edge:weight");
  const auto [report, data] = convert_npz(scratch.path, arrays, false);
  CHECK_FALSE(data.directed());
  CHECK(list_of(data.trajectory(0).mesh().senders) == Ints{1, 0, 3, 2});
  REQUIRE(report.warnings.size() == 4);
  CHECK(contains(report.warnings[1], "nodes without an edge: 1, first node 4"));  // it has a loop only
  CHECK(contains(report.warnings[2], "edges from a node to itself: 1, first column 1"));
  CHECK(contains(report.warnings[3], "edges listed again: 1, first column 2"));
}

TEST_CASE("edges come in either layout unless both are possible") {
  const ScratchDirectory scratch;
  NpzArrays arrays{{"x", npy<float>("<f4", "(5, 1)", counting(5))}};
  arrays["edge_index"] = npy<int32_t>("<i4", "(2, 3)", {0, 1, 2, 3, 4, 0});
  CHECK(read(scratch.path, arrays).edges == Ints{0, 1, 2, 3, 4, 0});
  arrays["edge_index"] = npy<int32_t>("<i4", "(3, 2)", {0, 3, 1, 4, 2, 0});
  CHECK(read(scratch.path, arrays).edges == Ints{0, 1, 2, 3, 4, 0});
  arrays["edge_index"] = npy<int32_t>("<i4", "(2, 2)", {0, 1, 2, 3});
  CHECK(read(scratch.path, arrays).edges == Ints{0, 1, 2, 3});  // by its name
  arrays.erase("edge_index");
  arrays["edges"] = npy<int32_t>("<i4", "(2, 2)", {0, 1, 1, 3});
  CHECK(read(scratch.path, arrays).edges == Ints{0, 1, 1, 3});  // the same both ways
  arrays["edges"] = npy<int32_t>("<i4", "(2, 2)", {0, 1, 2, 3});
  CHECK(contains(message_of([&] { read(scratch.path, arrays); }),
                 "got [2, 2]: 0 to 2 and 1 to 3, or 0 to 1 and 2 to 3; fix: "));
  arrays["edges"] = npy<int32_t>("<i4", "(3, 3)", {0, 1, 2, 3, 4, 0, 1, 2, 3});
  CHECK(contains(message_of([&] { read(scratch.path, arrays); }),
                 "needed [2, edges] or [edges, 2], got [3, 3]"));
  arrays["edges"] = npy<int32_t>("<i4", "(2, 0)", {});
  CHECK(read(scratch.path, arrays).edges.empty());
}

TEST_CASE("as many edges as nodes, or arrays that disagree, are refused") {
  const ScratchDirectory scratch;
  NpzArrays arrays{{"edges", npy<int32_t>("<i4", "(5, 2)", {0, 1, 1, 2, 2, 3, 3, 4, 4, 0})},
                   {"y", npy<float>("<f4", "(5,)", counting(5))}};
  const auto error = [&] { return message_of([&] { read(scratch.path, arrays); }); };
  CHECK(contains(error(),
                 "array y] needed a name that says what its rows belong to, got [5]: 5 edges are "
                 "listed, and there may be as many nodes; fix: --map edge:y=y where they are edges, "
                 "--map node:y=y where they are nodes"));
  CHECK(convert_npz(scratch.path, arrays, true, {{"node:y", "y"}}).data.field("y").on == FieldOn::node);
  arrays["label"] = npy<int32_t>("<i4", "(6,)", {0, 0, 0, 0, 0, 1});
  CHECK(convert_npz(scratch.path, arrays, true, {{"edge:y", "y"}, {"label", "label"}}).data.field("y").on ==
        FieldOn::edge);
  CHECK(contains(error(),
                 "array y] needed a name that says what its rows belong to, got [5]: 5 edges are "
                 "listed"));
  arrays["y"] = npy<float>("<f4", "(7,)", counting(7));
  CHECK(contains(error(),
                 "needed arrays that agree on the number of nodes, since there are no positions, got "
                 "label [6] and y [7]"));
  arrays.erase("y");
  arrays.erase("label");
  CHECK(contains(error(), "needed positions (mesh_pos), or an array on nodes that says how many there are"));
  arrays["label"] = npy<int32_t>("<i4", "(4,)", {0, 0, 0, 0});
  CHECK(
      contains(message_of([&] { convert_npz(scratch.path, arrays); }), "needed node numbers in 0..3, got 4"));
}

TEST_CASE("masks make node splits, and contradictions are errors") {
  const ScratchDirectory scratch;
  NpzArrays arrays = citations();
  const auto error = [&] { return message_of([&] { read(scratch.path, arrays); }); };
  SUBCASE("columns and suffixes") {
    arrays["train_mask"] = npy<uint8_t>("|b1", "(5, 2)", {1, 0, 0, 1, 0, 0, 0, 0, 0, 0});
    arrays["val_mask"] = npy<uint8_t>("|b1", "(5, 2)", {0, 1, 0, 0, 1, 0, 0, 0, 0, 0});
    arrays["test_mask"] = npy<uint8_t>("|b1", "(5, 2)", {0, 0, 1, 0, 0, 1, 0, 0, 0, 0});
    arrays["train_mask_random"] = npy<int32_t>("<i4", "(5,)", {1, 1, 0, 0, 0});
    arrays["test_mask_random"] = npy<int32_t>("<i4", "(5,)", {0, 0, 1, 1, 1});
    const auto [report, data] = convert_npz(scratch.path, arrays);
    CHECK(data.node_splits() == std::vector<std::string>{"mask.0", "mask.1", "mask_random"});
    CHECK(list_of(data.trajectory(0).node_split("mask.0")) == Ints{1, 3, 2, 0, 0});
    CHECK(list_of(data.trajectory(0).node_split("mask.1")) == Ints{2, 1, 3, 0, 0});
    CHECK(list_of(data.trajectory(0).node_split("mask_random")) == Ints{1, 1, 3, 3, 3});
  }
  SUBCASE("two splits of one node") {
    arrays["test_mask"] = npy<uint8_t>("|b1", "(5,)", {0, 0, 1, 0, 1});
    CHECK(contains(error(),
                   "array test_mask] needed each node in one split at most, got node 4 in train and "
                   "test"));
  }
  SUBCASE("no booleans") {
    arrays["val_mask"] = npy<int32_t>("<i4", "(5,)", {0, 2, 0, 0, 0});
    CHECK(contains(error(), "array val_mask] needed booleans, got a number of node 1"));
    arrays["val_mask"] = npy<float>("<f4", "(5,)", {0, 1, 0, 0, 0});
    CHECK(contains(error(), "array val_mask] needed integers, got floating-point numbers"));
  }
  SUBCASE("two masks of validation") {
    arrays["valid_mask"] = arrays["val_mask"];
    CHECK(contains(error(), "needed one mask of each split, got "));
  }
  SUBCASE("another shape") {
    arrays["val_mask"] = npy<uint8_t>("|b1", "(5, 2)", std::vector<uint8_t>(10, 0));
    CHECK(contains(error(), "array val_mask] needed 1 splits, as train_mask has, got [5, 2]"));
    arrays["mesh_pos"] = npy<float>("<f4", "(5, 2)", counting(10));
    arrays["train_mask"] = npy<uint8_t>("|b1", "(0, 4000)", {});  // not the room of 4000 fields
    CHECK(contains(error(), "array train_mask] needed [5] or [5, 1 to 4096 splits], got [0, 4000]"));
  }
  SUBCASE("a mask alone is a field") {
    arrays.erase("val_mask");
    arrays.erase("test_mask");
    const auto [report, data] = convert_npz(scratch.path, arrays);
    CHECK(data.node_splits().empty());
    CHECK(data.field("train_mask").dtype == DType::i32);
  }
}

TEST_CASE("large integers stay i64, and files must agree") {
  const ScratchDirectory scratch;
  NpzArrays arrays = citations();
  arrays["label"] = npy<int64_t>("<i8", "(5,)", {0, int64_t{1} << 40, 0, 0, 0});
  write_npz(scratch.path / "b.npz", arrays, false);
  write_npz(scratch.path / "a.npz", citations(), false);
  ConvertOptions options;
  options.input = scratch.path;
  options.output = scratch.path / "graphs.mgd";
  options.split = {1.0};
  options.directed = true;
  CHECK(contains(message_of([&] { convert(options); }), "label [1] static i64"));
  CHECK(convert_npz(scratch.path, arrays).data.field("label").dtype == DType::i64);
}

TEST_CASE("one field may have more than a thousand components") {
  const ScratchDirectory scratch;
  NpzArrays arrays{{"edges", npy<int32_t>("<i4", "(3, 2)", {0, 1, 1, 2, 2, 0})},
                   {"x", npy<float>("<f4", "(4, 1433)", counting(4 * 1433))}};
  const auto [report, data] = convert_npz(scratch.path, arrays);
  REQUIRE(report.warnings.size() == 2);
  CHECK(contains(report.warnings[1], "nodes without an edge: 1, first node 3"));
  CHECK(data.field("x").components == 1433);
  CHECK(data.trajectory(0).field("x").frame(0)[3 * 1433 + 7] == 3.0F * 1433 + 7);
  CHECK(data.field_stats("x").mean[0] == 1.5 * 1433);
}

TEST_CASE("meshes and graphs without positions do not mix in one file") {
  const ScratchDirectory scratch;
  NpzArrays mesh = citations();
  mesh["mesh_pos"] = npy<float>("<f4", "(5, 2)", counting(10));
  write_npz(scratch.path / "b.npz", mesh, false);
  write_npz(scratch.path / "a.npz", citations(), false);
  ConvertOptions options;
  options.input = scratch.path;
  options.output = scratch.path / "graphs.mgd";
  options.split = {1.0};
  options.directed = true;
  const std::string error = message_of([&] { convert(options); });
  CHECK(contains(error, "first trajectory: no positions, class [1] static"));
  CHECK(contains(error, "got 2-D, class [1] static"));
}
