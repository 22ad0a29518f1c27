// SPDX-License-Identifier: Apache-2.0
// Predictions on data without a solution: the same bits as with one, and what is said of data that do not
// fit.
#include <doctest/doctest.h>
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/tools/program/boundary_table.h>
#include <meshgrad/train/tools/program/prediction_folder.h>

#include <algorithm>

#include "train/fault_case.h"
#include "train/npz_arrays.h"
#include "train/process.h"
#include "train/steady_case.h"
#include "train/vtu_file.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::check_fails;
using test::contains;
using test::message_of;
using test::Outcome;
using test::run_meshgrad;

/// A field of the first trajectory of what convert reads.
std::vector<float> field_in(const fs::path& file, const std::string& name) {
  const test::ScratchDirectory scratch;
  ConvertOptions options;
  options.input = file;
  options.output = scratch.path / "read.mgd";
  options.split = {1.0};
  convert(options);
  const Dataset data = Dataset::open(options.output);
  const FieldView field = data.trajectory(0).field(name);
  return {field.values.begin(), field.values.end()};
}

std::string shape(std::initializer_list<size_t> sizes) {
  std::string text = "(";
  for (const size_t size : sizes) text += std::to_string(size) + ", ";
  return text + ")";
}

/// The mesh and the first `frames` frames of a wave.
fs::path write_wave(const fs::path& path, int side, double phase, int64_t frames, test::NpzArrays more = {}) {
  const test::SquareRecord record = test::wave_record(side, frames, phase);
  const size_t nodes = record.node_type.size();
  more["mesh_pos"] = test::npy<float>("<f4", shape({nodes, 2}), record.mesh_pos);
  more["cells"] = test::npy<int32_t>("<i4", shape({record.cells.size() / 3, 3}), record.cells);
  more["node_type"] = test::npy<int32_t>("<i4", shape({nodes}), record.node_type);
  const auto count = static_cast<size_t>(frames);
  more["velocity"] =
      test::npy<float>("<f4", frames == 1 ? shape({nodes, 2}) : shape({count, nodes, 2}), record.velocity);
  test::write_npz(path, more, false);
  return path;
}

struct WaveRun {
  test::ScratchDirectory scratch;
  Config config;
  WaveRun() {
    config = test::small_config(scratch.path, test::pack_waves(scratch.path));
    config.train.steps = 4;
    config.train.validate_every = 0;
    test::train_here(config);
  }
  Outcome roll_out(std::vector<std::string> words) const {
    std::vector<std::string> all{"rollout", config.run.dir};
    all.insert(all.end(), words.begin(), words.end());
    return run_meshgrad(all);
  }
};

TEST_CASE("a rollout from one frame is that of the whole data") {
  const WaveRun run;
  const fs::path& folder = run.scratch.path;
  const fs::path known = folder / "known", out = folder / "out";
  const fs::path wave = write_wave(folder / "new wave.npz", 7, 3.0, 1);
  REQUIRE(run.roll_out({"--steps", "5", "--boundary", "initial", "-o", known.string()}).code == 0);
  const Outcome outcome = run.roll_out({wave.string(), "--steps", "5", "-o", out.string()});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(contains(outcome.out, "new_wave/rollout.pvd"));
  CHECK(contains(outcome.out, "keep the values of the first frame"));
  CHECK_FALSE(contains(outcome.out, "RMSE"));
  for (const int step : {0, 1, 5}) {
    const std::string file = "frame_0000" + std::to_string(step) + ".vtu";
    CHECK(field_in(out / "new_wave" / file, "velocity") == field_in(known / file, "velocity"));
  }
  CHECK_FALSE(contains(test::read_text(out / "new_wave" / "frame_00005.vtu"), "velocity_truth"));
  // All the data: nodes that are not predicted may follow it.
  REQUIRE(run.roll_out({"--steps", "5", "--boundary", "data", "-o", known.string()}).code == 0);
  write_wave(wave, 7, 3.0, 14);
  REQUIRE(run.roll_out({wave.string(), "--steps", "5", "--boundary", "data", "-o", out.string()}).code == 0);
  CHECK(field_in(out / "new_wave" / "frame_00005.vtu", "velocity") ==
        field_in(known / "frame_00005.vtu", "velocity"));
  check_fails({"rollout", run.config.run.dir, wave.string(), "--steps", "14", "--boundary", "data"}, 1,
              {"field velocity] needed 15 frames for 14 steps", "got 14", "lower --steps"});
}

TEST_CASE("a table sets nodes that are not predicted") {
  const WaveRun run;
  const fs::path& folder = run.scratch.path;
  const fs::path wave = write_wave(folder / "w.npz", 7, 3.0, 1), table = folder / "inflow.csv";
  test::write_text(table,
                   "\xef\xbb\xbftime,node_type,velocity[0]\n0, 4, 1.0\n# a ramp\n2.0, 4, 3.0\n0,7,1\n");
  const Outcome outcome = run.roll_out(
      {wave.string(), "--steps", "6", "--boundary", table.string(), "-o", (folder / "out").string()});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(contains(outcome.out, "has no node of type 7"));
  const std::vector<int32_t> types = test::wave_record(7, 1, 3.0).node_type;
  const std::vector<float> first = field_in(folder / "out" / "w" / "frame_00000.vtu", "velocity");
  const double dt = Dataset::open(run.config.data.path).dt();
  for (const int step : {1, 3, 6}) {
    const std::vector<float> now =
        field_in(folder / "out" / "w" / ("frame_0000" + std::to_string(step) + ".vtu"), "velocity");
    const double wanted = 1.0 + 2.0 * std::min(1.0, step * dt / 2.0);
    for (size_t node = 0; node < types.size(); ++node) {
      if (types[node] == 4) CHECK(now[2 * node] == doctest::Approx(wanted).epsilon(1e-6));
      if (types[node] == 4) CHECK(now[2 * node + 1] == first[2 * node + 1]);
      if (types[node] == 6) CHECK(now[2 * node] == first[2 * node]);
    }
  }
}

TEST_CASE("what is far from the training is named") {
  const WaveRun run;
  const fs::path& folder = run.scratch.path;
  const fs::path wave = write_wave(folder / "w.npz", 7, 3.0, 1);
  const auto printed = [&](const fs::path& file) {
    const Outcome outcome = run.roll_out({file.string(), "--steps", "1", "-o", (folder / "out").string()});
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    std::string text;  // without the breaks of lines
    for (const char c : outcome.out)
      if (c != '\n' && !(c == ' ' && text.ends_with(' '))) text += c;
    return text;
  };
  CHECK_FALSE(contains(printed(wave), "far from the training"));
  const test::SquareRecord record = test::wave_record(25, 1, 3.0);
  std::vector<float> positions = record.mesh_pos, velocity = record.velocity;
  for (float& value : positions) value *= 10.0F;
  for (float& value : velocity) value += 1.0F;
  test::write_npz(folder / "far.npz",
                  {{"mesh_pos", test::npy<float>("<f4", "(625, 2)", positions)},
                   {"cells", test::npy<int32_t>("<i4", "(1152, 3)", record.cells)},
                   {"node_type", test::npy<int32_t>("<i4", "(625,)", record.node_type)},
                   {"velocity", test::npy<float>("<f4", "(625, 2)", velocity)}},
                  false);
  const std::string far = printed(folder / "far.npz");
  CAPTURE(far);
  CHECK(contains(far, "far from the training: velocity[0] is 1."));
  CHECK(contains(far, "far from the training: velocity[1] is 0.8"));
  CHECK(contains(far, "far from the training: meshes have 625 to 625 nodes, in training 49 to 64"));
  CHECK(contains(far, "far from the training: edges of a mesh are"));
}

TEST_CASE("a rollout replaces neither its input nor through a link") {
  const WaveRun run;
  const fs::path& folder = run.scratch.path;
  const fs::path wave = write_wave(folder / "w.npz", 7, 3.0, 1), out = folder / "out";
  REQUIRE(run.roll_out({wave.string(), "--steps", "1", "-o", out.string()}).code == 0);
  const fs::path made = out / "w";
  check_fails({"rollout", run.config.run.dir, made.string(), "--steps", "1", "-o", made.string()}, 1,
              {"needed a folder that the command does not read"});
  CHECK(fs::exists(made / "frame_00001.vtu"));
  fs::rename(made, folder / "kept");
  fs::create_directory_symlink(folder / "kept", made);
  check_fails({"rollout", run.config.run.dir, wave.string(), "--steps", "1", "-o", out.string()}, 1,
              {"needed a folder, or a new name, got a link"});
  CHECK(fs::exists(folder / "kept" / "frame_00001.vtu"));
  fs::rename(run.config.data.path, folder / "moved.mgd");
  check_fails(
      {"rollout", run.config.run.dir, wave.string(), "--steps", "1"}, 1,
      {"the data that the run was trained on, with whose options new data are read, got no such file"});
}

TEST_CASE("a boundary table says what is wrong with it") {
  const test::ScratchDirectory scratch;
  const std::vector<FieldInfo> targets{{.name = "u", .components = 2}, {.name = "p", .components = 1}};
  const std::vector<int64_t> predicted{0, 5};
  const fs::path path = scratch.path / "t.csv";
  const auto error = [&](const std::string& text) {
    test::write_text(path, text);
    return message_of([&] { BoundaryTable(path, targets, predicted); });
  };
  CHECK(
      contains(error("t,type,p\n"), "t.csv:1] needed the header time,node_type,FIELD..., got \"t,type,p\""));
  CHECK(contains(error("time,node_type,u\n"), "needed columns of u[0], u[1], p, got \"u\""));
  CHECK(contains(error("time,node_type,p,p\n"), "needed each column once, got p"));
  CHECK(contains(error("time,node_type,p\n0,4\n"), "t.csv:2] needed 3 columns, got 2"));
  CHECK(contains(error("time,node_type,p\n0,4,1e\n"), "needed a finite number, got \"1e\""));
  CHECK(contains(error("time,node_type,p\n0,4,nan\n"), "needed a finite number, got \"nan\""));
  CHECK(contains(error("time,node_type,p\n0,5,1\n"), "needed a node type that is not predicted, got 5"));
  CHECK(
      contains(error("time,node_type,p\n0,inlet,1\n"), "needed a node type, a whole number, got \"inlet\""));
  CHECK(contains(error("time,node_type,p\n1,4,1\n"), "a first row of node type 4 at time 0, got time 1"));
  CHECK(contains(error("time,node_type,p\n0,4,1\n0,4,2\n"),
                 "times of node type 4 that increase, got 0 after 0"));
  CHECK(contains(error("time,node_type,p\n"), "at least one line"));
  test::write_text(path, "time,node_type,p,u[1]\r\n0,4,1,10\r\n0,6,5,50\r\n2,4,2,20\r\n");
  const BoundaryTable table(path, targets, predicted);
  CHECK(table.at(4, 0.5) == std::vector<double>{1.25, 12.5});
  CHECK(table.at(4, 3) == std::vector<double>{2, 20});
  CHECK(table.at(6, 9) == std::vector<double>{5, 50});
  CHECK(table.at(1, 0).empty());
}

TEST_CASE("steady fields of a new mesh need no solution") {
  const test::ScratchDirectory scratch;
  Config config = test::steady_config(scratch.path);
  config.data.inputs = {"g", "load"};
  config.train.steps = 4;
  config.train.validate_every = 0;
  test::train_here(config);
  const fs::path known = scratch.path / "known", out = scratch.path / "out";
  REQUIRE(run_meshgrad({"predict", config.run.dir, "-o", known.string()}).code == 0);
  const Dataset data = Dataset::open(config.data.path);
  const TrajectoryView square = data.trajectory("test", 0);
  const auto list = [](const auto& values) { return std::vector(values.begin(), values.end()); };
  const std::vector<float> g = list(square.field("g").values);
  const size_t nodes = g.size();
  test::NpzArrays arrays{
      {"mesh_pos", test::npy<float>("<f4", shape({nodes, 2}), list(square.mesh().positions))},
      {"cells",
       test::npy<int32_t>("<i4", shape({square.mesh().cells.size() / 3, 3}), list(square.mesh().cells))},
      {"node_type", test::npy<int32_t>("<i4", shape({nodes}), list(square.mesh().node_type))},
      {"g", test::npy<float>("<f4", shape({nodes, 1}), g)}};
  const fs::path file = scratch.path / "part.npz";
  test::write_npz(file, arrays, false);
  check_fails({"predict", config.run.dir, file.string()}, 1,
              {"needed the field \"load\", which the model reads, got g; fix: add it to the data"});
  arrays["graph:load"] = test::npy<float>("<f4", "(1,)", {list(square.field("load").values).front()});
  test::write_npz(file, arrays, false);
  const Outcome outcome = run_meshgrad({"predict", config.run.dir, file.string(), "-o", out.string()});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(contains(outcome.out, "u at nodes of type 6 is nan"));
  const std::string vtu = test::read_text(out / "part.vtu"), nan("\0\0\xc0\x7f", 4);
  int64_t nans = 0;
  for (size_t at = vtu.find(nan); at != vtu.npos; at = vtu.find(nan, at + 4)) ++nans;
  CHECK(nans == std::ranges::count(square.mesh().node_type, 6));
  // Values at the nodes that are not predicted, and whatever at the others.
  std::vector<float> u = list(square.field("u").values);
  for (size_t node = 0; node < nodes; ++node)
    if (square.mesh().node_type[node] == 0) u[node] = 17.0F;
  arrays["u"] = test::npy<float>("<f4", shape({nodes, 1}), u);
  test::write_npz(file, arrays, false);
  const Outcome given = run_meshgrad({"predict", config.run.dir, file.string(), "-o", out.string()});
  CHECK(contains(given.out, "u at nodes of type 6 is from the data"));
  CHECK(field_in(out / "part.vtu", "u") == field_in(known / "mesh_00000_test.vtu", "u"));
  // Nothing of a user's is replaced.
  test::write_text(out / "part.vtu", "mine");
  check_fails({"predict", config.run.dir, file.string(), "-o", out.string()}, 1,
              {"part.vtu] needed a new name or a file that meshgrad wrote there"});
  check_fails({"predict", config.run.dir, file.string(), "--split", "test"}, 2, {"--split"});
  check_fails({"rollout", config.run.dir, file.string(), "--steps", "2"}, 2, {"use meshgrad predict"});
}

TEST_CASE("new data that do not fit the model are refused") {
  const WaveRun run;
  const fs::path& folder = run.scratch.path;
  const auto refused = [&](const fs::path& file, const std::vector<std::string>& parts) {
    check_fails({"rollout", run.config.run.dir, file.string(), "--steps", "2"}, 1, parts);
  };
  test::NpzArrays arrays = test::square_arrays(1);
  test::write_npz(folder / "other.npz", arrays, false);
  refused(folder / "other.npz",
          {"needed the field \"velocity\", which the model reads, got u", "give its first frame"});
  const test::SquareRecord record = test::wave_record(7, 1, 0.0);
  std::vector<int32_t> types = record.node_type;
  types.front() = 9;
  const fs::path wave = write_wave(folder / "types.npz", 7, 0.0, 1);
  arrays = {{"mesh_pos", test::npy<float>("<f4", "(49, 2)", record.mesh_pos)},
            {"cells", test::npy<int32_t>("<i4", "(72, 3)", record.cells)},
            {"node_type", test::npy<int32_t>("<i4", "(49,)", types)},
            {"velocity", test::npy<float>("<f4", "(49, 2)", record.velocity)}};
  test::write_npz(folder / "types.npz", arrays, false);
  refused(folder / "types.npz", {"needed node types 0 to 8, which the model knows, got 9"});
  write_wave(wave, 7, 0.0, 1);
  check_fails({"rollout", run.config.run.dir, wave.string()}, 2,
              {"[--steps] needed the number of steps to predict"});
  check_fails({"rollout", run.config.run.dir, wave.string(), "--steps", "2", "--beyond-data"}, 2,
              {"--beyond-data"});
  check_fails({"rollout", run.config.run.dir, "--boundary", "x.csv"}, 2, {"name new data after RUN"});
}

TEST_CASE("files are named after their sources") {
  SourceNames names;
  CHECK(names.take("heat/run_3.vtu") == "heat_run_3");
  CHECK(names.take("train.tfrecord: record 3") == "train_record_3");
  CHECK(names.take("a b.npz") == "a_b");
  CHECK(names.take("a_b.vtu") == "a_b_2");
  CHECK(names.take("../x.vtu") == "mesh.._x");
  CHECK(names.take("v1.2/case") == "v1.2_case");
}

}  // namespace
}  // namespace meshgrad
