// SPDX-License-Identifier: Apache-2.0
// From files in the formats of others to a data set: splits, statistics, and bad data.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/convert_inputs.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "paths.h"
#include "train/deepmind_folder.h"
#include "train/scratch_directory.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;
using meshgrad::test::ScratchDirectory;
using meshgrad::test::square_meta;
using meshgrad::test::SquareRecord;
using meshgrad::test::tfrecord_of;
using meshgrad::test::write_bytes;
using meshgrad::test::write_meta;

namespace {

namespace fs = std::filesystem;

const fs::path kTestData = test::data_file("");

ConvertOptions options_for(const fs::path& input, const fs::path& output) {
  ConvertOptions options;
  options.input = input;
  options.output = output;
  return options;
}

// Converts one folder with the given records of 3 frames, as train.tfrecord; the error or "".
std::string error_of(const std::vector<SquareRecord>& records) {
  const ScratchDirectory scratch;
  write_meta(scratch.path, square_meta(3));
  write_bytes(scratch.path / "train.tfrecord", tfrecord_of(records));
  const std::string error = message_of([&] { convert(options_for(scratch.path, scratch.path / "a.mgd")); });
  CHECK(fs::exists(scratch.path / "a.mgd") == error.empty());
  return error;
}

struct Naive {
  double count = 0, mean = 0, std = 0;
};

// Mean and standard deviation by two plain passes over everything that qualifies.
Naive naive(const Dataset& data, const std::string& field, const NodeTypeSet& types, Quantity which,
            int component) {
  std::vector<double> values;
  for (int64_t i = 0; i < data.size("train"); ++i) {
    const TrajectoryView run = data.trajectory("train", i);
    const FieldView view = run.field(field);
    const auto at = [&](int64_t t, int64_t n) {
      return static_cast<double>(view.frame(t)[static_cast<size_t>(n * view.components + component)]);
    };
    for (int64_t t = 0; t < view.frames; ++t) {
      for (int64_t n = 0; n < view.rows; ++n) {
        if (!types.contains(run.mesh().node_type[static_cast<size_t>(n)])) continue;
        if (which == Quantity::value) values.push_back(at(t, n));
        if (which == Quantity::change && t + 1 < view.frames) values.push_back(at(t + 1, n) - at(t, n));
        if (which == Quantity::second_change && t > 0 && t + 1 < view.frames) {
          values.push_back(at(t + 1, n) - 2 * at(t, n) + at(t - 1, n));
        }
      }
    }
  }
  Naive result;
  result.count = static_cast<double>(values.size());
  result.mean = std::accumulate(values.begin(), values.end(), 0.0) / result.count;
  double squares = 0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  result.std = std::sqrt(squares / result.count);
  return result;
}

bool near(double a, double b, double scale) { return std::abs(a - b) <= 1e-11 * scale; }

}  // namespace

TEST_CASE("the bundled sample converts with the right statistics") {
  const ScratchDirectory scratch;
  int64_t calls = 0;
  ConvertProgress last;
  ConvertOptions options = options_for(kTestData / "cylinder_flow_sample", scratch.path / "a.mgd");
  options.units = {{"velocity", "m/s"}};
  options.progress = [&](const ConvertProgress& progress) {
    ++calls;
    last = progress;
  };
  const ConvertReport report = convert(options);
  CHECK(calls == 5);
  CHECK(last.trajectories == last.total_trajectories);
  CHECK(last.bytes == last.total_bytes);
  CHECK(last.bytes == 1574640 + 4692248 + 1592028);
  CHECK(report.format == "deepmind");
  CHECK(report.trajectories == 5);
  CHECK(report.frames == 300);
  CHECK(report.meshes == 5);
  CHECK(report.nodes_min == 2042);
  CHECK(report.nodes_max == 2109);
  CHECK(report.warnings.empty());
  CHECK(report.split_frames == std::vector<int64_t>{180, 60, 60});

  const Dataset data = Dataset::open(scratch.path / "a.mgd");
  CHECK(data.size("train") == 3);
  CHECK(data.size("valid") == 1);
  CHECK(data.size("test") == 1);
  CHECK(data.dt() == 0.01);
  CHECK(data.field("velocity").unit == "m/s");
  CHECK(data.trajectory("train", 1).name() == "train.tfrecord: record 1");
  for (const auto& field : data.fields()) {
    for (const Quantity which : {Quantity::value, Quantity::change, Quantity::second_change}) {
      for (const NodeTypeSet& types : {NodeTypeSet{0, 5}, NodeTypeSet{6}, NodeTypeSet::all()}) {
        const FieldStatistics got = data.field_stats(field.name, types, which);
        for (int c = 0; c < field.components; ++c) {
          const Naive expected = naive(data, field.name, types, which, c);
          CHECK(got.count == expected.count);
          CHECK(near(got.mean[static_cast<size_t>(c)], expected.mean, 1));
          CHECK(near(got.std[static_cast<size_t>(c)], expected.std, 1));
        }
      }
    }
  }
}

TEST_CASE("edge statistics weigh each mesh by its trajectories") {
  const ScratchDirectory scratch;
  write_meta(scratch.path, square_meta(3));
  SquareRecord wide(3);
  for (size_t i = 0; i < wide.mesh_pos.size(); i += 2) wide.mesh_pos[i] *= 3;
  write_bytes(scratch.path / "train.tfrecord", tfrecord_of({SquareRecord(3), wide, SquareRecord(3, 2)}));
  write_bytes(scratch.path / "test.tfrecord", tfrecord_of({wide}));
  const ConvertReport report = convert(options_for(scratch.path, scratch.path / "a.mgd"));
  CHECK(report.meshes == 2);
  const Dataset data = Dataset::open(scratch.path / "a.mgd");
  const FieldStatistics edges = data.edge_stats();
  CHECK(edges.count == 30);  // three trajectories of ten edges
  CHECK(edges.mean[0] == doctest::Approx(0));
  // 4 of a square's ten edges have |dx| = 1 and 2 are diagonals: 2 squares of width 1, one of width 3.
  CHECK(edges.std[0] == doctest::Approx(std::sqrt((2 * 6 * 1.0 + 6 * 9.0) / 30)));
  const double norms = 2 * (8 + 2 * std::sqrt(2.0)) + (4 * 3 + 4 * 1 + 2 * std::sqrt(10.0));
  CHECK(edges.mean[2] == doctest::Approx(norms / 30));
  CHECK(data.node_type_counts()[0] == 3 * 3 * 2);
  CHECK(data.trajectory("train", 0).mesh().index == data.trajectory("train", 2).mesh().index);
}

TEST_CASE("shares are whole, complete, and leave no trajectory out") {
  const std::vector<double> usual{0.8, 0.1, 0.1};
  CHECK(whole_shares(10, usual, 1) == std::vector<int64_t>{8, 1, 1});
  CHECK(whole_shares(3, usual, 1) == std::vector<int64_t>{1, 1, 1});
  CHECK(whole_shares(2, usual, 1) == std::vector<int64_t>{1, 0, 1});
  CHECK(whole_shares(6, usual, 2) == std::vector<int64_t>{2, 2, 2});
  CHECK(whole_shares(40, usual, 2) == std::vector<int64_t>{32, 4, 4});
  CHECK(whole_shares(7, {1.0}, 1) == std::vector<int64_t>{7});
  CHECK(whole_shares(7, {0.5, 0, 0.5}, 1) == std::vector<int64_t>{3, 0, 4});
}

TEST_CASE("ten trajectories in one file are split in order") {
  const ScratchDirectory scratch;
  write_meta(scratch.path, square_meta(3));
  std::vector<SquareRecord> records;
  for (int i = 0; i < 10; ++i) records.emplace_back(3, static_cast<float>(i + 1));
  write_bytes(scratch.path / "runs.tfrecord", tfrecord_of(records));
  ConvertOptions options = options_for(scratch.path, scratch.path / "a.mgd");
  SUBCASE("as 0.8, 0.1, 0.1 unless told") {
    convert(options);
    const Dataset data = Dataset::open(options.output);
    CHECK(data.size("train") == 8);
    CHECK(data.trajectory("valid", 0).field("velocity").frame(0)[7] == records[8].velocity[7]);
    CHECK(data.trajectory("test", 0).field("velocity").frame(0)[7] == records[9].velocity[7]);
  }
  SUBCASE("as told") {
    options.split = {0.5, 0.0, 0.5};
    convert(options);
    const Dataset data = Dataset::open(options.output);
    CHECK(data.size("train") == 5);
    CHECK(data.size("test") == 5);
    CHECK_FALSE(data.has_split("valid"));
  }
  SUBCASE("not as nonsense") {
    for (const std::vector<double>& bad :
         {std::vector<double>{0.5}, {0.5, 0.6}, {0, 1}, {1.5, -0.5}, {.7, .1, .1, .1}}) {
      options.split = bad;
      CHECK(contains(message_of([&] { convert(options); }), "[split] needed 1 to 3 fractions"));
    }
  }
}

TEST_CASE("one trajectory is split by time") {
  const ScratchDirectory scratch;
  write_meta(scratch.path, square_meta(20));
  const SquareRecord record(20);
  write_bytes(scratch.path / "train.tfrecord", tfrecord_of({record}));
  const ConvertReport report = convert(options_for(scratch.path, scratch.path / "a.mgd"));
  REQUIRE(report.warnings.size() == 1);
  CHECK(contains(report.warnings[0], "split by time"));
  CHECK(report.meshes == 1);
  const Dataset data = Dataset::open(scratch.path / "a.mgd");
  CHECK(data.trajectory("train", 0).frames() == 16);
  const TrajectoryView test = data.trajectory("test", 0);
  CHECK(test.frames() == 2);
  CHECK(test.first_frame() == 18);
  CHECK(test.field("velocity").frame(1)[7] == record.velocity[19 * 8 + 7]);
  CHECK(data.field_stats("velocity").count == 16 * 4);
  CHECK(data.field_stats("velocity", NodeTypeSet::all(), Quantity::change).count == 15 * 4);
}

TEST_CASE("bad data stops convert and leaves no files") {
  CHECK(error_of({SquareRecord(3)}) == "");
  SquareRecord bad(3);
  SUBCASE("NaN") {
    bad.velocity[8 + 5] = std::numeric_limits<float>::quiet_NaN();
    const std::string error = error_of({SquareRecord(3), bad});
    CHECK(contains(
        error,
        "train.tfrecord: record 1: field velocity] needed finite numbers, got nan at frame 1, node 2"));
  }
  SUBCASE("infinity in the positions") {
    bad.mesh_pos[3] = std::numeric_limits<float>::infinity();
    CHECK(contains(error_of({bad}),
                   "record 0: field mesh_pos] needed finite numbers, got inf at frame 0, node 1"));
  }
  SUBCASE("a cell out of range") {
    bad.cells[4] = 4;
    CHECK(contains(error_of({bad}), "record 0: field cells] needed node numbers in 0..3, got 4 in cell 1"));
  }
  SUBCASE("no edge") {
    bad.cells = {1, 1, 1};
    CHECK(contains(error_of({bad}), "record 0: field cells] needed a mesh with at least one edge"));
  }
  SUBCASE("no cells") {
    bad.cells.clear();
    CHECK(contains(error_of({bad}), "field cells]"));
  }
  SUBCASE("an unknown node type") {
    bad.node_type[2] = 65536;
    CHECK(contains(error_of({bad}), "field node_type] needed types 0..65535, got 65536 at node 2"));
  }
  SUBCASE("fields of different sizes") {
    bad.mesh_pos.insert(bad.mesh_pos.end(), {2, 2});
    CHECK(contains(error_of({bad}),
                   "record 0: field velocity] needed 5 nodes, as in mesh_pos, got 4 in frame 0"));
  }
  SUBCASE("too few frames") {
    CHECK(contains(error_of({SquareRecord(2)}), "record 0: field velocity] needed 3 frames"));
  }
}

TEST_CASE("damaged and missing files") {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path / "train.tfrecord";
  write_meta(scratch.path, square_meta(3));
  std::vector<std::byte> bytes = tfrecord_of({SquareRecord(3), SquareRecord(3)});
  const auto run = [&] {
    return message_of([&] { convert(options_for(scratch.path, scratch.path / "a.mgd")); });
  };
  SUBCASE("cut short") {
    bytes.resize(bytes.size() - 10);
    write_bytes(file, bytes);
    CHECK(contains(run(), "train.tfrecord: record 1] needed "));
    CHECK(contains(run(), "the file is cut short"));
  }
  SUBCASE("a wrong CRC") {
    bytes[bytes.size() / 2 + 30] ^= std::byte{1};
    write_bytes(file, bytes);
    CHECK(contains(run(), "train.tfrecord: record 1] needed the CRC 0x"));
  }
  SUBCASE("empty") {
    write_bytes(file, {});
    CHECK(contains(run(), "got an empty file"));
  }
  SUBCASE("no meta.json") {
    write_bytes(file, bytes);
    fs::remove(scratch.path / "meta.json");
    CHECK(contains(run(), "meta.json] needed meta.json beside the TFRecord files"));
  }
  SUBCASE("nothing to read") {
    CHECK(contains(run(),
                   "needed files ending in .tfrecord, .tfrecords, .npz, .h5, .hdf5, .vtu, .vtp, .vtk, .vtm, "
                   ".pvtu, .pvtp, .vtpd, .pvd, "
                   ".series, .xdmf or .xmf"));
    CHECK(contains(message_of([&] { convert(options_for(scratch.path / "no", scratch.path / "a.mgd")); }),
                   "got a missing path"));
  }
  CHECK_FALSE(fs::exists(scratch.path / "a.mgd"));
}

TEST_CASE("data without a train split say where statistics are from") {
  const ScratchDirectory scratch;
  write_meta(scratch.path, square_meta(3));
  write_bytes(scratch.path / "valid.tfrecord", tfrecord_of({SquareRecord(3)}));
  write_bytes(scratch.path / "test.tfrecord", tfrecord_of({SquareRecord(3, 2)}));
  const ConvertReport report = convert(options_for(scratch.path, scratch.path / "a.mgd"));
  CHECK(report.statistics_split == "valid");
  REQUIRE(report.warnings.size() == 1);
  CHECK(contains(report.warnings[0], "there is no train split"));
}

TEST_CASE("HDF5: trajectories of both kinds and rows by name") {
  const ScratchDirectory scratch;
  ConvertOptions options = options_for(kTestData / "two_meshes.h5", scratch.path / "a.mgd");
  options.split = {1.0};
  const std::string error = message_of([&] { convert(options); });
  if (contains(error, "a build of meshgrad with HDF5")) {
    MESSAGE("[SKIPPED] no HDF5 in this build");
    return;
  }
  REQUIRE(error == "");
  const Dataset data = Dataset::open(options.output);
  REQUIRE(data.size("train") == 2);
  CHECK(data.dim() == 2);  // z is 0 everywhere
  const TrajectoryView square = data.trajectory("train", 0);
  CHECK(square.name() == "two_meshes.h5: data/0");
  CHECK(square.mesh().nodes == 4);
  CHECK(square.mesh().edges == 8);
  CHECK(square.mesh().cells.empty());
  CHECK(square.mesh().node_type[3] == 6);
  CHECK(square.field("velocity").frame(2)[2 * 3] == 23.0F);
  CHECK(square.field("velocity").frame(2)[2 * 3 + 1] == -23.0F);
  CHECK(data.trajectory("train", 1).mesh().nodes == 3);

  // A z that is the same everywhere only in the first trajectory is not dropped in silence.
  options.input = kTestData / "flat_then_deep.h5";
  CHECK(contains(message_of([&] { convert(options); }), "nodal_data: z] needed the same everywhere"));
  options.input = kTestData / "two_meshes_unnamed.h5";
  CHECK(contains(message_of([&] { convert(options); }), "fix: give them: --fields"));
  options.fields = {"x", "y", "z", "u_x", "u_y"};
  CHECK(
      contains(message_of([&] { convert(options); }), "needed 6 names, one for each row, got x,y,z,u_x,u_y"));
  for (const char* name : {"y", "u_x"}) {
    options.fields = {"x", "y", "z", "u_x", "u_y", name};
    CHECK(contains(message_of([&] { convert(options); }), "needed rows of different names, got \""));
  }
  options.fields = {"x", "y", "z", "u_x", "u_y", "kind"};
  const ConvertReport report = convert(options);
  CHECK(report.node_types[0] == 7 * 3);
  CHECK(contains(report.warnings.back(), "all nodes were taken as normal"));
  CHECK(Dataset::open(options.output).field("u").components == 2);
  write_bytes(scratch.path / "bad.h5", std::as_bytes(std::span("no HDF5")));
  options.input = scratch.path / "bad.h5";
  CHECK(contains(message_of([&] { convert(options); }), "needed an HDF5 file"));
}

TEST_CASE("HDF5 of any layout: similar groups are trajectories") {
  const ScratchDirectory scratch;
  ConvertOptions options;
  options.input = test::data_file("hdf5/arrays.h5");
  options.output = scratch.path / "arrays.mgd";
  options.split = {1.0};
  options.map = {
      {"positions", "mesh/xyz"}, {"cells", "mesh/triangles"}, {"velocity", "u"}, {"graph:re", "re"}};
  options.axes = {{"u", "frames,nodes"}};  // three frames, not three components
  try {
    convert(options);
  } catch (const DataError& error) {
    REQUIRE(contains(error.what(), "a build of meshgrad with HDF5"));
    return;
  }
  const Dataset dataset = Dataset::open(options.output);
  REQUIRE(dataset.trajectories() == 3);
  CHECK(dataset.fields().size() == 2);
  for (int64_t i = 0; i < 3; ++i)
    CHECK(contains(std::string(dataset.trajectory(i).name()),
                   "runs/" + std::to_string(std::array{1, 2, 10}[static_cast<size_t>(i)])));
  options.map = {{"positions", "mesh/xy"}};
  CHECK(contains(message_of([&] { convert(options); }), "mesh/xyz [4, 2]"));
  options.map = {};
  CHECK(convert(options).fields.front().name == "u");
}
