// SPDX-License-Identifier: Apache-2.0
// What plan and train say of f32 on a GPU, by dry runs for GPUs that are not there.
#include <doctest/doctest.h>
#include <meshgrad/engine/gpu_card.h>
#include <meshgrad/train/tools/program/precision_gain.h>

#include <fmt/format.h>

#include <algorithm>

#include "support.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

using test::contains;
using test::ScratchDirectory;

TEST_CASE("a gain in precision is told by time, or else by memory") {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const auto choice = [](DType precision, int64_t mebibytes, double ms) {
    PrecisionChoice one{precision, mebibytes * kMiB, std::nullopt};
    if (ms > 0.0) one.bound = StepBound{.ms = ms, .work = {}};
    return one;
  };
  const PrecisionChoice f32 = choice(DType::f32, 600, 12.0);
  CHECK(precision_gain(f32, choice(DType::bf16, 100, 1.5), "h100") ==
        "precision = \"bf16\" would save: a step takes at least 1.5 ms instead of 12 at the stated peaks of "
        "one h100, and 100 MiB instead of 600");
  CHECK(precision_gain(f32, choice(DType::bf16, 100, 8.0), "h100").empty());
  CHECK(precision_gain(f32, choice(DType::f16, 100, 0.0), "") ==
        "precision = \"f16\" would save: a step takes 100 MiB instead of 600");
  CHECK(precision_gain(f32, choice(DType::f16, 400, 0.0), "").empty());
}

Config config_of(const ScratchDirectory& scratch) {
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 9, 14, true));
  config.run.device = "auto";
  config.model.width = 128;
  config.model.blocks = 3;
  return config;
}

TEST_CASE("a plan in f32 says once what 16 bits would save") {
  const ScratchDirectory scratch;
  Config config = config_of(scratch);
  const auto told = [&](const char* gpu) {
    const MemoryPlan plan =
        plan_memory(config, {.gpu = gpu, .mesh = PlannedMesh{.nodes = 20'000, .edges = 120'000}});
    std::string text;
    for (const std::string& note : plan.notes)
      if (contains(note, "would save")) text += note + "\n";
    if (text.empty()) return text;
    const MemoryPlan::Choice& narrow = plan.choices[2];
    CHECK(contains(text, fmt::format("{:.3g} ms instead of {:.3g}", narrow.bound->ms, plan.bound->ms)));
    return text;
  };
  config.precision = DType::f32;
  for (const char* gpu : {"h100", "rtx4090"}) {
    const std::string text = told(gpu);
    CHECK(text.starts_with("precision = \"bf16\" would save: a step takes at least "));
    CHECK(contains(text, gpu));
    CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  }
  CHECK(told("t4").starts_with("precision = \"f16\" would save"));
  config.precision = DType::f16;
  CHECK(told("h100").empty());
}

TEST_CASE("a run in f32 on a GPU is told what 16 bits would save") {
  const ScratchDirectory scratch;
  Config config = config_of(scratch);
  config.precision = DType::f32;
  const Device gpu{DeviceKind::cuda, 0};
  const gpu::PlannedCard planned(&gpu::card("h100"));
  const std::string text = precision_gain(config, gpu);
  CHECK(text.starts_with("precision = \"bf16\" would save: a step takes at least "));
  CHECK(contains(text, " at the stated peaks of one h100, and "));
  config.train.batch = kAutoBatch;
  CHECK(contains(precision_gain(config, gpu), "would save"));
  CHECK(precision_gain(config, {}).empty());
  config.precision = DType::bf16;
  CHECK(precision_gain(config, gpu).empty());
  config.precision = DType::f32;
  config.data.path += ".missing";
  CHECK(precision_gain(config, gpu).empty());
}

}  // namespace
}  // namespace meshgrad
