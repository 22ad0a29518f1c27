// SPDX-License-Identifier: Apache-2.0
// How much of a run validation takes, and by what the best model is chosen.
#include <doctest/doctest.h>
#include <meshgrad/train/learn/run/validation.h>
#include <meshgrad/train/tools/extras/config_check.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "support.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::ScratchDirectory;

TEST_CASE("rollouts are cut before validations are left out") {
  const std::vector<int64_t> lengths{600, 400};
  const auto plan = [&](double training, double samples) {
    return plan_validation({.training = training, .samples = samples, .rollout_step = 0.01}, lengths, 0.1);
  };
  CHECK(plan(200.0, 1.0) == ValidationPlan{1, 0});    // 1 + 10 s fit in 20
  CHECK(plan(110.0, 1.0) == ValidationPlan{1, 0});    // exactly
  CHECK(plan(109.0, 1.0) == ValidationPlan{1, 512});  // these take 1 + 9.12 s
  CHECK(plan(101.0, 1.0) == ValidationPlan{1, 256});
  CHECK(plan(12.0, 1.0) == ValidationPlan{1, 8});  // 1 + 0.16 s
  CHECK(plan(6.0, 1.0) == ValidationPlan{2, 8});
  CHECK(plan(0.1, 1.0) == ValidationPlan{116, 8});
  CHECK(plan_validation({1.0, 1.0, 0.0}, {}, 0.1) == ValidationPlan{10, 0});
  CHECK(plan_validation({1.0, 0.01, 0.1}, std::vector<int64_t>{5}, 0.1) == ValidationPlan{6, 0});
  CHECK(plan_validation({0.0, 0.0, 0.0}, lengths, 0.1) == ValidationPlan{1, 0});
}

Config planned_waves(const ScratchDirectory& scratch) {
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 7, 30));
  config.train.validate_every = 5;
  config.train.checkpoint_every = 5;
  config.train.validate_rollouts = 2;
  config.schedule.name = RateCurve::constant;  // the same for any number of steps
  return config;
}

TEST_CASE("validation keeps to its share of a run, as planned once") {
  const ScratchDirectory scratch;
  Config config = planned_waves(scratch);
  config.train.steps = 40;
  test::train_here(config);
  const auto trained = test::tensors_of(config);
  CHECK(test::validations_of(config).size() == 9);
  CHECK(test::validations_of(config).at(5).at("valid_rollout_steps") == 29.0);
  CHECK_FALSE(test::validations_of(config).at(0).contains("valid_rollout"));

  config.run.dir += "_short";
  config.train.validate_share = 0.001;
  config.train.steps = 20;
  std::vector<std::string> told;
  const auto run = [&](bool resume) {
    Runtime runtime({.device = {}, .threads = 1});
    TrainOptions options;
    options.resume = resume;
    options.observer.event = [&](const RunEvent& event) { told.push_back(event.text); };
    return train(runtime, config, options);
  };
  const auto says = [&](const char* text) {
    return std::ranges::any_of(told, [&](const std::string& line) { return test::contains(line, text); });
  };
  const RunState state = run(false).state;
  CHECK(state.rollout_steps == 8);
  CHECK(state.validation_interval > 1);
  CHECK(says("validation rolls out the first 8 steps of 29, so that validations take at most 0.1 % of"));
  CHECK(says("steps instead of 5, so that"));
  CHECK(test::validations_of(config).at(5).at("valid_rollout_steps") == 8.0);
  told.clear();
  config.train.steps = 40;
  const RunState resumed = run(true).state;
  CHECK(resumed.rollout_steps == 8);
  CHECK(resumed.validation_interval == state.validation_interval);
  CHECK_FALSE(says("instead of 5"));
  CHECK(test::validations_of(config).at(40).at("valid_rollout_steps") == 8.0);
  CHECK(test::tensors_of(config) == trained);
}

TEST_CASE("a run that resumes with more steps plans anew") {
  const ScratchDirectory scratch;
  Config config = planned_waves(scratch);
  config.schedule.name = RateCurve::exponential;
  config.train.validate_share = 0.001;
  config.train.steps = 2;  // the first validation, after 2 of the 5 steps between validations
  CHECK(test::train_here(config).state.validation_interval > 1);
  config.train.steps = 10;
  std::string told;
  Runtime runtime({.device = {}, .threads = 1});
  TrainOptions options;
  options.resume = true;
  options.observer.event = [&](const RunEvent& event) { told += event.text + "\n"; };
  train(runtime, config, options);
  CHECK_MESSAGE(test::contains(told, "so that validations take at most 0.1 % of"), told);
  CHECK_MESSAGE(test::contains(told, "the learning rate goes from 0.0"), told);
}

TEST_CASE("rollouts choose the best model where there are any") {
  const ScratchDirectory scratch;
  Config config = planned_waves(scratch);
  const auto lowest = [&](const char* key) {
    double step = 0.0, least = HUGE_VAL;
    for (const auto& [at, row] : test::validations_of(config)) {
      const auto value = row.find(key);
      if (at == 0.0 || value == row.end() || !(value->second < least)) continue;
      least = value->second;
      step = at;
    }
    return static_cast<int64_t>(step);
  };
  CHECK(best_by_rollout(config));
  const RunState rolled = test::train_here(config).state;
  CHECK(rolled.best_step == lowest("valid_rollout"));
  config.run.dir += "_loss";
  config.train.best = "loss";
  CHECK_FALSE(best_by_rollout(config));
  const RunState state = test::train_here(config).state;
  CHECK(state.best_step == lowest("valid_error"));
  // What the best is chosen by may change at a resume: it is then validated again.
  config.train.best = "auto";
  config.train.steps = 31;
  const RunState resumed = test::train_here(config, true).state;
  CHECK(resumed.best_valid_rollout <=
        test::validations_of(config).at(static_cast<double>(state.best_step)).at("valid_rollout"));
  config.task.name = TaskName::steady_field;
  CHECK(validated_rollouts(config) == 0);
  CHECK_FALSE(best_by_rollout(config));
}

TEST_CASE("a stop within a validation's rollouts ends the run there") {
  const ScratchDirectory scratch;
  Config config = planned_waves(scratch);
  config.train.steps = 5;
  config.train.validate_samples = 1;
  int all = 0, asked = 0;
  test::train_here(config, false, [&] { return ++all < 0; });
  const auto trained = test::tensors_of(config);
  const std::string metrics = test::lasting_metrics(config.run.dir);
  config.run.dir += "_stopped";
  // The last questions are those of 29 steps of a rollout.
  const TrainResult stopped = test::train_here(config, false, [&] { return ++asked > all - 20; });
  CHECK(stopped.stopped);
  CHECK(stopped.state.step == 5);
  CHECK(stopped.state.validation_due);
  CHECK(asked < all);
  test::train_here(config, true);
  CHECK(test::tensors_of(config) == trained);
  CHECK(test::lasting_metrics(config.run.dir) == metrics);
}

TEST_CASE("check says where too few trajectories are validated") {
  const ScratchDirectory scratch;
  const auto findings = [&](int trained, int validated) {
    const fs::path input = scratch.path / std::to_string(10 * trained + validated);
    fs::create_directories(input);
    test::write_meta(input, test::square_meta(4));
    const auto records = [](int count) {
      std::vector<test::SquareRecord> all;
      for (int i = 0; i < count; ++i) all.push_back(test::wave_record(3, 4, 0.1 * i));
      return test::tfrecord_of(all);
    };
    test::write_bytes(input / "train.tfrecord", records(trained));
    test::write_bytes(input / "valid.tfrecord", records(validated));
    ConvertOptions options;
    options.input = input;
    options.output = input / "waves.mgd";
    convert(options);
    const Config config = test::small_config(scratch.path, options.output);
    std::string found;
    for (const Finding& finding : check_config(config, Dataset::open(config.data.path)).findings)
      if (finding.place == "data.valid_split") found = finding.what;
    return found;
  };
  CHECK(findings(10, 2) == "2 trajectories to validate on, and 10 to train on");
  CHECK(findings(10, 3) == "");
  CHECK(findings(9, 1) == "");
}

TEST_CASE("evaluate names the last checkpoint where it is better") {
  const ScratchDirectory scratch;
  Config config = planned_waves(scratch);
  config.train.steps = 10;
  test::train_here(config);
  const fs::path checkpoints = fs::path(config.run.dir) / "checkpoints";
  const auto note = [&] {
    const test::Outcome text = test::run_meshgrad({"evaluate", config.run.dir, "--split", "valid"});
    CHECK(text.code == 0);
    return test::contains(text.out, "checkpoints/last, of step 10, is better by its last validation");
  };
  CHECK_FALSE(note());
  // As it was chosen by one prediction, the last may be the better one in rollouts.
  const fs::path best = checkpoints / "best.safetensors";
  const SafetensorsFile file(best);
  std::map<std::string, std::string> metadata = file.view().metadata;
  metadata["last_valid_rollout"] = "1e6";
  metadata["checksum"] = checkpoint_checksum(file.view().tensors, metadata);
  write_safetensors(checkpoints / "worse", file.view().tensors, metadata);
  fs::rename(checkpoints / "worse", best);
  CHECK(note());
  const auto json = nlohmann::json::parse(
      test::run_meshgrad({"evaluate", config.run.dir, "--split", "valid", "--json"}).out);
  CHECK(json.at("last_is_better") == true);
}

}  // namespace
}  // namespace meshgrad
