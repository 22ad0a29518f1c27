// SPDX-License-Identifier: Apache-2.0
// Graphs of any kind in a packed file and in memory: without positions, directed, with labels and node
// splits.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/memory_data.h>
#include <meshgrad/train/data/packed_file_writer.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "support.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;
using meshgrad::test::read_text;
using meshgrad::test::ScratchDirectory;

namespace {

namespace fs = std::filesystem;
using Ints = std::vector<int32_t>;

const Ints kFirst{0, 1, 1, 2, 1}, kSecond{1, 1, 2, 0, 2};  // a loop at 1, two edges from 1 to 2, node 3 alone
const Ints kGraphTypes{0, 0, 9, 0};

const std::vector<FieldInfo> kFields{{"x", 3, false, "", FieldOn::node, DType::f32},
                                     {"label", 1, false, "", FieldOn::node, DType::i32},
                                     {"kind", 1, false, "", FieldOn::edge, DType::i32},
                                     {"weight", 1, false, "", FieldOn::edge, DType::f32},
                                     {"class", 1, false, "", FieldOn::graph, DType::i32},
                                     {"mask", 1, false, "", FieldOn::node, DType::i32, {}, true},
                                     {"other", 1, false, "", FieldOn::node, DType::i32, {}, true}};

template <class T>
std::vector<T> list_from(std::span<const T> values) {
  return {values.begin(), values.end()};
}

// A directed graph without positions, with rows of edges in the order of the list.
void write_graph(const fs::path& path, const Ints& mask = {1, 2, 3, 0}) {
  PackedFileWriter writer(path, 0, kFields, true);
  const DirectedEdges listed = directed_edges(kFirst, kSecond, 4, "graph");
  const PackedMesh mesh{0, CellKind::none, {}, kGraphTypes, {}};
  Ints pairs = kFirst;
  pairs.insert(pairs.end(), kSecond.begin(), kSecond.end());
  const int64_t number = writer.add_mesh(PackedFileWriter::mesh_key(mesh, pairs), mesh, listed.edges);
  const std::vector<float> x{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  Ints kind;
  std::vector<float> weight;
  for (const int32_t column : listed.columns) {
    kind.push_back(column);
    weight.push_back(0.5F * static_cast<float>(column));
  }
  const Ints label{6, 0, -1, 5}, graph_class{2}, other{0, 0, 1, 3};
  PackedFileWriter::Trajectory graph{"graph", "train", number, 1, 0, 0, {}, {"a.npz", "b.npz"}};
  graph.fields = {x, label, kind, weight, graph_class, mask, other};
  writer.add_trajectory(graph);
  DataStatistics statistics;
  for (const FieldInfo& field : kFields) statistics.fields.emplace_back(field.components, field.dtype);
  statistics.count_nodes(kGraphTypes, 1);
  statistics.fields[0].add(x, kGraphTypes, 1);
  statistics.fields[1].add(std::span(label), kGraphTypes, 1);
  statistics.fields[3].add(weight, Ints(weight.size(), 0), 1);
  writer.finish({"train"}, statistics, "train", "by hand", {}, {.read_as = {{"x", "features"}}});
}

}  // namespace

TEST_CASE("a directed graph without positions is packed and read back") {
  const ScratchDirectory scratch;
  write_graph(scratch.path / "a.mgd");
  const Dataset data = Dataset::open(scratch.path / "a.mgd");
  CHECK(data.dim() == 0);
  CHECK(data.directed());
  const TrajectoryView graph = data.trajectory("train", 0);
  const MeshView& mesh = graph.mesh();
  CHECK(mesh.directed);
  CHECK(mesh.positions.empty());
  CHECK(mesh.nodes == 4);
  CHECK(list_from(mesh.senders) == Ints{2, 0, 1, 1, 1});
  CHECK(list_from(mesh.receivers) == Ints{0, 1, 1, 2, 2});
  CHECK(list_from(mesh.receiver_offsets) == Ints{0, 1, 3, 5, 5});
  CHECK(list_from(mesh.sender_offsets) == Ints{0, 1, 4, 5, 5});
  CHECK(list_from(mesh.sender_order) == Ints{1, 2, 3, 4, 0});
  CHECK(list_from(graph.field("kind").frame_of<int32_t>(0)) ==
        Ints{3, 0, 1, 2, 4});  // parallel ones in order
  CHECK(graph.field("weight").frame(0)[4] == 2.0F);
  CHECK(list_from(graph.field("label").frame_of<int32_t>(0)) == Ints{6, 0, -1, 5});
  CHECK(graph.field("class").frame_of<int32_t>(0)[0] == 2);
  CHECK(data.edge_stats().count == 0);
  CHECK(data.edge_stats().mean.empty());
}

TEST_CASE("node splits go by name, and one that is none is an error") {
  const ScratchDirectory scratch;
  write_graph(scratch.path / "a.mgd");
  const Dataset data = Dataset::open(scratch.path / "a.mgd");
  CHECK(data.node_splits() == std::vector<std::string>{"mask", "other"});
  const TrajectoryView graph = data.trajectory(0);
  CHECK(list_from(graph.node_split("mask")) == Ints{1, 2, 3, 0});
  CHECK(list_from(graph.node_split("other")) == Ints{0, 0, 1, 3});
  CHECK(contains(message_of([&] { graph.node_split("label"); }),
                 "needed a node split that exists, got \"label\"; fix: use one of: mask, other"));
  CHECK(contains(message_of([&] { graph.node_split("masks"); }), "did you mean \"mask\"?"));
}

TEST_CASE("a node split of numbers that mean nothing is refused") {
  const ScratchDirectory scratch;
  for (const int32_t number : {4, -1}) {
    write_graph(scratch.path / "a.mgd", {1, 2, number, 0});
    const Dataset data = Dataset::open(scratch.path / "a.mgd");
    CHECK(contains(message_of([&] { data.trajectory(0); }),
                   "trajectory 0 (graph)] needed 0 to 3 in the node split mask, got " +
                       std::to_string(number) + " at node 2"));
  }
}

TEST_CASE("the manifest names files and arrays") {
  const ScratchDirectory scratch;
  const fs::path path = scratch.path / "a.mgd";
  write_graph(path);
  const std::string text = Dataset::open(path).manifest();
  const auto json = nlohmann::json::parse(text);
  CHECK(json["read_as"]["x"] == "features");
  REQUIRE(json["trajectories"].size() == 1);
  CHECK(json["trajectories"][0]["name"] == "graph");
  CHECK(json["trajectories"][0]["split"] == "train");
  CHECK(json["trajectories"][0]["frames"] == 1);
  CHECK(json["trajectories"][0]["files"] == std::vector<std::string>{"a.npz", "b.npz"});

  std::string file = read_text(path);
  const size_t at = file.find("b.npz");
  REQUIRE(at != std::string::npos);
  file[at] = 'c';
  std::ofstream(path, std::ios::binary) << file;
  const Dataset damaged = Dataset::open(path);
  CHECK(damaged.trajectory(0).frames() == 1);
  CHECK(contains(message_of([&] { damaged.manifest(); }), "manifest] needed the checksum "));
}

TEST_CASE("edges are not made of directed ones") {
  const ScratchDirectory scratch;
  write_graph(scratch.path / "a.mgd");
  const Dataset data = Dataset::open(scratch.path / "a.mgd");
  CHECK(contains(message_of([&] { data.with_edges({.hops = 2}); }),
                 "[data.hops] needed edges that go both ways, got directed edges"));
  CHECK(data.with_edges({}).trajectory(0).mesh().edges == 5);
}

TEST_CASE("statistics take the room of the node types that occur") {
  const ScratchDirectory scratch;
  const auto bytes_with = [&](int32_t type) {
    const std::vector<FieldInfo> fields{{"x", 100, false, ""}};
    PackedFileWriter writer(scratch.path / "a.mgd", 0, fields, true);
    const Ints types{0, type, 0, 0};
    const PackedMesh mesh{0, CellKind::none, {}, types, {}};
    const DirectedEdges listed = directed_edges(kFirst, kSecond, 4, "graph");
    const std::vector<float> x(400, 1.5F);
    const int64_t number = writer.add_mesh(PackedFileWriter::mesh_key(mesh, kFirst), mesh, listed.edges);
    writer.add_trajectory({"graph", "train", number, 1, 0, 0, {x}});
    DataStatistics statistics;
    statistics.fields.emplace_back(100);
    statistics.count_nodes(types, 1);
    statistics.fields[0].add(x, types, 1);
    writer.finish({"train"}, statistics, "train", "");
    const Dataset data = Dataset::open(scratch.path / "a.mgd");
    CHECK(data.node_types() == type + 1);
    CHECK(data.field_stats("x", {type}).count == 1);
    CHECK(data.field_stats("x", {type - 1}).count == 0);
    CHECK(data.node_type_counts()[static_cast<size_t>(type)] == 1);
    return data.bytes();
  };
  CHECK(bytes_with(65535) < bytes_with(2) + 64);
}

TEST_CASE("a graph in memory may be directed and without positions") {
  auto data = std::make_shared<MemoryData>();
  data->dim = 0;
  data->directed = true;
  data->fields = {{"label", 1, false, "", FieldOn::node, DType::i32},
                  {"mask", 1, false, "", FieldOn::node, DType::i32, {}, true}};
  data->splits = {{"train", 0, 1}};
  data->node_types = 10;
  data->add_mesh("graph", {}, kGraphTypes, kFirst, kSecond);
  const Ints label{3, 1, 0, 2}, mask{1, 1, 2, 3};
  data->trajectories.push_back({0, 1, {label, mask}});
  const Dataset dataset = Dataset::over(data);
  CHECK(dataset.directed());
  CHECK(dataset.dim() == 0);
  const TrajectoryView graph = dataset.trajectory(0);
  CHECK(graph.mesh().edges == 5);
  CHECK(graph.mesh().directed);
  CHECK(list_from(graph.field("label").frame_of<int32_t>(0)) == label);
  CHECK(list_from(graph.node_split("mask")) == mask);
}

TEST_CASE("a packed graph without positions cannot have cells") {
  const ScratchDirectory scratch;
  write_graph(scratch.path / "a.mgd");
  std::string text = read_text(scratch.path / "a.mgd");
  PackedTrailer trailer;
  std::memcpy(&trailer, text.data() + text.size() - sizeof trailer, sizeof trailer);
  MeshRecord record;
  std::memcpy(&record, text.data() + trailer.mesh_offset, sizeof record);
  record.cell_kind = static_cast<uint16_t>(CellKind::triangle);
  const auto bytes = std::as_bytes(std::span(text));
  record.checksum = section_checksum(record, bytes.subspan(record.offset, record.bytes));
  std::memcpy(text.data() + trailer.mesh_offset, &record, sizeof record);
  std::ofstream(scratch.path / "bad.mgd", std::ios::binary) << text;
  const Dataset data = Dataset::open(scratch.path / "bad.mgd");
  CHECK(contains(message_of([&] { data.trajectory(0); }), "mesh 0] needed a consistent record"));
}
