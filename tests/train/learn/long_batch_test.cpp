// SPDX-License-Identifier: Apache-2.0
// A run that is stopped within a batch that takes long, and goes on.
#include <doctest/doctest.h>

#include "support.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

using test::ScratchDirectory;

/// Stops at the n-th question, which is asked at every op.
TrainResult train_until(const Config& config, bool resume, int64_t question, int64_t& asked) {
  Runtime runtime({.device = {}, .threads = 1});
  TrainOptions options;
  options.resume = resume;
  options.long_batch = std::chrono::milliseconds(0);
  options.observer.stop = [&] { return ++asked == question; };
  return train(runtime, config, options);
}

TEST_CASE("a window that is stopped within a batch begins again") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 3;
  config.train.validate_every = 0;
  config.train.log_every = 1;
  for (const NormalizeMode mode : {NormalizeMode::dataset, NormalizeMode::online}) {
    config.normalize.mode = mode;
    config.normalize.warmup_steps = mode == NormalizeMode::online ? 1 : 0;
    config.run.dir = (scratch.path / "straight").string();
    std::filesystem::remove_all(config.run.dir);
    int64_t all = 0;
    CHECK_FALSE(train_until(config, false, -1, all).stopped);
    CHECK(all > 100);
    const auto trained = test::tensors_of(config);
    const std::string metrics = test::lasting_metrics(config.run.dir);
    bool within = false;
    for (const int64_t question : {int64_t{1}, all / 5, all / 3, all / 2, all - 3}) {
      CAPTURE(question);
      config.run.dir = (scratch.path / "stopped").string();
      std::filesystem::remove_all(config.run.dir);
      int64_t asked = 0;
      const TrainResult stopped = train_until(config, false, question, asked);
      CHECK(stopped.stopped);
      CHECK(asked == question);
      within = within || stopped.state.micro == 0;
      train_until(config, true, -1, asked);
      CHECK(test::tensors_of(config) == trained);
      CHECK(test::lasting_metrics(config.run.dir) == metrics);
    }
    CHECK(within);
  }
}

TEST_CASE("a short batch is not asked within") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.steps = 3;
  config.train.validate_every = 0;
  int asked = 0;
  test::train_here(config, false, [&] { return ++asked < 0; });
  CHECK(asked == 8);  // after each of 3 x 3 batches but the last
}

}  // namespace
}  // namespace meshgrad
