// SPDX-License-Identifier: Apache-2.0
// The gradient noise scale: of gradients whose noise is known, and of runs.
#include <doctest/doctest.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/train/learn/run/gradient_noise.h>

#include <algorithm>
#include <cmath>

#include "simulated_ranks.h"
#include "support.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

TEST_CASE("two batch sizes give the gradient's noise and signal") {
  // Gradients of 10 components, each 0.5 plus noise of deviation 2: |G|^2 = 2.5, S = 40, B_simple = 16.
  constexpr int kComponents = 10, kSmall = 4, kLarge = 32, kTrials = 4000;
  GradientNoise mean;
  uint64_t draw = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    double small_square = 0.0, large_square = 0.0;
    for (int component = 0; component < kComponents; ++component) {
      double small = 0.0, large = 0.0;
      for (int sample = 0; sample < kLarge; ++sample) {
        const double gradient = 0.5 + 2.0 * normal(3, hash_of("gradients"), draw++);
        large += gradient / kLarge;
        if (sample < kSmall) small += gradient / kSmall;
      }
      small_square += small * small;
      large_square += large * large;
    }
    const GradientNoise one = gradient_noise({small_square, kSmall}, {large_square, kLarge});
    mean.noise += one.noise / kTrials;
    mean.signal += one.signal / kTrials;
  }
  // Four standard deviations of these means are about 3 % and 5 %.
  CHECK(mean.noise == doctest::Approx(40.0).epsilon(0.03));
  CHECK(mean.signal == doctest::Approx(2.5).epsilon(0.05));
  CHECK(mean.noise / mean.signal == doctest::Approx(16.0).epsilon(0.06));
  CHECK(test::contains(test::message_of([] { gradient_noise({1.0, 2.0}, {1.0, 2.0}); }), "larger"));
}

TEST_CASE("noise means forget, and need a positive signal") {
  GradientNoiseMean mean;
  CHECK(!mean.scale());
  mean.add({6.0, -1.0});
  CHECK(!mean.scale());
  mean.add({2.0, 5.0});
  CHECK(*mean.scale() == doctest::Approx(2.0));  // (6 + 2) / (5 - 1)
  for (int i = 0; i < 400; ++i) mean.add({30.0, 3.0});
  CHECK(*mean.scale() == doctest::Approx(10.0).epsilon(1e-6));
}

/// So many steps, each with a line in the log.
Config logged_config(const test::ScratchDirectory& scratch, int64_t steps) {
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 7, 14, true));
  config.train.steps = steps;
  config.train.log_every = 1;
  config.train.validate_every = 0;
  return config;
}

/// The lines of a run that have a loss.
std::vector<std::map<std::string, double>> lines_of(const Config& config) {
  std::vector<std::map<std::string, double>> lines;
  for (const auto& row : read_metrics(fs::path(config.run.dir) / "metrics.jsonl"))
    if (row.contains("loss")) lines.push_back(row);
  return lines;
}

/// E|G_B|^2 = |G|^2 + S / B holds for one measurement exactly.
void check_lines(const Config& config, size_t count, double samples) {
  const auto lines = lines_of(config);
  REQUIRE(lines.size() == count);
  for (const auto& line : lines) {
    REQUIRE(line.contains("gradient_noise"));
    const double square = line.at("gradient_signal") + line.at("gradient_noise") / samples;
    CHECK(std::sqrt(square) == doctest::Approx(line.at("gradient_norm")).epsilon(1e-6));
  }
}

TEST_CASE("a window of several batches logs its noise") {
  const test::ScratchDirectory scratch;
  Config config = logged_config(scratch, 6);
  test::train_here(config);
  check_lines(config, 6, 6.0);  // three batches of 2 samples
  const auto whole = lines_of(config);
  const auto& first = whole.front();
  if (first.at("gradient_signal") > 0.0) {
    CHECK(first.at("gradient_noise_scale") ==
          doctest::Approx(std::max(0.0, first.at("gradient_noise")) / first.at("gradient_signal")));
  }
  Config stopped = config;
  stopped.run.dir += "_stopped";
  int asked = 0;
  test::train_here(stopped, false, [&] { return ++asked == 4; });  // after a batch of a window
  test::train_here(stopped, true);
  CHECK(test::lasting_metrics(stopped.run.dir) == test::lasting_metrics(config.run.dir));

  config.run.dir += "_one";
  config.train.accumulate = 1;
  test::train_here(config);
  for (const auto& line : lines_of(config)) CHECK(!line.contains("gradient_noise"));
}

TEST_CASE("the small batch of a run is the first of its window") {
  const test::ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 1;
  config.train.log_every = 1;
  config.train.validate_every = 0;
  test::train_here(config);
  const auto window = lines_of(config).at(0);
  config.run.dir += "_first";
  config.train.accumulate = 1;
  test::train_here(config);
  const double small = lines_of(config).at(0).at("gradient_norm"), large = window.at("gradient_norm");
  const GradientNoise expected = gradient_noise({small * small, 2.0}, {large * large, 6.0});
  CHECK(window.at("gradient_noise") == doctest::Approx(expected.noise).epsilon(1e-4));
  CHECK(window.at("gradient_signal") == doctest::Approx(expected.signal).epsilon(1e-4));
}

TEST_CASE("the noise is that of unscaled gradients") {
  const test::ScratchDirectory scratch;
  Config config = logged_config(scratch, 2);
  config.precision = DType::f16;
  std::vector<double> noise;
  for (const double scale : {64.0, 1024.0}) {
    config.run.dir += "_scaled";
    config.loss_scale.rule.initial = scale;
    test::train_here(config);
    check_lines(config, 2, 6.0);
    noise.push_back(lines_of(config).front().at("gradient_noise"));
  }
  CHECK(noise[0] == doctest::Approx(noise[1]).epsilon(0.02));  // gradients of 16 bits are rounded
}

TEST_CASE("ranks measure the noise between their own batches") {
  const test::ScratchDirectory scratch;
  Config config = logged_config(scratch, 3);
  config.train.accumulate = 1;
  config.train.batch = 4;
  for (const RankReduction reduction : {RankReduction::fast, RankReduction::ordered}) {
    config.run.dir += "_ranks";
    config.ranks.reduction = reduction;
    const test::Endings endings = test::try_on_ranks({.ranks = 2, .loss = {}}, [&](Ranks& ranks) {
      Runtime runtime({.device = {}, .threads = 1, .allocator = config.memory, .log = {}, .memory = {}});
      TrainOptions options;
      options.ranks = &ranks;
      train(runtime, config, options);
    });
    for (const std::string& ending : endings) CHECK(ending == "");
    check_lines(config, 3, 4.0);
  }
}

}  // namespace
}  // namespace meshgrad
