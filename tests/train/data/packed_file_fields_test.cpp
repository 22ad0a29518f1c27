// SPDX-License-Identifier: Apache-2.0
// The packed file's fields on nodes, edges, cells and graphs, its node types, and files of version 1.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/data/packed_file_writer.h>

#include <cmath>
#include <cstring>

#include "paths.h"
#include "support.h"
#include "train/npz_arrays.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;
using meshgrad::test::npy;
using meshgrad::test::NpzArrays;
using meshgrad::test::read_text;
using meshgrad::test::ScratchDirectory;
using meshgrad::test::write_npz;

namespace {

namespace fs = std::filesystem;
using Doubles = std::vector<double>;

const fs::path kData = test::data_file("");

// A square of two triangles, one frame, with a field of every kind. The diagonal 0-2 is listed both ways, and
// the sides once.
NpzArrays steady_square(float scale) {
  return {{"mesh_pos", npy<float>("<f4", "(4, 2)", {0, 0, 1, 0, 1, 1, 0, 1})},
          {"cells", npy<int32_t>("<i4", "(2, 3)", {0, 1, 2, 0, 2, 3})},
          {"node_type", npy<int32_t>("<i4", "(4,)", {0, 11, 6, 6})},
          {"mesh_edge", npy<int64_t>("<i8", "(2, 6)", {0, 1, 2, 3, 0, 2, 1, 2, 3, 0, 2, 0})},
          {"temperature", npy<float>("<f4", "(4,)", {scale, 2 * scale, 3 * scale, 4 * scale})},
          {"node:label", npy<int64_t>("<i8", "(4,)", {5, int64_t{1} << 40, -3, 7})},
          {"edge:flux", npy<float>("<f4", "(6, 1)", {10, 11, 12, 13, 14, 15})},
          {"cell:zone", npy<uint8_t>("|u1", "(2,)", {200, 1})},
          {"graph:reynolds", npy<double>("<f8", "()", {100.0 * static_cast<double>(scale)})},
          {"graph:angles", npy<float>("<f4", "(2,)", {0.5F, -0.5F})}};
}

Dataset convert_folder(const fs::path& folder, ConvertReport* report = nullptr) {
  ConvertOptions options;
  options.input = folder;
  options.output = folder / "out.mgd";
  options.units = {{"temperature", "K"}, {"flux", "kg/s"}};
  const ConvertReport got = convert(options);
  if (report != nullptr) *report = got;
  return Dataset::open(options.output);
}

template <class T>
std::vector<T> frame_of(const TrajectoryView& trajectory, const char* field, int64_t t = 0) {
  const std::span<const T> values = trajectory.field(field).frame_of<T>(t);
  return {values.begin(), values.end()};
}

}  // namespace

TEST_CASE("folders of one-frame meshes convert with all fields") {
  const ScratchDirectory scratch;
  for (const char* split : {"train", "val", "test"}) fs::create_directories(scratch.path / split);
  for (int i = 0; i < 300; ++i) {
    write_npz(scratch.path / "train" / ("mesh_" + std::to_string(1000 + i) + ".npz"),
              steady_square(static_cast<float>(i + 1)), i % 2 == 0);
  }
  write_npz(scratch.path / "val" / "a_test.npz", steady_square(1002), true);  // its folder counts
  write_npz(scratch.path / "test" / "b.npz", steady_square(1003), true);
  ConvertReport report;
  const Dataset data = convert_folder(scratch.path, &report);
  CHECK(report.warnings.empty());
  CHECK(report.node_types == std::vector<int64_t>{300, 0, 0, 0, 0, 0, 600, 0, 0, 0, 0, 300});
  CHECK(data.size("train") == 300);
  CHECK(data.size("valid") == 1);
  CHECK(data.size("test") == 1);
  CHECK(data.meshes() == 1);
  CHECK(data.node_types() == 12);
  CHECK(data.field("temperature").unit == "K");
  CHECK(data.field("flux").unit == "kg/s");
  CHECK(data.field("flux").on == FieldOn::edge);
  CHECK(data.field("label").dtype == DType::i64);
  CHECK(data.field("zone").dtype == DType::i32);
  CHECK(data.field("zone").on == FieldOn::cell);
  CHECK(data.field("reynolds").on == FieldOn::graph);

  const TrajectoryView third = data.trajectory("train", 2);
  CHECK(third.frames() == 1);
  CHECK(third.name() == "train/mesh_1002.npz");
  CHECK(third.mesh().cell_count() == 2);
  CHECK(frame_of<float>(third, "temperature") == std::vector<float>{3, 6, 9, 12});
  CHECK(frame_of<int64_t>(third, "label") == std::vector<int64_t>{5, int64_t{1} << 40, -3, 7});
  CHECK(frame_of<int32_t>(third, "zone") == std::vector<int32_t>{200, 1});
  CHECK(frame_of<float>(third, "reynolds") == std::vector<float>{300});
  CHECK(frame_of<float>(third, "angles") == std::vector<float>{0.5F, -0.5F});
  CHECK(third.field("flux").rows == 10);
  // Every directed edge has the value of its column: of the other direction where only that is listed.
  const MeshView& mesh = third.mesh();
  const std::vector<float> flux = frame_of<float>(third, "flux");
  const int32_t listed[6][2] = {{0, 1}, {1, 2}, {2, 3}, {3, 0}, {0, 2}, {2, 0}};
  for (size_t e = 0; e < 10; ++e) {
    float expected = -1;
    for (int way = 0; way < 2; ++way) {
      for (int column = 0; column < 6 && expected < 0; ++column) {
        const int32_t* pair = listed[column];
        const bool same = way == 0 ? mesh.senders[e] == pair[0] && mesh.receivers[e] == pair[1]
                                   : mesh.senders[e] == pair[1] && mesh.receivers[e] == pair[0];
        if (same) expected = static_cast<float>(10 + column);
      }
    }
    CHECK(flux[e] == expected);
  }
  CHECK(contains(message_of([&] { third.field("label").frame(0); }),
                 "[field label] needed a field of f32, got"));
  CHECK(third.field("label").values.empty());
  CHECK_THROWS_AS(third.field("zone").frame_of<int32_t>(-1), InvalidArgument);
}

TEST_CASE("statistics have moments and ranges by node type") {
  const ScratchDirectory scratch;
  write_npz(scratch.path / "a_train.npz", steady_square(1), true);
  write_npz(scratch.path / "b_train.npz", steady_square(3), true);
  write_npz(scratch.path / "c_test.npz", steady_square(100), true);
  const Dataset data = convert_folder(scratch.path);
  const FieldStatistics all = data.field_stats("temperature");
  CHECK(all.count == 8);
  CHECK(all.mean == Doubles{5});
  CHECK(all.min == Doubles{1});
  CHECK(all.max == Doubles{12});
  const FieldStatistics wall = data.field_stats("temperature", {6});
  CHECK(wall.count == 4);
  CHECK(wall.min == Doubles{3});
  CHECK(data.field_stats("temperature", {11}).max == Doubles{6});
  CHECK(data.field_stats("temperature", {6, 11}, Quantity::change).count == 0);
  CHECK(data.field_stats("temperature", {6}, Quantity::change).min.empty());
  CHECK(data.field_stats("temperature", {70000}).count == 0);

  const FieldStatistics label = data.field_stats("label");
  CHECK(label.count == 8);
  CHECK(label.mean.empty());
  CHECK(label.min == Doubles{-3});
  CHECK(label.max == Doubles{1099511627776.0});
  CHECK(data.field_stats("zone", {6}).max == Doubles{200});  // cells have no type
  CHECK(data.field_stats("flux").count == 20);
  CHECK(data.field_stats("reynolds").mean == Doubles{200});
  CHECK(data.field_stats("reynolds").std == Doubles{100});
  CHECK(data.field_stats("angles").mean == Doubles{0.5, -0.5});
  CHECK(data.node_type_counts() == Doubles{2, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 2});
}

TEST_CASE("fields on edges, cells and graphs are cut by time") {
  const ScratchDirectory scratch;
  NpzArrays arrays = steady_square(1);
  std::vector<float> flux, zone, dose;
  for (int t = 0; t < 6; ++t) {
    for (int e = 0; e < 6; ++e) flux.push_back(static_cast<float>(10 * t + e));
    for (int c = 0; c < 2; ++c) zone.push_back(static_cast<float>(t + c));
    dose.push_back(static_cast<float>(t * t));
  }
  arrays["edge:flux"] = npy<float>("<f4", "(6, 6, 1)", flux);
  arrays["cell:zone"] = npy<float>("<f4", "(6, 2)", zone);
  arrays["graph:dose"] = npy<float>("<f4", "(6, 1)", dose);
  write_npz(scratch.path / "run.npz", arrays, false);
  const Dataset data = convert_folder(scratch.path);
  const TrajectoryView test = data.trajectory("test", 0);
  CHECK(test.frames() == 2);
  CHECK(frame_of<float>(test, "dose", 1) == std::vector<float>{25});
  CHECK(frame_of<float>(test, "zone", 0) == std::vector<float>{4, 5});
  CHECK(frame_of<float>(test, "flux", 1)[0] == 50.0F);  // edge 1 -> 0, listed as 0 -> 1 in column 0
  CHECK(frame_of<float>(test, "temperature", 1) == std::vector<float>{1, 2, 3, 4});
  CHECK(data.field_stats("dose", NodeTypeSet::all(), Quantity::change).count == 1);
  CHECK_FALSE(data.field("reynolds").dynamic);
}

TEST_CASE("a field that does not fit names file and field") {
  const ScratchDirectory scratch;
  NpzArrays arrays = steady_square(1);
  const auto error = [&] {
    write_npz(scratch.path / "a_train.npz", arrays, false);
    return message_of([&] { convert_folder(scratch.path); });
  };
  SUBCASE("rows") {
    arrays["edge:flux"] = npy<float>("<f4", "(5,)", {1, 2, 3, 4, 5});
    CHECK(contains(error(), "array edge:flux] needed [frames, edges, components] with 6 edges, got [5]"));
  }
  SUBCASE("edges without a list of them") {
    arrays.erase("mesh_edge");
    CHECK(contains(error(), "array edge:flux] needed the array mesh_edge [2, edges] beside it, got none"));
  }
  SUBCASE("a missing edge") {
    arrays["mesh_edge"] = npy<int64_t>("<i8", "(2, 6)", {0, 1, 2, 3, 3, 2, 1, 2, 3, 0, 3, 2});
    CHECK(contains(error(), "field edges] needed each edge of the mesh, got none from"));
  }
  SUBCASE("a pair that is no edge") {
    arrays["mesh_edge"] = npy<int64_t>("<i8", "(2, 6)", {0, 1, 2, 3, 0, 1, 1, 2, 3, 0, 2, 3});
    CHECK(contains(error(), "got 1 to 3 in column 5"));
  }
  SUBCASE("an edge twice") {
    arrays["mesh_edge"] = npy<int64_t>("<i8", "(2, 6)", {0, 1, 2, 3, 0, 0, 1, 2, 3, 0, 2, 2});
    CHECK(contains(error(), "got 0 to 2 in column 5 again"));
  }
  SUBCASE("node numbers of pairs outside the mesh") {
    arrays["mesh_edge"] = npy<int64_t>("<i8", "(2, 6)", {0, 1, 2, 3, 0, 9, 1, 2, 3, 0, 2, -5});
    CHECK(contains(error(), "got 9 to -1 in column 5"));
  }
  SUBCASE("cells without cells") {
    arrays.erase("cells");
    CHECK(contains(error(), "array cell:zone] needed the array cells beside it, got none"));
  }
  SUBCASE("two of a name") {
    arrays["cell:label"] = npy<int32_t>("<i4", "(2,)", {0, 1});
    CHECK(contains(error(), "field label] needed a name that no other field has, got \"label\""));
  }
  SUBCASE("no name") {
    arrays["graph:"] = npy<float>("<f4", "()", {1});
    CHECK(contains(error(), "needed a name that no other field has, got \"\""));
  }
  SUBCASE("not finite") {
    arrays["graph:reynolds"] = npy<float>("<f4", "(2,)", {1, NAN});
    CHECK(contains(error(), "field reynolds] needed finite numbers, got nan at frame 0, graph 0"));
  }
  SUBCASE("too large an integer") {
    arrays["node:label"] = npy<uint64_t>("<u8", "(4,)", {0, 1, 2, ~uint64_t{0}});
    CHECK(contains(error(),
                   "array node:label] needed integers up to 9223372036854775807, got 18446744073709551615"));
  }
  SUBCASE("another type than the first trajectory's") {
    NpzArrays other = arrays;
    other["node:label"] = npy<int32_t>("<i4", "(4,)", {1, 2, 3, 4});
    write_npz(scratch.path / "b_train.npz", other, false);
    CHECK(contains(error(), "label [1] static i64"));
  }
  CHECK_FALSE(fs::exists(scratch.path / "out.mgd"));
}

TEST_CASE("a unit of an unknown field names the fields") {
  const ScratchDirectory scratch;
  NpzArrays arrays = steady_square(1);
  arrays.erase("edge:flux");
  write_npz(scratch.path / "a_train.npz", arrays, false);
  CHECK(contains(message_of([&] { convert_folder(scratch.path); }),
                 "[unit] needed a field that exists, got \"flux\"; fix: use one of: "));
  CHECK_FALSE(fs::exists(scratch.path / "out.mgd"));
}

TEST_CASE("a file of version 1 opens with 9 node types") {
  const auto file = PackedFile::open(kData / "version1.mgd");
  CHECK(file->metadata().version == 1);
  CHECK(file->metadata().node_types == 9);
  const Dataset data = Dataset::open(kData / "version1.mgd");
  CHECK(data.fingerprint() == 0xd4670c874c1f7ad7ULL);  // checkpoints know their data by it
  CHECK(data.node_types() == 7);                       // 6 is the largest that the training split has
  CHECK(data.node_type_counts() == Doubles{6, 0, 0, 0, 3, 0, 3, 0, 0});
  CHECK(data.field("velocity").on == FieldOn::node);
  CHECK(data.field("velocity").dtype == DType::f32);
  CHECK(data.trajectory("train", 0).field("velocity").frame(2)[2 * 3] == 23.0F);
  CHECK(data.trajectory("valid", 0).mesh().nodes == 3);
  const FieldStatistics stats = data.field_stats("velocity");
  CHECK(stats.count == 12);
  CHECK(stats.mean == Doubles{11.5, -11.5});
  CHECK(stats.min.empty());
  CHECK(data.field_stats("velocity", {6}, Quantity::change).mean == Doubles{10, -10});

  // The same data written now: the same numbers.
  const ScratchDirectory scratch;
  ConvertOptions options;
  options.input = kData / "two_meshes.h5";
  options.output = scratch.path / "now.mgd";
  options.split = {0.5, 0.5};
  const std::string error = message_of([&] { convert(options); });
  if (contains(error, "a build of meshgrad with HDF5")) return;
  REQUIRE(error == "");
  const Dataset now = Dataset::open(options.output);
  for (const Quantity which : {Quantity::value, Quantity::change, Quantity::second_change}) {
    CHECK(now.field_stats("velocity", {4, 6}, which).mean ==
          data.field_stats("velocity", {4, 6}, which).mean);
    CHECK(now.field_stats("velocity", {0}, which).std == data.field_stats("velocity", {0}, which).std);
  }
  CHECK(now.edge_stats().std == data.edge_stats().std);
  CHECK(now.field_stats("velocity").max == Doubles{23, 0});
}

TEST_CASE("metadata with invalid places and types is refused") {
  PackedMetadata metadata;
  metadata.dim = 2;
  metadata.node_types = 3;
  metadata.fields = {{"a", 1, false, "", FieldOn::cell, DType::i64}};
  const std::string good = metadata_to_json(metadata);
  CHECK(metadata_from_json(good, 2, "x").fields[0].on == FieldOn::cell);
  CHECK(metadata_from_json(good, 2, "x").fields[0].dtype == DType::i64);
  const auto error = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    REQUIRE(contains(text, from));
    text.replace(text.find(from), from.size(), to);
    return message_of([&] { metadata_from_json(text, 2, "x"); });
  };
  CHECK(contains(error("\"cell\"", "\"face\""), "[x] needed \"on\" of a field as one of node, "));
  CHECK(contains(error("\"i64\"", "\"f64\""), "as one of f32, i32, i64, got \"f64\"; fix: "));
  CHECK(contains(error("\"node_types\": 3", "\"node_types\": 0"), "needed 1 to 65536 node types, got 0"));
  CHECK(contains(error("\"node_types\": 3", "\"node_types\": 65537"), "got 65537"));
  const std::string refused = "[x] needed the metadata of a packed file, got ";
  CHECK(contains(error("\"on\"", "\"of\""), refused + "one without a key that it needs; fix: "));
  CHECK(contains(error("\"dim\": 2", "\"dim\": {}"), refused + "a value of another type; fix: "));
  CHECK(contains(error("\"fields\": [", "\"fields\": [,"), refused + "an error in line "));
  CHECK(contains(error("\"dim\": 2", "\"dim\": 1e999"),
                 refused + "a number beyond the range of a double; fix: "));
}

TEST_CASE("an uncounted node type is refused with a right checksum") {
  const ScratchDirectory scratch;
  write_npz(scratch.path / "a_train.npz", steady_square(1), true);
  convert_folder(scratch.path);
  std::string text = read_text(scratch.path / "out.mgd");
  PackedTrailer trailer;
  std::memcpy(&trailer, text.data() + text.size() - sizeof trailer, sizeof trailer);
  MeshRecord record;
  std::memcpy(&record, text.data() + trailer.mesh_offset, sizeof record);
  const uint64_t at = record.offset + mesh_layout(record)->node_type;
  const int32_t type = 12;
  std::memcpy(text.data() + at, &type, sizeof type);
  const auto bytes = std::as_bytes(std::span(text));
  record.checksum = section_checksum(record, bytes.subspan(record.offset, record.bytes));
  std::memcpy(text.data() + trailer.mesh_offset, &record, sizeof record);
  std::ofstream(scratch.path / "bad.mgd", std::ios::binary) << text;
  const Dataset data = Dataset::open(scratch.path / "bad.mgd");
  CHECK(contains(message_of([&] { data.trajectory(0); }), "mesh 0] needed "));
}
