// SPDX-License-Identifier: Apache-2.0
// A teacher whose parameters are in host memory between two uses: the same bits, with their share of the
// device's memory gone, as planned.
#include <doctest/doctest.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/tools/program/memory_plan.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "support.h"
#include "train/distill_case.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::ScratchDirectory;
using test::taught_config;
using test::tensors_of;

/// What a run on a device leaves, and the most of its Tag::parameters.
struct DeviceRun {
  std::map<std::string, std::string> tensors;
  int64_t parameters = 0;
};

DeviceRun run_on_device(Config config, const fs::path& dir) {
  config.run.dir = dir.string();
  config.run.device = "cuda";
  Runtime runtime({.device = {DeviceKind::cuda, 0}, .threads = 1, .allocator = config.memory});
  DeviceRun run;
  TrainOptions options;
  int64_t captured = 0;
  options.observer.event = [&](const RunEvent& event) {
    captured += event.kind == RunEventKind::captured ? 1 : 0;
  };
  options.observer.progress = [&](const TrainObserver::Progress&) {
    const auto stats = runtime.allocator().stats();
    run.parameters =
        std::max(run.parameters, stats.by_tag[static_cast<size_t>(Tag::parameters)].allocated.peak);
  };
  train(runtime, config, options);
  CHECK((captured > 0) == (config.graphs == GraphsMode::capture));
  run.tensors = tensors_of(config);
  return run;
}

}  // namespace

TEST_CASE("an offloaded teacher teaches the same bits" * doctest::skip(cuda_devices().empty())) {
  for (const TaskName task : {TaskName::steady_field, TaskName::graph_classification}) {
    for (const DType precision : {DType::f32, DType::bf16}) {
      for (const GraphsMode graphs : {GraphsMode::off, GraphsMode::capture}) {
        CAPTURE(name_of(task));
        CAPTURE(name_of(precision));
        CAPTURE(static_cast<int>(graphs));
        const ScratchDirectory scratch;
        Config config = taught_config(scratch.path, task);
        config.precision = precision;
        config.graphs = graphs;
        config.train.validate_every = 0;
        const DeviceRun resident = run_on_device(config, scratch.path / "resident");
        config.distill.offload = OffloadTo::host;
        const DeviceRun offloaded = run_on_device(config, scratch.path / "offloaded");
        CHECK(offloaded.tensors == resident.tensors);
        config.distill = {};
        const DeviceRun alone = run_on_device(config, scratch.path / "alone");
        CHECK(alone.tensors != resident.tensors);
        CHECK(offloaded.parameters == alone.parameters);
        CHECK(resident.parameters > 2 * alone.parameters);
      }
    }
  }
}

TEST_CASE("a plan counts no offloaded teacher between steps") {
  const ScratchDirectory scratch;
  Config config = taught_config(scratch.path, TaskName::steady_field);
  config.run.device = "cuda";
  const auto plan = [&] { return plan_memory(config, {.device_memory = int64_t{1} << 30}); };
  const MemoryPlan resident = plan();
  config.distill.offload = OffloadTo::host;
  const MemoryPlan offloaded = plan();
  CHECK(resident.budget.teacher > 0);
  CHECK(offloaded.budget.teacher == 0);
  CHECK(std::abs(offloaded.budget.parameters - resident.budget.parameters) < 1024);  // sizes of blocks
  CHECK(offloaded.step.live < resident.step.live);
  CHECK(offloaded.budget.fitting() >= resident.budget.fitting());
}

TEST_CASE("a plan says where a teacher takes least") {
  const ScratchDirectory scratch;
  Config config = taught_config(scratch.path, TaskName::mesh_dynamics, false);
  config.run.device = "cuda";
  const auto note = [&] {
    const MemoryPlan plan = plan_memory(config, {.device_memory = int64_t{1} << 30});
    const auto found = std::ranges::find_if(plan.notes, [](const std::string& text) {
      return text.ends_with("; best: distill.cache") || contains(text, "distill.cache needs");
    });
    REQUIRE(found != plan.notes.end());
    const auto change = std::ranges::find_if(
        plan.changes, [](const MemoryChange& one) { return contains(one.text, "set distill."); });
    REQUIRE(change != plan.changes.end());
    return *found + "\n" + change->text;
  };
  const std::string quiet = note();
  CHECK(contains(quiet, " MiB and at least "));
  CHECK(contains(quiet, " with the teacher on the device, "));
  CHECK(contains(quiet, " with distill.offload = \"host\", "));
  CHECK(contains(quiet, " with distill.cache, a file of "));
  CHECK(contains(quiet, "\nset distill.cache: the teacher predicts once"));
  config.train.noise = 0.01;
  const std::string noisy = note();
  CHECK(contains(noisy, "; distill.cache needs train.noise = 0; best: the device"));
  CHECK(contains(noisy, "\nset distill.offload = \"host\": "));
}

TEST_CASE("on the CPU a teacher stays where it is") {
  const ScratchDirectory scratch;
  Config config = taught_config(scratch.path, TaskName::steady_field);
  test::train_here(config);
  const auto expected = tensors_of(config);
  config.distill.offload = OffloadTo::host;
  config.run.dir = (scratch.path / "offloaded").string();
  std::vector<std::string> told;
  TrainOptions options;
  options.observer.event = [&](const RunEvent& event) { told.push_back(event.text); };
  Runtime runtime({.threads = 1});
  train(runtime, config, options);
  CHECK(tensors_of(config) == expected);
  CHECK(std::ranges::any_of(told, [](const std::string& text) {
    return contains(text, "distill.offload = \"host\" has no effect on the CPU");
  }));
}

TEST_CASE("an offloaded teacher beside a cached one is refused") {
  const auto refused = [](std::vector<std::string> settings) {
    settings.emplace_back("distill.offload=host");
    return message_of([&] { parse_config("", "test", settings); });
  };
  CHECK(contains(refused({"distill.teacher=a", "train.noise=0", "distill.cache=b"}),
                 "[distill.offload] needed \"none\" with distill.cache, which keeps no teacher in memory"));
  CHECK(contains(refused({}), "[distill.offload] needed \"none\" where distill.teacher is empty"));
  CHECK(refused({"distill.teacher=a"}).empty());
}

}  // namespace meshgrad
