// SPDX-License-Identifier: Apache-2.0
// What evaluate, rollout and predict report: a line a field in its unit, and what a comparison leaves out.
#include <doctest/doctest.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/task/field_selection.h>
#include <meshgrad/train/tools/program/errors_text.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support.h"
#include "train/npz_arrays.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::Outcome;

/// A strip of triangles with a velocity in m/s and a pressure in Pa, a hundred thousand times as large.
struct TwoFields {
  static constexpr int64_t kNodes = 12;
  test::ScratchDirectory scratch;
  Config config;

  /// Frames of the trajectories that are tested; `node_type` of all their nodes.
  explicit TwoFields(const std::vector<int64_t>& test_frames = {5}, int32_t node_type = 0) {
    const fs::path folder = scratch.path / "npz";
    fs::create_directories(folder);
    const auto name = [&](const std::string& split) { return folder / (split + ".npz"); };
    write(name("train"), 6, 0);
    write(name("valid"), 6, 0);
    for (size_t i = 0; i < test_frames.size(); ++i)
      write(folder / (std::to_string(i) + "_test.npz"), test_frames[i], node_type);
    ConvertOptions options;
    options.input = folder;
    options.output = scratch.path / "two.mgd";
    options.units = {{"velocity", "m/s"}, {"pressure", "Pa"}};
    convert(options);
    config = test::small_config(scratch.path, options.output);
    config.data.inputs = config.data.targets = {"velocity", "pressure"};
    config.train.steps = 1;
    config.train.validate_every = 0;
  }

  static void write(const fs::path& path, int64_t frames, int32_t node_type) {
    std::vector<float> positions, velocity, pressure;
    std::vector<int32_t> cells;
    for (int32_t node = 0; node < kNodes; ++node) {
      positions.insert(positions.end(), {0.5F * static_cast<float>(node / 2), static_cast<float>(node % 2)});
      if (node + 2 < kNodes) cells.insert(cells.end(), {node, node + 1, node + 2});
    }
    for (int64_t t = 0; t < frames; ++t) {
      for (int32_t node = 0; node < kNodes; ++node) {
        const float wave = std::sin(0.7F * static_cast<float>(t) + static_cast<float>(node));
        velocity.insert(velocity.end(), {1.0F + 0.1F * wave, 0.1F * wave});
        pressure.push_back(1e5F + 1e4F * wave);
      }
    }
    const std::string f = std::to_string(frames), n = std::to_string(kNodes);
    test::write_npz(path,
                    {{"mesh_pos", test::npy("<f4", "(" + n + ", 2)", positions)},
                     {"cells", test::npy("<i4", "(10, 3)", cells)},
                     {"node_type", test::npy("<i4", "(" + n + ",)", std::vector<int32_t>(kNodes, node_type))},
                     {"velocity", test::npy("<f4", "(" + f + ", " + n + ", 2)", velocity)},
                     {"pressure", test::npy("<f4", "(" + f + ", " + n + ", 1)", pressure)}},
                    false);
  }

  Outcome run(const std::string& command, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{command, config.run.dir, "--checkpoint", "last", "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return test::run_meshgrad(arguments);
  }
};

/// The line of a table that begins like this.
std::string line_of(const std::string& text, const std::string& start) {
  const size_t at = text.find("\n" + start);
  return at == text.npos ? "" : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
}

size_t widest(const std::string& text) {
  std::istringstream lines(text);
  size_t width = 0;
  for (std::string line; std::getline(lines, line);) width = std::max(width, line.size());
  return width;
}

TEST_CASE("every field has lines of its own, in its unit") {
  TwoFields data;
  test::train_here(data.config);
  const Outcome outcome = data.run("evaluate");
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  CAPTURE(outcome.out);
  CHECK(contains(outcome.out, "velocity, pressure on split test: 1 trajectory, checkpoint of step 1"));
  for (const char* where : {"", ", step 1", ", steps 1 to 4"}) {
    CHECK(line_of(outcome.out, std::string("velocity") + where + " ").ends_with("  m/s"));
    CHECK(line_of(outcome.out, std::string("pressure") + where + " ").ends_with("  Pa"));
  }
  CHECK_FALSE(contains(outcome.out, "10 "));
  CHECK_FALSE(contains(outcome.out, "50 "));
  CHECK_FALSE(contains(outcome.out, "read from the data"));
  CHECK(widest(outcome.out) <= 80);
  // The scale of one field does not reach the other.
  const auto json = nlohmann::json::parse(data.run("evaluate", {"--json"}).out);
  CHECK(json["fields"]["velocity"]["rmse"].get<double>() < 1.0);
  CHECK(json["fields"]["pressure"]["rmse"].get<double>() > 1.0);
  CHECK(json["fields"]["pressure"]["unit"] == "Pa");
  CHECK(json["rollout"].size() == 2);

  // A rollout reports the same entries, of the same nodes.
  const Outcome rolled = data.run("rollout", {"--json"});
  REQUIRE(rolled.code == 0);
  CHECK(nlohmann::json::parse(rolled.out)["fields"] == json["rollout"]["all"]["fields"]);
  const Outcome text = data.run("rollout");
  CHECK(line_of(text.out, "pressure, steps 1 to 4 ").ends_with("  Pa"));
}

TEST_CASE("a model worse than the baseline is called that") {
  TwoFields data;
  data.config.optimizer.lr = data.config.schedule.final_lr = 1e-9;
  test::train_here(data.config);
  const fs::path last = fs::path(data.config.run.dir) / "checkpoints/last.safetensors";
  test::change_tensors(last, last, [](const std::string& name, std::vector<double>& values) {
    if (name == "normalizer.targets.mean") values = {50.0, 0.0, 0.0};  // m/s too much in each step
  });
  const Outcome outcome = data.run("evaluate");
  CAPTURE(outcome.err);
  CHECK_MESSAGE(contains(outcome.out, "note      worse than the baseline: velocity"), outcome.out);
  const auto json = nlohmann::json::parse(data.run("evaluate", {"--json"}).out);
  CHECK(json["worse_than_baseline"].at(0) == "velocity");
}

TEST_CASE("inputs that a rollout reads from the data are named") {
  TwoFields data;
  data.config.data.targets = {"velocity"};
  test::train_here(data.config);
  for (const char* command : {"evaluate", "rollout"}) {
    const Outcome outcome = data.run(command);
    CHECK_MESSAGE(contains(outcome.out, "which rollouts read from the data"), outcome.out);
    CHECK(contains(outcome.out, "pressure"));
    CHECK(widest(outcome.out.substr(outcome.out.find("rollout, over"))) <= 80);
    CHECK(nlohmann::json::parse(data.run(command, {"--json"}).out)["inputs_from_data"].at(0) == "pressure");
  }
}

TEST_CASE("types that a rollout holds are named") {
  DataConfig config;
  config.predicted_types = {0};
  config.kinematic_types = {1};  // which the data move
  const std::vector<std::string> held = held_types({0, 1, 4, 6}, config);
  CHECK(held == std::vector<std::string>{"4", "6"});
  CHECK(contains(cli::given_notes({}, held, RolloutBoundary::initial),
                 "nodes of type 4 and 6 are not predicted and count in no error:"));
  CHECK(cli::given_notes({}, {}, RolloutBoundary::data).empty());
}

TEST_CASE("a field worse than the nearest case is named") {
  std::vector<FieldError> fields(2);
  fields[0] = {.name = "u", .rmse = 3, .baseline_rmse = 4, .nearest_rmse = 2};
  fields[1] = {.name = "p", .rmse = 1, .baseline_rmse = 4, .nearest_rmse = 2};
  const std::string notes = cli::baseline_notes("the mean", fields);
  CHECK(contains(notes, "worse than the nearest training case: u\n"));
  CHECK_FALSE(contains(notes, "worse than the baseline"));
}

TEST_CASE("a horizon counts the rollouts that are so long") {
  TwoFields data({4, 13, 2});
  test::train_here(data.config);
  const auto json = nlohmann::json::parse(data.run("evaluate", {"--json"}).out);
  CHECK(json["rollout"]["1"]["rollouts"] == 3);
  CHECK(json["rollout"]["10"]["rollouts"] == 1);
  CHECK(json["rollout"]["all"]["steps"] == 12);
  // The rollout of 12 steps is the second trajectory: its own figures.
  const auto alone =
      nlohmann::json::parse(data.run("rollout", {"--json", "--trajectory", "1", "--steps", "10"}).out);
  CHECK(alone["fields"] == json["rollout"]["10"]["fields"]);
  const Outcome text = data.run("evaluate");
  CHECK_MESSAGE(contains(text.out, "1 of 3 rollouts has 10 steps or more"), text.out);
  CHECK(contains(text.out, "velocity, all, at most 12 "));
}

TEST_CASE("nothing to predict is an error, not NaN") {
  TwoFields data({5}, 1);
  test::train_here(data.config);
  for (const char* command : {"evaluate", "rollout"}) {
    const Outcome outcome = data.run(command);
    CHECK(outcome.code == 2);
    CHECK_MESSAGE(contains(outcome.err, "[data.predicted_types] needed types that nodes of "), outcome.err);
    CHECK(contains(outcome.err, "split test have, got [0, 5]"));
  }
}

TEST_CASE("one of a thing is singular") {
  const test::ScratchDirectory scratch;
  TwoFields::write(scratch.path / "one.npz", 6, 0);
  const std::string packed = (scratch.path / "one.mgd").string();
  const Outcome converted = test::run_meshgrad(
      {"convert", (scratch.path / "one.npz").string(), "--by", "time", "-q", "-o", packed});
  CAPTURE(converted.out);
  CHECK_MESSAGE(contains(converted.out, ", 1 mesh in 2-D"), converted.err);
  const Outcome described = test::run_meshgrad({"info", packed});
  CHECK_MESSAGE(contains(described.out, ", 1 mesh in 2-D"), described.out);
}

TEST_CASE("counts, lists and lines") {
  CHECK(counted(1, "step") == "1 step");
  CHECK(counted(0, "step") == "0 steps");
  CHECK(counted(2, "mesh", "meshes") == "2 meshes");
  CHECK(listed({}).empty());
  CHECK(listed({"a"}) == "a");
  CHECK(listed({"a", "b", "c"}) == "a, b and c");
  CHECK(wrapped("one two three", 7) == "one two\nthree");
  CHECK(wrapped("one two three", 6, "- ", "  ") == "- one\n  two\n  three");
  CHECK(wrapped("a word-that-is-long b", 5) == "a\nword-that-is-long\nb");
  CHECK(wrapped("\xc3\xa9\xc3\xa9 \xc3\xa9", 4) == "\xc3\xa9\xc3\xa9 \xc3\xa9");  // columns, not bytes
  CHECK(wrapped("", 5, "# ") == "# ");
}

}  // namespace
}  // namespace meshgrad
