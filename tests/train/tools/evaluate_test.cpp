// SPDX-License-Identifier: Apache-2.0
// evaluate and rollout against errors computed directly from the data, with a model that predicts no change.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/tools/program/rollout_files.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;

/// A run of a few steps, made once a case.
struct TrainedRun {
  test::ScratchDirectory scratch;
  Config config;
  TrainedRun() {
    config = test::small_config(scratch.path, test::pack_waves(scratch.path));
    config.train.steps = 4;
    config.train.validate_every = 2;
    test::train_here(config);
  }
  fs::path checkpoint() const { return fs::path(config.run.dir) / "checkpoints" / "last.safetensors"; }
  /// The run's checkpoint with a decoder that says 0, which stands for no change.
  fs::path zero_checkpoint() const {
    const fs::path path = scratch.path / "zero.safetensors";
    test::change_tensors(checkpoint(), path, [](const std::string& name, std::vector<double>& values) {
      if (name.starts_with("model.node_decoder.linear_2.") || name == "normalizer.targets.mean")
        std::fill(values.begin(), values.end(), 0.0);
    });
    return path;
  }
};

/// Velocity of a frame, straight from the packed file.
std::span<const float> frame(const TrajectoryView& trajectory, int64_t t) {
  return trajectory.field("velocity").frame(t);
}

/// Root mean square of a - b over nodes of type 0 and 5, summed over frame pairs (a, b).
double direct_rmse(const TrajectoryView& trajectory,
                   const std::vector<std::pair<int64_t, int64_t>>& frame_pairs) {
  const auto types = trajectory.mesh().node_type;
  double sum = 0.0, count = 0.0;
  for (const auto& [from, to] : frame_pairs) {
    for (size_t node = 0; node < types.size(); ++node) {
      if (types[node] != 0 && types[node] != 5) continue;
      for (size_t i = 2 * node; i < 2 * node + 2; ++i) {
        const double error =
            static_cast<double>(frame(trajectory, from)[i]) - static_cast<double>(frame(trajectory, to)[i]);
        sum += error * error;
        count += 1.0;
      }
    }
  }
  return std::sqrt(sum / count);
}

std::vector<std::pair<int64_t, int64_t>> neighbours(int64_t frames, int64_t stride) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (int64_t t = 0; t + 1 < frames; t += stride) pairs.emplace_back(t, t + 1);
  return pairs;
}
std::vector<std::pair<int64_t, int64_t>> from_start(int64_t steps) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (int64_t t = 1; t <= steps; ++t) pairs.emplace_back(0, t);
  return pairs;
}

TEST_CASE("a model of no change has the errors of the data") {
  const TrainedRun run;
  Runtime runtime({.device = {}, .threads = 1});
  const Predictor predictor(runtime, run.zero_checkpoint());
  const TrajectoryView trajectory = predictor.dataset().trajectory("test", 0);
  for (const int64_t stride : {1, 3}) {
    for (const RolloutBoundary boundary : {RolloutBoundary::data, RolloutBoundary::initial}) {
      EvaluateOptions options;
      options.stride = stride;
      options.boundary = boundary;
      const Evaluation e = evaluate(predictor, options);
      const double hold = direct_rmse(trajectory, neighbours(trajectory.frames(), stride));
      CHECK(hold > 1e-3);
      CHECK(e.fields.at(0).baseline_rmse == doctest::Approx(hold).epsilon(1e-9));
      CHECK(e.fields.at(0).rmse == doctest::Approx(hold).epsilon(1e-9));
      REQUIRE(e.dynamics->rollouts.size() == 3);  // the trajectory has no 50 steps
      for (const auto& [at, steps] : {std::pair{size_t{0}, 1}, {size_t{1}, 10}, {size_t{2}, 13}}) {
        const RolloutErrors& rollout = e.dynamics->rollouts[at];
        CHECK(rollout.steps == steps);
        CHECK(rollout.rollouts == 1);
        const double still = direct_rmse(trajectory, from_start(steps));
        CHECK(rollout.fields.at(0).rmse == doctest::Approx(still).epsilon(1e-9));
        CHECK(rollout.fields.at(0).baseline_rmse == doctest::Approx(still).epsilon(1e-9));
      }
      CHECK(e.trajectories == 1);
      CHECK(predictor.step() == 4);
    }
  }
}

using Frames = std::vector<std::vector<float>>;

Frames rolled(const Predictor& predictor, RolloutBoundary boundary, int64_t steps = 0) {
  Frames frames;
  const TrajectoryView trajectory = predictor.dataset().trajectory("test", 0);
  roll_out(predictor, trajectory, {.steps = steps, .boundary = boundary}, [&](const RolloutFrame& now) {
    CHECK(now.t == static_cast<int64_t>(frames.size()) + 1);
    CHECK(std::equal(now.truth.begin(), now.truth.end(), frame(trajectory, now.t).begin()));
    frames.push_back(now.ours);
  });
  return frames;
}

TEST_CASE("rollouts take boundaries from the data or keep them") {
  const TrainedRun run;
  Runtime runtime({.device = {}, .threads = 1});
  const Predictor predictor(runtime, run.checkpoint());
  const TrajectoryView trajectory = predictor.dataset().trajectory("test", 0);
  const Frames data = rolled(predictor, RolloutBoundary::data);
  const Frames initial = rolled(predictor, RolloutBoundary::initial);
  REQUIRE(data.size() == 13);
  REQUIRE(initial.size() == 13);
  CHECK(rolled(predictor, RolloutBoundary::data, 5).size() == 5);
  const auto mask = predictor.mesh_dynamics().fields.predicted_mask(trajectory.mesh());
  FieldState state = state_at(predictor, trajectory, 0);
  size_t moved = 0;
  for (size_t step = 0; step < data.size(); ++step) {
    const auto t = static_cast<int64_t>(step);
    const std::vector<float> predicted = predict_next(predictor, trajectory, t, state);
    for (size_t i = 0; i < mask.size() * 2; ++i) {
      if (mask[i / 2] == 1) {
        CHECK(data[step][i] == predicted[i]);
        if (step == 0) CHECK(initial[step][i] == data[step][i]);
        moved += data[step][i] != initial[step][i] ? 1 : 0;
      } else {
        CHECK(data[step][i] == frame(trajectory, t + 1)[i]);
        CHECK(initial[step][i] == frame(trajectory, 0)[i]);
      }
    }
    state.current = data[step];
  }
  CHECK(moved > 0);  // inflow that changes is felt downstream
}

TEST_CASE("a rollout beyond the data holds the last boundary") {
  const TrainedRun run;
  Runtime runtime({.device = {}, .threads = 1});
  const Predictor predictor(runtime, run.checkpoint());
  const TrajectoryView trajectory = predictor.dataset().trajectory("test", 0);
  const auto mask = predictor.mesh_dynamics().fields.predicted_mask(trajectory.mesh());
  constexpr int64_t kData = 13, kSteps = 20;
  int64_t steps = 0;
  roll_out(predictor, trajectory, {.steps = kSteps}, [&](const RolloutFrame& now) {
    ++steps;
    CHECK(now.truth.empty() == (steps > kData));
    const auto boundary = frame(trajectory, std::min(steps, kData));
    for (size_t i = 0; i < now.ours.size(); ++i)
      if (mask[i / 2] == 0) CHECK(now.ours[i] == boundary[i]);
  });
  CHECK(steps == kSteps);
  const std::string out = (fs::path(run.config.run.dir) / "long").string();
  const test::Outcome refused =
      test::run_meshgrad({"rollout", run.config.run.dir, "--steps", "20", "-o", out, "--quiet"});
  CHECK(refused.code == 2);
  CHECK_MESSAGE(
      contains(refused.err, "[--steps] needed at most 13, the steps of trajectory 0 in the data, got 20"),
      refused.err);
  const test::Outcome told = test::run_meshgrad(
      {"rollout", run.config.run.dir, "--steps", "20", "--beyond-data", "-o", out, "--quiet"});
  CHECK(told.code == 0);
  CHECK_MESSAGE(contains(told.out, "the data ends after 13 steps"), told.out);
  CHECK(fs::exists(fs::path(out) / "frame_00020.vtu"));
}

TEST_CASE("a rollout of no change stands still") {
  const TrainedRun run;
  Runtime runtime({.device = {}, .threads = 1});
  const Predictor predictor(runtime, run.zero_checkpoint());
  const auto start = frame(predictor.dataset().trajectory("test", 0), 0);
  for (const std::vector<float>& ours : rolled(predictor, RolloutBoundary::initial))
    CHECK(std::equal(ours.begin(), ours.end(), start.begin(), start.end()));
}

TEST_CASE("second differences: no second change goes on as before") {
  const test::ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.data.predict = Prediction::second_change;
  config.train.steps = 1;
  config.train.validate_every = 0;
  const fs::path last = test::train_here(config).checkpoint;
  const fs::path zero = scratch.path / "zero.safetensors";
  test::change_tensors(last, zero, [](const std::string& name, std::vector<double>& values) {
    if (name.starts_with("model.node_decoder.linear_2.") || name == "normalizer.targets.mean")
      std::fill(values.begin(), values.end(), 0.0);
  });
  Runtime runtime({.device = {}, .threads = 1});
  const Predictor predictor(runtime, zero);
  const TrajectoryView trajectory = predictor.dataset().trajectory("test", 0);
  const auto mask = predictor.mesh_dynamics().fields.predicted_mask(trajectory.mesh());
  int64_t steps = 0;
  roll_out(predictor, trajectory, {.steps = 3}, [&](const RolloutFrame& now) {
    CHECK(now.t == ++steps + 1);  // the first needs two frames
    for (size_t i = 0; i < now.ours.size(); ++i) {
      if (mask[i / 2] == 0) continue;
      const double start = static_cast<double>(frame(trajectory, 1)[i]);
      const double speed = start - static_cast<double>(frame(trajectory, 0)[i]);
      CHECK(static_cast<double>(now.ours[i]) ==
            doctest::Approx(start + static_cast<double>(steps) * speed).epsilon(1e-5));
    }
  });
  CHECK(steps == 3);
}

TEST_CASE("evaluate prints its figures as JSON") {
  const TrainedRun run;
  const test::Outcome outcome = test::run_meshgrad({"evaluate", run.config.run.dir, "--json", "--quiet"});
  CHECK(outcome.err.empty());
  REQUIRE(outcome.code == 0);
  const auto json = nlohmann::json::parse(outcome.out);
  CHECK(json["split"] == "test");
  CHECK(json["targets"] == "velocity");
  CHECK(json["baseline"] == "nothing changes");
  for (const char* key : {"rmse", "mae", "relative_l2", "baseline_rmse"}) {
    CHECK(json["fields"]["velocity"][key].get<double>() > 0.0);
    CHECK(json["rollout"]["all"]["fields"]["velocity"][key].get<double>() > 0.0);
  }
  CHECK(json["trajectories"] == 1);
  CHECK(json["rollout"].size() == 3);
  CHECK(json["rollout"]["all"]["steps"] == 13);
  for (const char* horizon : {"1", "10"})
    CHECK(json["rollout"][horizon]["fields"]["velocity"]["rmse"].get<double>() > 0.0);
  CHECK(json["boundary"] == "data");
  CHECK(json["inputs_from_data"].empty());
  Runtime runtime({.device = {}, .threads = 1});
  const Predictor best(runtime, find_checkpoint(run.config.run.dir, "best"));
  CHECK(json["checkpoint_step"] == best.step());
  CHECK(json["fields"]["velocity"]["rmse"] == evaluate(best, {}).fields.at(0).rmse);

  const auto valid = nlohmann::json::parse(test::run_meshgrad({"evaluate", run.config.run.dir, "--split",
                                                               "valid", "--checkpoint", "last", "--json"})
                                               .out);
  CHECK(valid["split"] == "valid");
  CHECK(valid["checkpoint_step"] == 4);
  const char* key = "baseline_rmse";
  CHECK(valid["fields"]["velocity"][key] != json["fields"]["velocity"][key]);
}

TEST_CASE("rollout writes a series, a file a frame and pictures") {
  const TrainedRun run;
  const fs::path out = run.scratch.path / "out";
  const test::Outcome outcome = test::run_meshgrad(
      {"rollout", run.config.run.dir, "--steps", "11", "-o", out.string(), "--json", "--quiet"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  const auto json = nlohmann::json::parse(outcome.out);
  CHECK(json["steps"] == 11);
  Runtime runtime({.device = {}, .threads = 1});
  const Predictor predictor(runtime, find_checkpoint(run.config.run.dir, "best"));
  for (const char* key : {"rmse", "mae", "relative_l2"})
    CHECK(json["fields"]["velocity"][key].get<double>() > 0.0);
  CHECK(json["fields"]["velocity"]["unit"] == evaluate(predictor, {}).fields.at(0).unit);
  const std::string series = test::read_text(json["series"].get<std::string>());
  size_t frames = 0, pictures = 0;
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".vtu") {
      ++frames;
      CHECK(contains(series, name));
      const std::string vtu = test::read_text(entry.path());
      for (const char* field : {"\"velocity\"", "\"velocity_truth\"", "\"velocity_error\"", "\"node_type\""})
        CHECK(contains(vtu, field));
    }
    if (entry.path().extension() == ".svg") {
      ++pictures;
      CHECK(contains(test::read_text(entry.path()), "<title>velocity, step "));
    }
  }
  CHECK(frames == 12);  // with the one that the rollout starts from
  CHECK(contains(series, "frame_00000.vtu"));
  CHECK(pictures == json["pictures"].size());
  CHECK(pictures == 4);  // steps 1, 5, 10 and 11
}

TEST_CASE("a trajectory or split that does not exist says which exist") {
  const TrainedRun run;
  const std::string dir = run.config.run.dir;
  const test::Outcome trajectory = test::run_meshgrad({"rollout", dir, "--trajectory", "7"});
  CHECK(trajectory.code == 2);
  CHECK(contains(trajectory.err, "[--trajectory]"));
  CHECK(contains(trajectory.err, "got 7"));
  const test::Outcome split = test::run_meshgrad({"evaluate", dir, "--split", "tset", "--quiet"});
  CHECK(split.code == 2);
  CHECK(contains(split.err, "train"));
  const test::Outcome checkpoint = test::run_meshgrad({"evaluate", dir, "--checkpoint", "/none", "--quiet"});
  CHECK(checkpoint.code == 2);
  CHECK(contains(checkpoint.err, "\"/none\""));
}

}  // namespace
}  // namespace meshgrad
