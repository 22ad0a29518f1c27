// SPDX-License-Identifier: Apache-2.0
// The validation error over the data's own spread: its definition, and what noise, steps and old checkpoints
// do to it.
#include <doctest/doctest.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/run/validation.h>
#include <meshgrad/train/learn/task/evaluation.h>

#include <algorithm>
#include <cmath>

#include "support.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::ScratchDirectory;

struct Errors {
  double model = 0.0, baseline = 0.0;
};

/// Of all samples of split "valid", from predictions in physical units and the file's statistics.
Errors errors_of(const fs::path& checkpoint) {
  Runtime runtime = test::make_runtime();
  const Predictor predictor(runtime, checkpoint);
  const MeshTask& task = predictor.task().mesh();
  const bool steady = !task.fields.over_time;
  const FieldInfo field = task.fields.targets.fields.front();
  const FieldStatistics spread =
      task.predicted_stats(field.name, steady ? Quantity::value : Quantity::change);
  double squares = 0.0, missed = 0.0, count = 0.0;
  for (int64_t i = 0; i < task.dataset.size("valid"); ++i) {
    const TrajectoryView view = task.dataset.trajectory("valid", i);
    const std::vector<uint8_t> mask = task.fields.predicted_mask(view.mesh());
    const FrameRange frames = task.sample_frames(view.frames());
    for (int64_t t = frames.first; t < frames.end; ++t) {
      const FieldState state = task.state_at(view, t);
      const std::vector<float> ours = predict_next(predictor.trained(), task, view, t, state);
      const std::vector<float> truth = task.fields.target_values(view, steady ? t : t + 1);
      const std::vector<float> expected = steady ? task.mean_values(view.mesh()) : state.current;
      const size_t width = ours.size() / mask.size();
      for (size_t at = 0; at < ours.size(); ++at) {
        if (mask[at / width] == 0) continue;
        const double unit = spread.std[at % width], value = static_cast<double>(truth[at]);
        squares += std::pow((static_cast<double>(ours[at]) - value) / unit, 2);
        missed += std::pow((static_cast<double>(expected[at]) - value) / unit, 2);
        count += 1.0;
      }
    }
  }
  return {std::sqrt(squares / count), std::sqrt(missed / count)};
}

TEST_CASE("the validation error is over the data's own spread") {
  for (const double noise : {0.0, 0.3}) {
    const ScratchDirectory scratch;
    Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
    config.train.validate_samples = 0;
    config.train.noise = noise;
    const TrainResult result = test::train_here(config);
    const Errors expected = errors_of(result.checkpoint);
    CHECK(expected.model > 0.0);
    CHECK(result.state.last_valid_error == doctest::Approx(expected.model).epsilon(1e-4));
    const auto rows = test::validations_of(config);
    CHECK(rows.at(30).at("valid_error") == result.state.last_valid_error);
    CHECK(rows.at(30).at("valid_baseline") == doctest::Approx(expected.baseline).epsilon(1e-4));
    // The loss is that of targets that the noise has scaled.
    const double mean_square = std::pow(rows.at(30).at("valid_error"), 2) * 2.0;  // components
    CHECK((rows.at(30).at("valid_loss") < 0.5 * mean_square) == (noise > 0.0));
  }
}

TEST_CASE("weights of types count in the validation error") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.validate_samples = 0;
  config.train.noise = 0.0;
  config.train.steps = 10;
  config.optimizer.lr = 0.0;  // both models are the same
  config.schedule.name = RateCurve::constant;
  const auto of = [&](const char* run) {
    config.run.dir = (scratch.path / run).string();
    return test::train_here(config).state;
  };
  const RunState plain = of("plain");
  config.loss.type_weights = {{"5", 100.0}};
  const RunState outflow = of("outflow");
  CHECK(outflow.last_valid_error != doctest::Approx(plain.last_valid_error).epsilon(1e-3));
}

TEST_CASE("a run is validated before its first step") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  const TrainResult result = test::train_here(config);
  const auto rows = test::validations_of(config);
  CHECK(rows.begin()->first == 0.0);
  CHECK(rows.size() == 4);
  CHECK(rows.at(0).at("valid_error") > result.state.best_valid_error);
  CHECK(result.state.best_step > 0);

  // It changes nothing of the training; stopped within it, the resumed run repeats it.
  const auto trained = test::tensors_of(config);
  const std::string metrics = test::lasting_metrics(config.run.dir);
  config.run.dir += "_stopped";
  const TrainResult stopped = test::train_here(config, false, [] { return true; });
  CHECK(stopped.stopped);
  CHECK(stopped.state.step == 0);
  CHECK(test::validations_of(config).empty());
  test::train_here(config, true);
  CHECK(test::tensors_of(config) == trained);
  CHECK(test::lasting_metrics(config.run.dir) == metrics);
  config.run.dir += "_never";
  config.train.validate_every = 0;
  test::train_here(config);
  CHECK(test::tensors_of(config) == trained);
}

/// Takes the new figures out of a checkpoint.
void make_old(const fs::path& checkpoint) {
  const SafetensorsFile file(checkpoint);
  std::map<std::string, std::string> metadata = file.view().metadata;
  REQUIRE(metadata.erase("best_valid_error") == 1);
  metadata.erase("last_valid_error");
  metadata["checksum"] = checkpoint_checksum(file.view().tensors, metadata);
  const fs::path other = checkpoint.string() + ".old";
  write_safetensors(other, file.view().tensors, metadata);
  fs::rename(other, checkpoint);
}

TEST_CASE("a best chosen by the loss is validated again at resume") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  const RunState state = test::train_here(config).state;
  const fs::path checkpoints = fs::path(config.run.dir) / "checkpoints";
  const auto trained = test::tensors_of(config);
  for (const char* const name : {"best", "last"})
    make_old(checkpoints / (name + std::string(".safetensors")));
  std::vector<std::string> told;
  const auto resume = [&] {
    Runtime runtime({.device = {}, .threads = 1});
    TrainOptions options;
    options.resume = true;
    options.observer.event = [&](const RunEvent& event) { told.push_back(event.text); };
    return train(runtime, config, options);
  };
  const TrainResult again = resume();
  CHECK(again.state.best_valid_error == state.best_valid_error);
  CHECK(again.state.best_step == state.best_step);
  const auto line = std::ranges::find_if(told, [](const std::string& text) {
    return test::contains(text, "is validated again, as this run compares other figures");
  });
  CHECK(line != told.end());
  // What goes on is what was trained last.
  config.train.checkpoint_every = 0;
  fs::remove(checkpoints / "best.safetensors");
  config.train.steps = 31;
  told.clear();
  const TrainResult further = resume();
  CHECK(std::ranges::any_of(
      told, [](const std::string& text) { return test::contains(text, "the next validation is the best"); }));
  CHECK(further.state.best_step == 31);
}

TEST_CASE("relative L2 of a field far from zero is of its variation") {
  const FieldInfo info{"T", 2, true, "K"};
  FieldErrors plain({info}), centred({info}, {300.0, 0.0});
  for (FieldErrors* errors : {&plain, &centred})
    errors->add({303.0F, 1.0F, 299.0F, 2.0F}, {302.0F, 1.0F, 299.0F, 4.0F}, {1, 1},
                {300.0F, 0.0F, 300.0F, 0.0F});
  const double truth = 302.0 * 302.0 + 299.0 * 299.0 + 1.0 + 16.0;
  CHECK(plain.fields()[0].relative_l2 == doctest::Approx(std::sqrt(5.0 / truth)));
  CHECK_FALSE(plain.fields()[0].centred);
  CHECK(centred.fields()[0].relative_l2 == doctest::Approx(std::sqrt(5.0 / (4.0 + 1.0 + 1.0 + 16.0))));
  CHECK(centred.fields()[0].centred);
  CHECK(centred.fields()[0].rmse == plain.fields()[0].rmse);
  CHECK(centred.fields()[0].baseline_relative_l2 == doctest::Approx(1.0));
}

}  // namespace
}  // namespace meshgrad
