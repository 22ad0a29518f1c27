// SPDX-License-Identifier: Apache-2.0
// Packed files of every version: what old ones hold is read as it was, and goes into a new one unchanged.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/packed_file_writer.h>

#include <algorithm>
#include <cstring>

#include "paths.h"
#include "support.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;
using meshgrad::test::ScratchDirectory;

namespace {

namespace fs = std::filesystem;
using Doubles = std::vector<double>;

template <class T>
std::vector<T> list_of(std::span<const T> values) {
  return {values.begin(), values.end()};
}

template <class T>
bool same(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

void check_same_mesh(const MeshView& a, const MeshView& b) {
  CHECK(a.dim == b.dim);
  CHECK(a.origin == b.origin);
  CHECK(a.cell_kind == b.cell_kind);
  CHECK(same(a.positions, b.positions));
  CHECK(same(a.node_type, b.node_type));
  CHECK(same(a.senders, b.senders));
  CHECK(same(a.receivers, b.receivers));
  CHECK(same(a.receiver_offsets, b.receiver_offsets));
  CHECK(same(a.sender_offsets, b.sender_offsets));
  CHECK(same(a.sender_order, b.sender_order));
  CHECK(same(a.cells, b.cells));
}

MeshEdges edges_of(const MeshView& mesh) {
  return {list_of(mesh.senders), list_of(mesh.receivers), list_of(mesh.receiver_offsets),
          list_of(mesh.sender_offsets), list_of(mesh.sender_order)};
}

// Every trajectory, mesh and statistic of a file, written again.
void pack_again(const fs::path& from, const fs::path& to) {
  const Dataset data = Dataset::open(from);
  PackedFileWriter writer(to, data.dim(), data.fields());
  std::vector<std::string> splits;
  for (const SplitInfo& split : data.splits()) {
    splits.push_back(split.name);
    for (int64_t i = 0; i < split.count; ++i) {
      const TrajectoryView t = data.trajectory(split.name, i);
      const MeshView& mesh = t.mesh();
      PackedMesh packed{mesh.dim, mesh.cell_kind, mesh.positions, mesh.node_type, mesh.cells, mesh.origin};
      const auto key = PackedFileWriter::mesh_key(packed, mesh.senders);
      int64_t number = writer.find_mesh(key);
      if (number < 0) number = writer.add_mesh(key, packed, edges_of(mesh));
      PackedFileWriter::Trajectory out{std::string(t.name()), split.name, number, t.frames(),
                                       t.first_frame(),       t.dt(),     {}};
      for (size_t f = 0; f < data.fields().size(); ++f)
        out.fields.emplace_back(t.field(static_cast<int64_t>(f)).values);
      writer.add_trajectory(out);
    }
  }
  writer.finish(splits, PackedFile::open(from)->statistics(), data.statistics_split(), data.source());
}

void check_same_data(const Dataset& before, const Dataset& after) {
  REQUIRE(after.trajectories() == before.trajectories());
  REQUIRE(after.meshes() == before.meshes());
  CHECK(after.node_types() == before.node_types());
  for (int64_t i = 0; i < before.trajectories(); ++i) {
    const TrajectoryView a = before.trajectory(i), b = after.trajectory(i);
    CHECK(a.name() == b.name());
    CHECK(a.frames() == b.frames());
    check_same_mesh(a.mesh(), b.mesh());
    for (size_t f = 0; f < before.fields().size(); ++f)
      CHECK(same(a.field(static_cast<int64_t>(f)).bytes, b.field(static_cast<int64_t>(f)).bytes));
  }
  for (const FieldInfo& field : before.fields()) {
    CHECK(after.field(field.name).offset == field.offset);
    for (const Quantity which : {Quantity::value, Quantity::change, Quantity::second_change}) {
      for (const NodeTypeSet& types : {NodeTypeSet::all(), NodeTypeSet{0}, NodeTypeSet{4, 6}}) {
        const FieldStatistics a = before.field_stats(field.name, types, which);
        const FieldStatistics b = after.field_stats(field.name, types, which);
        CHECK(a.count == b.count);
        CHECK(a.mean == b.mean);
        CHECK(a.std == b.std);
        CHECK(a.min == b.min);
        CHECK(a.max == b.max);
      }
    }
  }
  CHECK(after.edge_stats().mean == before.edge_stats().mean);
  CHECK(after.edge_stats().std == before.edge_stats().std);
}

// A valid description whose text `change` may spoil.
std::string graph_metadata() {
  PackedMetadata metadata;
  metadata.dim = 0;
  metadata.directed = true;
  metadata.node_types = 7;
  metadata.statistics_types = {0, 6};
  metadata.fields = {{"mask", 1, false, "", FieldOn::node, DType::i32, {}, true}};
  return metadata_to_json(metadata);
}

}  // namespace

TEST_CASE("a file of version 2 opens, and is packed again unchanged") {
  const fs::path path = test::data_file("version2.mgd");
  CHECK(PackedFile::open(path)->metadata().version == 2);
  const Dataset data = Dataset::open(path);
  CHECK(data.fingerprint() == 0xbd2d677f58c84262ULL);  // checkpoints know their data by it
  CHECK(data.node_type_counts() == Doubles{6, 0, 0, 0, 3, 0, 3});
  CHECK_FALSE(data.directed());
  CHECK(data.node_splits().empty());
  CHECK(data.manifest() == "");
  CHECK(data.trajectory("train", 0).field("velocity").frame(2)[2 * 3] == 23.0F);
  CHECK(data.field_stats("velocity").min == Doubles{0, -23});
  CHECK(data.field_stats("velocity").mean == Doubles{11.5, -11.5});
  CHECK(data.field_stats("velocity", {6}, Quantity::change).mean == Doubles{10, -10});

  const ScratchDirectory scratch;
  pack_again(path, scratch.path / "again.mgd");
  CHECK(PackedFile::open(scratch.path / "again.mgd")->metadata().version == 4);
  check_same_data(data, Dataset::open(scratch.path / "again.mgd"));
}

TEST_CASE("a file of version 3 opens and is packed again") {
  const fs::path path = test::data_file("version3.mgd");
  CHECK(PackedFile::open(path)->metadata().version == 3);
  const Dataset data = Dataset::open(path);
  CHECK(data.fingerprint() == 0xd9a354a925dc222eULL);
  const MeshView mesh = data.trajectory(0).mesh();
  CHECK(mesh.origin[0] == 1000000.4);
  CHECK(mesh.positions[2] == -0.15F);
  const double u =
      data.field("u").offset_of(0) + static_cast<double>(data.trajectory(0).field("u").frame(1)[3]);
  CHECK(u == 1e7 + 3.0 / 8 + 1.0 / 16);
  CHECK(data.field_stats("u").count == 48);

  const ScratchDirectory scratch;
  pack_again(path, scratch.path / "again.mgd");
  check_same_data(data, Dataset::open(scratch.path / "again.mgd"));
}

TEST_CASE("a file of version 1 goes into a new one with the same values") {
  const Dataset before = Dataset::open(test::data_file("version1.mgd"));
  const TrajectoryView t = before.trajectory(0);
  const ScratchDirectory scratch;
  PackedFileWriter writer(scratch.path / "again.mgd", before.dim(), before.fields());
  PackedMesh mesh{2, CellKind::none, t.mesh().positions, t.mesh().node_type, {}};
  const int64_t number =
      writer.add_mesh(PackedFileWriter::mesh_key(mesh, t.mesh().senders), mesh, edges_of(t.mesh()));
  writer.add_trajectory({"0", "train", number, t.frames(), 0, 0, {t.field(0).values}});
  DataStatistics statistics;
  statistics.fields.emplace_back(2);
  statistics.fields[0].add(t.field(0).values, t.mesh().node_type, t.frames());
  statistics.edges = edge_moments(t.mesh().positions, 2, edges_of(t.mesh()));
  writer.finish({"train"}, statistics, "train", "");
  const Dataset after = Dataset::open(scratch.path / "again.mgd");
  check_same_mesh(t.mesh(), after.trajectory(0).mesh());
  CHECK(same(t.field(0).bytes, after.trajectory(0).field(0).bytes));
  CHECK(after.field_stats("velocity").mean == before.field_stats("velocity").mean);
}

TEST_CASE("metadata of version 4 that contradicts itself is refused") {
  const std::string good = graph_metadata();
  const PackedMetadata read = metadata_from_json(good, 4, "x");
  CHECK(read.dim == 0);
  CHECK(read.directed);
  CHECK(read.statistics_types == std::vector<int32_t>{0, 6});
  CHECK(read.fields[0].node_split);
  const auto error = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    REQUIRE(contains(text, from));
    text.replace(text.find(from), from.size(), to);
    return message_of([&] { metadata_from_json(text, 4, "x"); });
  };
  CHECK(contains(error("\"dim\": 0", "\"dim\": 4"), "[x] needed 0 to 3 dimensions"));
  CHECK(contains(error("\"directed\": true", "\"directed\": 1"), "a value of another type"));
  CHECK(contains(error("\"directed\": true,", ""), "one without a key that it needs"));
  CHECK(contains(error("6", "7"), "needed ascending node types below 7, got 7"));
  CHECK(contains(error("  0,\n  6", "  6,\n  0"), "needed ascending node types below 7, got 0 after 6"));
  CHECK(contains(error("\"node split\"", "\"mask\""), "needed \"role\" of a field as one of node split"));
  CHECK(contains(error("\"i32\"", "\"f32\""), "needed a node split as a static i32 field"));
  CHECK(contains(error("\"dynamic\": false", "\"dynamic\": true"), "needed a node split as a static"));
  CHECK(contains(error("\"components\": 1", "\"components\": 2"), "needed a node split as a static"));
  // What version 3 does not have is no key of it.
  CHECK(contains(message_of([&] { metadata_from_json(good, 3, "x"); }), "needed 2 to 3 dimensions"));
}
