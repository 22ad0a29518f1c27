// SPDX-License-Identifier: Apache-2.0
// The packed file: what is written comes back, and no damaged file is read past its end.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/data/packed_file_writer.h>

#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "support.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;
using meshgrad::test::read_text;
using meshgrad::test::ScratchDirectory;

namespace {

namespace fs = std::filesystem;

const std::vector<float> kPositions{0, 0, 1, 0, 0, 1};
const std::vector<int32_t> kTypes{0, 4, 6};
const std::vector<int32_t> kCells{0, 1, 2};

// Two trajectories on one triangle; u is 100 * trajectory + 10 * frame + node, depth is static.
void write_triangle(const fs::path& path) {
  PackedFileWriter writer(path, 2, {{"u", 1, true, "m/s"}, {"depth", 1, false, ""}});
  PackedMesh mesh{2, CellKind::triangle, kPositions, kTypes, kCells};
  const auto key = PackedFileWriter::mesh_key(mesh, {});
  const int64_t number =
      writer.add_mesh(key, mesh, edges_from_cells(kCells, CellKind::triangle, 3, "triangle"));
  const std::vector<float> depth{7, 8, 9};
  for (int i = 0; i < 2; ++i) {
    std::vector<float> u;
    for (int t = 0; t < 2 + i; ++t) {
      for (int n = 0; n < 3; ++n) u.push_back(static_cast<float>(100 * i + 10 * t + n));
    }
    // "test" is written first: trajectories are grouped by split, in the order of finish().
    writer.add_trajectory(
        {"run " + std::to_string(i), i == 0 ? "test" : "train", number, 2 + i, 5 * i, 0.25, {u, depth}});
  }
  DataStatistics statistics;
  statistics.node_type_counts = {0, 0, 0, 0, 3};
  statistics.fields.assign(2, FieldMoments(1));
  statistics.fields[0].hold(std::vector<int32_t>{0, 4});
  statistics.fields[0].at(Quantity::change, 0, 0) = {2, 10, 8};
  statistics.fields[0].at(Quantity::change, 4, 0) = {2, 20, 8};
  statistics.edges.assign(3, Moments{6, 0, 6});
  writer.finish({"train", "valid", "test"}, statistics, "train", "by hand");
}

// Reads everything that a user can reach.
double touch_all(const PackedFile& file) {
  double sum = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(file.trailer().trajectory_count); ++i) {
    const MeshView mesh = file.mesh(file.trajectory(i).mesh);
    for (const float x : mesh.positions) sum += static_cast<double>(x);
    for (const int32_t sender : mesh.senders)
      sum += static_cast<double>(mesh.node_type[static_cast<size_t>(sender)]);
    for (const int32_t edge : mesh.sender_order) sum += mesh.receivers[static_cast<size_t>(edge)];
    for (const int32_t node : mesh.cells)
      sum += static_cast<double>(mesh.positions[static_cast<size_t>(node)]);
    for (size_t f = 0; f < file.metadata().fields.size(); ++f) {
      for (const float x : file.field(i, static_cast<int64_t>(f)).values) sum += static_cast<double>(x);
    }
  }
  return sum;
}

// A copy at an address as aligned as a mapping.
struct AlignedBytes {
  std::vector<uint64_t> words;
  size_t size;
  explicit AlignedBytes(const std::string& text) : words((text.size() + 7) / 8), size(text.size()) {
    std::memcpy(words.data(), text.data(), text.size());
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(words)).first(size); }
};

}  // namespace

TEST_CASE("a packed file comes back as it was written") {
  const ScratchDirectory scratch;
  write_triangle(scratch.path / "a.mgd");
  const Dataset data = Dataset::open(scratch.path / "a.mgd");
  CHECK(data.dim() == 2);
  CHECK(data.dt() == 0.25);
  CHECK(data.trajectories() == 2);
  CHECK(data.meshes() == 1);
  CHECK(data.bytes() == fs::file_size(scratch.path / "a.mgd"));
  CHECK(data.source() == "by hand");
  REQUIRE(data.splits().size() == 2);  // valid is empty
  CHECK(data.splits()[0].name == "train");
  CHECK(data.size("test") == 1);
  CHECK(data.field("u").unit == "m/s");

  const TrajectoryView train = data.trajectory("train", 0);
  CHECK(train.name() == "run 1");
  CHECK(train.index() == 0);
  CHECK(train.frames() == 3);
  CHECK(train.first_frame() == 5);
  CHECK(train.sample_id(2) == 2);
  const TrajectoryView other = data.trajectory("test", 0);
  CHECK(other.sample_id(2) == (uint64_t{1} << 32U) + 2);
  const FieldView u = train.field("u");
  CHECK(u.frames == 3);
  CHECK(u.frame(2).size() == 3);
  CHECK(u.frame(2)[1] == 121.0F);
  CHECK(train.field("depth").frame(2)[2] == 9.0F);  // static: every frame is the one

  const MeshView& mesh = train.mesh();
  CHECK(std::vector<float>(mesh.positions.begin(), mesh.positions.end()) == kPositions);
  CHECK(std::vector<int32_t>(mesh.node_type.begin(), mesh.node_type.end()) == kTypes);
  CHECK(std::vector<int32_t>(mesh.cells.begin(), mesh.cells.end()) == kCells);
  CHECK(mesh.nodes_per_cell == 3);
  CHECK(mesh.edges == 6);
  CHECK(std::vector<int32_t>(mesh.receivers.begin(), mesh.receivers.end()) ==
        std::vector<int32_t>{0, 0, 1, 1, 2, 2});
  CHECK(other.mesh().positions.data() == mesh.positions.data());
  for (const void* part :
       {static_cast<const void*>(mesh.positions.data()), static_cast<const void*>(mesh.senders.data()),
        static_cast<const void*>(mesh.sender_order.data()), static_cast<const void*>(u.values.data())}) {
    CHECK(reinterpret_cast<uintptr_t>(part) % 64 == 0);
  }
}

TEST_CASE("statistics combine for any set of node types") {
  const ScratchDirectory scratch;
  write_triangle(scratch.path / "a.mgd");
  const Dataset data = Dataset::open(scratch.path / "a.mgd");
  const FieldStatistics one = data.field_stats("u", NodeTypeSet{0}, Quantity::change);
  CHECK(one.count == 2);
  CHECK(one.mean[0] == 10);
  CHECK(one.std[0] == 2);
  const FieldStatistics both = data.field_stats("u", NodeTypeSet{0, 4}, Quantity::change);
  CHECK(both.count == 4);
  CHECK(both.mean[0] == 15);
  CHECK(both.std[0] == doctest::Approx(std::sqrt((8.0 + 8 + 100) / 4)).epsilon(1e-15));
  CHECK(data.field_stats("u", NodeTypeSet{1}).count == 0);
  CHECK(data.field_stats("u", NodeTypeSet{1}).std[0] == 0);
  CHECK(data.edge_stats().std == std::vector<double>{1, 1, 1});
  CHECK(data.node_type_counts()[4] == 3);
}

TEST_CASE("what does not exist is named with what does") {
  const ScratchDirectory scratch;
  write_triangle(scratch.path / "a.mgd");
  const Dataset data = Dataset::open(scratch.path / "a.mgd");
  const std::string split = message_of([&] { data.size("tests"); });
  CHECK(contains(
      split, "needed a split that exists, got \"tests\"; fix: did you mean \"test\"? It has: train, test"));
  CHECK_THROWS_AS(data.size("valid"), ConfigError);
  CHECK(contains(message_of([&] { data.trajectory(0).field("dept"); }), "did you mean \"depth\""));
  CHECK(contains(message_of([&] { data.field_stats("pressure"); }), "use one of: u, depth"));
  CHECK_THROWS_AS(data.trajectory("test", 1), InvalidArgument);
  CHECK_THROWS_AS(data.trajectory(-1), InvalidArgument);
  CHECK_THROWS_AS(data.trajectory(0).field("u").frame(3), InvalidArgument);
  CHECK_THROWS_AS(data.trajectory(0).field("u").frame(-1), InvalidArgument);
}

TEST_CASE("a missing, foreign, older or short file is told apart") {
  const ScratchDirectory scratch;
  const fs::path path = scratch.path / "a.mgd";
  CHECK(contains(message_of([&] { Dataset::open(path); }), "No such file"));
  CHECK(contains(message_of([&] { Dataset::open(scratch.path); }), "a folder"));
  std::ofstream(path) << std::string(500, 'x');
  CHECK(contains(message_of([&] { Dataset::open(path); }), "pack it first with `meshgrad convert`"));
  std::ofstream(path, std::ios::trunc) << "";
  CHECK_THROWS_AS(Dataset::open(path), DataError);
  write_triangle(path);
  const std::string good = read_text(path);
  std::ofstream(path, std::ios::binary) << good.substr(0, good.size() - 64);
  CHECK(contains(message_of([&] { Dataset::open(path); }), "cut short or damaged"));
  std::string other = good;
  other[8] = 9;
  std::ofstream(path, std::ios::binary) << other;
  CHECK(contains(message_of([&] { Dataset::open(path); }), "version 9"));
}

TEST_CASE("every flipped byte that matters is noticed") {
  const ScratchDirectory scratch;
  write_triangle(scratch.path / "a.mgd");
  const std::string good = read_text(scratch.path / "a.mgd");
  const double expected = touch_all(*PackedFile::from_bytes(AlignedBytes(good).bytes(), "good"));
  int unnoticed = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    std::string damaged = good;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    const AlignedBytes bytes(damaged);
    try {
      const double sum = touch_all(*PackedFile::from_bytes(bytes.bytes(), "damaged"));
      CHECK(sum == expected);
      ++unnoticed;
    } catch (const DataError&) {
    }
  }
  // The reserved bytes of the header, and the zeros between sections.
  CHECK(unnoticed < 48 + 4 * 64);
}

TEST_CASE("inconsistent records are caught before they are used") {
  const ScratchDirectory scratch;
  write_triangle(scratch.path / "a.mgd");
  const std::string good = read_text(scratch.path / "a.mgd");
  PackedTrailer trailer;
  std::memcpy(&trailer, good.data() + good.size() - sizeof trailer, sizeof trailer);
  std::mt19937_64 random(4);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = good;
    // Index records have no checksum of their own at opening: any 8 bytes of them, any value.
    const size_t first = trailer.mesh_offset;
    const size_t size =
        trailer.trajectory_offset + trailer.trajectory_count * sizeof(TrajectoryRecord) - first;
    const uint64_t value =
        (i % 3 == 0) ? random() : (i % 3 == 1 ? random() % 5000 : ~uint64_t{0} - random() % 200);
    std::memcpy(damaged.data() + first + random() % (size / 8) * 8, &value, sizeof value);
    const AlignedBytes bytes(damaged);
    try {
      touch_all(*PackedFile::from_bytes(bytes.bytes(), "damaged"));
    } catch (const DataError&) {
      ++refused;
    }
  }
  CHECK(refused > 1700);
}

TEST_CASE("edges of missing nodes are refused with a right checksum") {
  const ScratchDirectory scratch;
  PackedFileWriter writer(scratch.path / "a.mgd", 2, {});
  PackedMesh mesh{2, CellKind::triangle, kPositions, kTypes, kCells};
  MeshEdges edges = edges_from_cells(kCells, CellKind::triangle, 3, "triangle");
  SUBCASE("a sender out of range") { edges.senders[0] = 3; }
  SUBCASE("an edge number out of range") { edges.sender_order[5] = 6; }
  SUBCASE("not a permutation") { edges.sender_order[1] = edges.sender_order[0]; }
  SUBCASE("offsets that fall") { edges.receiver_offsets[1] = 5; }
  SUBCASE("receivers out of order") { std::swap(edges.receivers[0], edges.receivers[5]); }
  const int64_t number = writer.add_mesh(PackedFileWriter::mesh_key(mesh, {}), mesh, edges);
  writer.add_trajectory({"run", "train", number, 1, 0, 0, {}});
  DataStatistics statistics;
  statistics.edges.resize(3);
  writer.finish({}, statistics, "train", "");
  const Dataset data = Dataset::open(scratch.path / "a.mgd");
  CHECK(
      contains(message_of([&] { data.trajectory(0); }), "mesh 0] needed edges and cells of existing nodes"));
}

TEST_CASE("the first touch may happen in several threads at once") {
  const ScratchDirectory scratch;
  write_triangle(scratch.path / "a.mgd");
  for (int round = 0; round < 20; ++round) {
    const Dataset data = Dataset::open(scratch.path / "a.mgd");
    std::vector<float> got(4);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < got.size(); ++i) {
      threads.emplace_back([&, i] { got[i] = data.trajectory(0).field("u").frame(1)[0]; });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(got == std::vector<float>(4, 110.0F));
  }
}

TEST_CASE("a writer that does not finish leaves the old file") {
  const ScratchDirectory scratch;
  const fs::path path = scratch.path / "a.mgd";
  write_triangle(path);
  const std::string before = read_text(path);
  { PackedFileWriter writer(path, 2, {}); }
  CHECK(read_text(path) == before);
}

TEST_CASE("opening reads the index, not the data") {
  // 20,000 graphs on one mesh: opening must not verify them; a damaged one is found when it is touched.
  const ScratchDirectory scratch;
  const fs::path path = scratch.path / "many.mgd";
  PackedFileWriter writer(path, 2, {{"u", 1, false, ""}});
  PackedMesh mesh{2, CellKind::triangle, kPositions, kTypes, kCells};
  const int64_t number = writer.add_mesh(PackedFileWriter::mesh_key(mesh, {}), mesh,
                                         edges_from_cells(kCells, CellKind::triangle, 3, "triangle"));
  for (int i = 0; i < 20000; ++i) {
    const std::vector<float> u(3, static_cast<float>(i));
    writer.add_trajectory({"graph", "train", number, 1, 0, 0, {u}});
  }
  DataStatistics statistics;
  statistics.fields.assign(1, FieldMoments(1));
  statistics.edges.resize(3);
  writer.finish({"train"}, statistics, "train", "");
  {
    const uint64_t at = PackedFile::open(path)->trajectory(12345).offset;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.put('!');
  }
  const Dataset data = Dataset::open(path);
  CHECK(data.size("train") == 20000);
  CHECK(data.trajectory(19999).field("u").frame(0)[2] == 19999.0F);
  CHECK(
      contains(message_of([&] { data.trajectory(12345); }), "trajectory 12345 (graph)] needed the checksum"));
}
