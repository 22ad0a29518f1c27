// SPDX-License-Identifier: Apache-2.0
// Rollouts within validation, the choice of the best checkpoint, horizons, and noise that rises or is of a
// field.
#include <doctest/doctest.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/run/validation.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::ScratchDirectory;

double rollout_error(const fs::path& checkpoint) {
  Runtime runtime = test::make_runtime();
  const Evaluation result = evaluate(Predictor(runtime, checkpoint), {.split = "valid"});
  return result.dynamics.value().rollouts.back().fields.front().relative_l2;
}

TEST_CASE("the best checkpoint has the lowest rollout error") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 12;
  config.train.validate_every = 3;
  config.train.validate_rollouts = 5;  // there is one
  config.train.best = "rollout";
  config.train.ema = 0.8;
  const TrainResult result = test::train_here(config);
  double lowest = HUGE_VAL;
  int64_t step = -1;
  for (const auto& row : read_metrics(fs::path(config.run.dir) / "metrics.jsonl")) {
    const auto error = row.find("valid_rollout");
    if (error == row.end() || error->second >= lowest) continue;
    lowest = error->second;
    step = static_cast<int64_t>(row.at("step"));
  }
  CHECK(step > 0);
  CHECK(result.state.best_step == step);
  CHECK(result.state.best_valid_rollout == lowest);
  const fs::path checkpoints = fs::path(config.run.dir) / "checkpoints";
  CHECK(rollout_error(checkpoints / "best.safetensors") == lowest);
  CHECK(rollout_error(checkpoints / "last.safetensors") == result.state.last_valid_rollout);

  // Rollouts change nothing of the training, and a resumed run has the same best.
  const std::string best = test::checkpoint_bytes(config.run.dir, "best");
  const auto trained = test::tensors_of(config);
  fs::rename(config.run.dir, config.run.dir + "_straight");
  int calls = 0;
  CHECK(test::train_here(config, false, [&] { return ++calls == 20; }).stopped);
  test::train_here(config, true);
  CHECK(test::checkpoint_bytes(config.run.dir, "best") == best);
  config.run.dir += "_plain";
  config.train.validate_rollouts = 0;
  config.train.best = "loss";
  test::train_here(config);
  CHECK(test::tensors_of(config) == trained);
}

TEST_CASE("no field outweighs the others in the mean of relative errors") {
  const double none = std::nan("");
  const auto mean = [](std::vector<FieldError> fields) { return mean_relative_error(fields); };
  const auto field = [](double rmse, double relative) {
    return FieldError{.name = "u", .unit = "", .rmse = rmse, .mae = rmse, .relative_l2 = relative};
  };
  for (int i = 1; i <= 100; ++i) CHECK(mean({field(3.0, i / 97.0)}) == i / 97.0);  // the same bits
  CHECK(mean({field(1.0, 0.1), field(1e-3, 40.0)}) == doctest::Approx(2.0));
  // A tenth less error in the first is worth as much as in the second, whose truth is nearly 0.
  CHECK(mean({field(0.9, 0.09), field(1e-3, 40.0)}) < 0.96 * 2.0);
  CHECK(mean({field(0.9, 0.09), field(1e-3, 40.0)}) ==
        doctest::Approx(mean({field(1.0, 0.1), field(9e-4, 36.0)})));
  CHECK(mean({field(1.0, 0.1), field(1e-3, none)}) == doctest::Approx(0.1));  // the truth is 0 everywhere
  CHECK(std::isnan(mean({field(1e-3, none)})));
  CHECK(std::isnan(mean({field(none, none), field(1.0, 0.1)})));  // a rollout has diverged
  CHECK(std::isnan(mean({field(HUGE_VAL, HUGE_VAL), field(1.0, 0.1)})));
  CHECK(mean({field(0.0, 0.0), field(1.0, 0.1)}) > 1e-5);  // or nothing could ever be better
}

TEST_CASE("horizons of the configuration and of the command") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 2;
  config.train.validate_every = 0;
  config.evaluate.horizons = {5, 2, 400};
  test::train_here(config);
  const auto steps = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command{"evaluate", config.run.dir, "--json"};
    command.insert(command.end(), more.begin(), more.end());
    const auto json = nlohmann::json::parse(test::run_meshgrad(command).out);
    std::vector<int64_t> found;
    for (const auto& [name, rollout] : json.at("rollout").items()) found.push_back(rollout.at("steps"));
    std::ranges::sort(found);
    return found;
  };
  CHECK(steps({}) == std::vector<int64_t>{2, 5, 13});
  CHECK(steps({"--horizons", "1,3"}) == std::vector<int64_t>{1, 3, 13});
}

TEST_CASE("noise that has risen is reported as noise") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 6;
  config.train.validate_every = 0;
  const auto trained = [&] {
    config.run.dir += "_run";
    test::train_here(config);
    return test::tensors_of(config);
  };
  const auto plain = trained();
  config.train.noise = 0.0;
  config.train.field_noise = {{"velocity", 0.01}};
  CHECK(trained() == plain);
  config.train.noise_warmup_steps = 1;
  CHECK(trained() == plain);
  config.train.noise_warmup_steps = 4;
  const auto rising = trained();
  CHECK(rising != plain);

  config.run.dir += "_stopped";
  int calls = 0;
  CHECK(test::train_here(config, false, [&] { return ++calls == 8; }).stopped);
  test::train_here(config, true);
  CHECK(test::tensors_of(config) == rising);
}

}  // namespace
}  // namespace meshgrad
