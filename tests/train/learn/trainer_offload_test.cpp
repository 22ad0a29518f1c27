// SPDX-License-Identifier: Apache-2.0
// Runs whose boundaries wait in the host's memory or in a file: the same to the last bit, with their share of
// the device's memory gone, as planned.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/planning/recompute.h>
#include <meshgrad/train/learn/planning/step_memory.h>
#include <meshgrad/train/tools/program/memory_plan.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "support.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::devices;
using test::message_of;
using test::ScratchDirectory;
using test::tensors_of;

Config small(const fs::path& folder, Device device) {
  const bool on_gpu = device.kind == DeviceKind::cuda;
  Config config = test::small_config(folder, test::pack_waves(folder, on_gpu ? 4 : 7, 6));
  config.run.device = on_gpu ? "cuda" : "cpu";
  config.model.blocks = 4;
  config.model.width = on_gpu ? 8 : 16;
  config.train.steps = on_gpu ? 2 : 6;
  config.train.accumulate = 2;
  config.train.validate_every = 0;
  config.recompute.mode = RecomputeMode::block;
  return config;
}

std::vector<std::string> run(const Config& config, Device device, TrainResult* result = nullptr) {
  std::vector<std::string> messages;
  TrainOptions options;
  options.observer.event = [&](const RunEvent& event) { messages.push_back(event.text); };
  Runtime runtime({.device = device, .threads = 2, .allocator = config.memory});
  const TrainResult done = train(runtime, config, options);
  if (result != nullptr) *result = done;
  return messages;
}

bool any_contains(const std::vector<std::string>& texts, const std::string& part) {
  return std::any_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return contains(text, part); });
}

TEST_CASE("a run with offloaded boundaries is bit-identical") {
  for (const Device device : devices()) {
    const bool on_gpu = device.kind == DeviceKind::cuda;
    for (const DType precision : {DType::f32, DType::f16, DType::bf16}) {
      for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
        // Simulated kernels are slow; tests/train/learn/recompute_test.cpp has other cases on a device.
        if (on_gpu && (precision != DType::f32 || path == ComputePath::fused)) continue;
        const ScratchDirectory scratch;
        Config config = small(scratch.path, device);
        config.precision = precision;
        config.model.path = path;
        CAPTURE(name_of(device));
        CAPTURE(name_of(precision));
        run(config, device);
        const auto plain = tensors_of(config);
        for (const bool keeps : {false, true}) {
          if (on_gpu && !keeps) continue;
          Config moved = config;
          moved.run.dir = (scratch.path / (keeps ? "keeps" : "inputs")).string();
          moved.recompute.offload = on_gpu ? OffloadTo::host : OffloadTo::file;
          if (keeps) moved.recompute.keep = {"linear", "norm", "edge_update"};
          TrainResult result;
          const auto messages = run(moved, device, &result);
          CHECK(any_contains(messages, on_gpu ? "are offloaded to host memory" : "are offloaded to a file"));
          CHECK(result.offloaded_bytes > 0);
          CHECK(tensors_of(moved) == plain);
        }
      }
    }
  }
}

TEST_CASE("offloading frees the boundaries' share of 15 blocks") {
  for (const Device device : devices()) {
    const bool on_gpu = device.kind == DeviceKind::cuda;
    for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
      if (on_gpu && path == ComputePath::fused) continue;
      const ScratchDirectory scratch;
      Config config = small(scratch.path, device);
      CAPTURE(name_of(device));
      config.model.blocks = 15;
      config.model.width = on_gpu ? 8 : 32;
      config.model.path = path;
      config.model.keep_hidden = false;
      const Dataset dataset = Dataset::open(config.data.path);
      const StepProbe probe(dataset, device);
      Config moved = config;
      moved.recompute.offload = on_gpu ? OffloadTo::host : OffloadTo::file;
      const StepMemory all = measured_memory(probe, config), few = measured_memory(probe, moved);
      const StepMemory predicted = probe.predict(moved);
      const auto step = [](const StepMemory& m) { return m.of(Tag::activations) + m.of(Tag::recompute); };
      // 13 of 14 boundaries are offloaded; three are in memory: two in flight, and the one in use.
      CHECK(few.offloaded > 0);
      CHECK(step(all) - step(few) > few.offloaded * 10 / 13);
      CHECK(few.live < all.live);
      CHECK(predicted.live == few.live);
      CHECK(predicted.by_tag == few.by_tag);
      CHECK(predicted.reserved == few.reserved);
      CHECK(predicted.offloaded == few.offloaded);
      CHECK(all.offloaded == 0);
    }
  }
}

TEST_CASE("where nothing would be gained, or cannot be, a run says so") {
  const ScratchDirectory scratch;
  Config config = small(scratch.path, {});
  config.train.steps = 1;
  config.recompute.offload = OffloadTo::host;
  TrainResult result;
  CHECK(any_contains(run(config, {}, &result), "recompute.offload = \"host\" has no effect on the CPU"));
  CHECK(result.offloaded_bytes == 0);
  config.run.dir += "_file";
  config.recompute.offload = OffloadTo::file;
  config.recompute.offload_dir = (scratch.path / "none").string();
  const std::string message = message_of([&] { run(config, {}); });
  CHECK(contains(message, "[recompute.offload_dir] needed a folder for a temporary file, got " +
                              config.recompute.offload_dir));
  if (cuda_devices().empty()) return;
  CHECK(contains(message_of([&] {
                   run(config, {DeviceKind::cuda, 0});
                 }),
                 "[recompute.offload] needed \"host\" or \"none\" on a GPU, got \"file\""));
}

TEST_CASE("a killed run leaves no file of values") {
  const ScratchDirectory scratch;
  Config config = small(scratch.path, {});
  config.train.steps = 100000;
  config.recompute.offload = OffloadTo::file;
  const fs::path folder = scratch.path / "values";
  fs::create_directories(folder);
  config.recompute.offload_dir = folder.string();
  test::Process process({"train", test::write_config(scratch.path, config)});
  const fs::path metrics = fs::path(config.run.dir) / "metrics.jsonl";
  for (int i = 0; i < 200 && (!fs::exists(metrics) || fs::file_size(metrics) == 0); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(fs::exists(metrics));
  process.send(SIGKILL);
  process.wait();
  CHECK(fs::is_empty(folder));
}

/// Calls `body` with every plan of the stages after `stage`.
void for_all_ways(int64_t stages, std::vector<RecomputedStages>& way, int64_t stage,
                  const std::function<void(const std::vector<RecomputedStages>&)>& body) {
  if (stage == stages) return body(way);
  for_all_ways(stages, way, stage + 1, body);
  for (int64_t end = stage + 1; end <= stages; ++end) {
    for (const SavePolicy keep : {SavePolicy::inputs, SavePolicy::matmuls}) {
      if (keep == SavePolicy::matmuls && end > stage + 1) continue;
      way.push_back({stage, end, keep});
      for_all_ways(stages, way, end, body);
      way.pop_back();
    }
  }
}

TEST_CASE("a budget is kept to down to the least memory") {
  const ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 4));
  config.model.width = 16;
  config.model.blocks = 3;
  const Task task = make_task(config, Dataset::open(config.data.path));
  for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
    for (const bool offload : {false, true}) {
      for (const int64_t edges : {int64_t{300}, int64_t{1200}}) {
        CAPTURE(offload);
        CAPTURE(edges);
        config.model.path = path;
        DryModel dry({}, 1, config, task.sizes(),
                     task.layout({.nodes = 200, .edges = edges}, DType::f32, BatchLayout::Sizes::exact),
                     task.batch_loss());
        std::vector<StageCost> costs = dry.costs();
        for (StageCost& cost : costs) {
          cost.forward_s = 1.0;
          cost.recomputed_s = 0.9;
          cost.partial_s = 0.4;
          if (offload) cost.inputs = 0;
        }
        Recomputation like;
        if (offload) like.offload = OffloadTo::file;
        const auto bytes_of = [&](const std::vector<RecomputedStages>& stages) {
          Recomputation tried = like;
          tried.stages = stages;
          return dry.peak(tried).bytes;
        };
        int64_t least = bytes_of({});
        const int64_t all = least;
        std::vector<RecomputedStages> way;
        for_all_ways(static_cast<int64_t>(costs.size()), way, 0,
                     [&](const auto& w) { least = std::min(least, bytes_of(w)); });
        const auto taken = [&](int64_t room) {
          Recomputation choice = like;
          fit_recomputation(costs, dry, room, SavePolicy::matmuls, choice);
          CHECK(choice.predicted_bytes == bytes_of(choice.stages));
          return choice.predicted_bytes;
        };
        const int64_t low = taken(least / 2);
        CHECK(low >= least);
        // The most is 1.062, with the workspace of multiplications by AMX.
        CHECK(static_cast<double>(low) <= 1.07 * static_cast<double>(least));
        CHECK(taken(-1'000'000) == low);  // what is allocated already may be more than what is usable
        for (int step = 0; step <= 6; ++step) {
          const int64_t room = low + (all - low) * step / 6;
          CHECK(taken(room) <= room);
        }
      }
    }
  }
}

}  // namespace
}  // namespace meshgrad
