// SPDX-License-Identifier: Apache-2.0
// train.batch = "auto", the time of a step on this CPU, and what plan recommends.
#include <doctest/doctest.h>
#include <meshgrad/train/learn/planning/measured_step.h>
#include <meshgrad/train/tools/program/plan_text.h>

#include <cmath>

#include "support.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::ScratchDirectory;

constexpr double kAnyTime = 1e9;

/// Without accumulation; of 26 samples, or more.
struct AutoBatchRun {
  ScratchDirectory scratch;
  Config config;
  explicit AutoBatchRun(int64_t frames = 14)
      : config(test::small_config(scratch.path, test::pack_waves(scratch.path, 7, frames))) {
    config.train.batch = kAutoBatch;
    config.train.accumulate = 1;
    config.train.steps = 2;
  }
};

TEST_CASE("train.batch = \"auto\" is an eighth of the split at most") {
  AutoBatchRun run;
  Config& config = run.config;
  Runtime runtime({.device = {}, .threads = 1});
  std::string note;
  CHECK(resolve_batch(runtime, config, {}, note, kAnyTime).train.batch == 3);
  CHECK(contains(note, "train.batch = 3, an eighth of the 26 samples; MemoryBudget("));
  config.train.accumulate = 3;
  CHECK(resolve_batch(runtime, config, {}, note, kAnyTime).train.batch == 1);
  config.train.accumulate = 1;
  config.plan.min_batch = 5;
  CHECK(resolve_batch(runtime, config, {}, note, kAnyTime).train.batch == 5);
  CHECK(contains(note, "train.batch = 5, plan.min_batch;"));
  // A run that ended before its first checkpoint begins again with its number, whatever time there is.
  config.plan.min_batch = 1;
  Config earlier = config;
  earlier.train.batch = 2;
  fs::create_directories(config.run.dir);
  std::ofstream(fs::path(config.run.dir) / "config.resolved.toml") << to_toml(earlier);
  CHECK(resolve_batch(runtime, config, {}, note, kAnyTime).train.batch == 2);
  CHECK(contains(note, "as in config.resolved.toml"));
  config.model.width = 17;
  CHECK(resolve_batch(runtime, config, {}, note, kAnyTime).train.batch == 3);
}

TEST_CASE("train.batch = \"auto\" is what fits at most") {
  AutoBatchRun run(131);  // 260 samples
  Config& config = run.config;
  config.train.batch = 8;
  const StepProbe probe(Dataset::open(config.data.path), {});
  config.memory.memory_limit = probe.predict(config).reserved * 10 / 9 + 4096;
  config.train.batch = kAutoBatch;
  Runtime runtime({.device = {}, .threads = 1, .allocator = config.memory});
  std::string note;
  const int64_t batch = resolve_batch(runtime, config, {}, note, kAnyTime).train.batch;
  CHECK(batch >= 8);
  CHECK(batch < 32);  // an eighth
  CHECK_MESSAGE(contains(note, ", the largest planned to fit in "), note);
}

TEST_CASE("plan.mode = \"measured\" confirms a batch by a step of it") {
  AutoBatchRun run;
  Config& config = run.config;
  Runtime runtime({.device = {}, .threads = 1});
  std::string predicted, measured;
  const int64_t batch = resolve_batch(runtime, config, {}, predicted, kAnyTime).train.batch;
  config.plan.mode = PlanMode::measured;
  CHECK(resolve_batch(runtime, config, {}, measured, kAnyTime).train.batch == batch);
  CHECK(contains(predicted, " mode=static)"));
  CHECK(contains(measured, " mode=measured)"));
}

TEST_CASE("train.batch = \"auto\" is what time allows at most") {
  const AutoBatchRun run;
  Runtime runtime({.device = {}, .threads = 1});
  std::string note;
  CHECK(resolve_batch(runtime, run.config, {}, note, 1e-9).train.batch == 1);
  CHECK_MESSAGE(contains(note, "train.batch = 1, what a step computes in 1e-09 s"), note);
}

TEST_CASE("a plan names the batch that train.batch = \"auto\" takes") {
  AutoBatchRun run;
  Config& config = run.config;
  const auto planned = [&](const PlanOptions& options) {
    const MemoryPlan plan = plan_memory(config, options);
    return std::pair(plan.batch, plan.notes.front());
  };
  const std::string eighth = "train.batch = \"auto\" is 3 here: an eighth of the 26 samples";
  CHECK(planned({.device_memory = int64_t{1} << 30, .time = true}) ==
        std::pair(int64_t{3}, eighth + "; training measures steps, too, and takes what one computes in 2 s"));
  CHECK(planned({.time = true}).first <= 3);  // less where three take more than 2 s
  config.plan.min_batch = 5;
  CHECK(planned({}).second == "train.batch = \"auto\" is 5 here: plan.min_batch");
  CHECK(planned({.device_memory = 4096}).second ==
        "train.batch = \"auto\" is 5 here: plan.min_batch, which does not fit");
}

TEST_CASE("a step is measured until its time is over") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  config.train.accumulate = 1;
  const StepProbe probe(Dataset::open(config.data.path), {});
  const double once = MeasuredStep(probe, config).seconds(10, 60.0);
  CHECK(once > 0.0);
  CHECK(once < 60.0);
  CHECK(MeasuredStep(probe, config).seconds(10, 0.0) == HUGE_VAL);  // not one
}

TEST_CASE("a plan has the time of a step on this CPU") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  CHECK_FALSE(plan_memory(config, {}).step_seconds);
  const MemoryPlan plan = plan_memory(config, {.time = true});
  REQUIRE(plan.step_seconds);
  CHECK(*plan.step_seconds > 0.0);
  CHECK(plan.steps == 30);
  CHECK(contains(to_text(plan), " s a step, by ten measured steps on this CPU: "));
  config.train.epochs = 3;
  CHECK(plan_memory(config, {.time = true}).steps == 13);  // 78 samples, 6 a step
  CHECK_FALSE(plan_memory(config, {.device_memory = int64_t{8} << 30, .time = true}).step_seconds);
}

TEST_CASE("a plan recommends the configuration's precision") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
  const auto recommended = [&](DType precision) {
    config.precision = precision;
    const MemoryPlan plan = plan_memory(config, {.device_memory = int64_t{8} << 30});
    const std::string text = to_text(plan);
    CHECK(contains(text, "as the step fits without recomputation"));
    return plan.choices.at(static_cast<size_t>(plan.recommended)).name;
  };
  CHECK(recommended(DType::f32) == "baseline");
  CHECK(recommended(DType::bf16) == "16 bits");
  CHECK(recommended(DType::f16) == "16 bits");
}

}  // namespace
}  // namespace meshgrad
