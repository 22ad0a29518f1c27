// SPDX-License-Identifier: Apache-2.0
// What `meshgrad plan` says is what the allocator then reports, over random models and meshes; on the CPU,
// and on a GPU or the simulated device where there is one.
#include <doctest/doctest.h>
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/train/learn/run/step_cache.h>
#include <meshgrad/train/tools/program/plan_text.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "paths.h"
#include "support.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::devices;
using test::ScratchDirectory;

constexpr uint64_t kSeed = 20261121;

/// Random settings that the memory of a step depends on.
class Draw {
 public:
  explicit Draw(uint64_t number) : number_(number) {}
  int64_t from(int64_t least, int64_t most) {
    return least +
           static_cast<int64_t>(uniform(kSeed, number_, next_++) * static_cast<double>(most - least + 1));
  }

 private:
  uint64_t number_;
  uint64_t next_ = 0;
};

Config random_config(const fs::path& folder, uint64_t number, Device device) {
  Draw draw(number);
  const bool on_gpu = device.kind == DeviceKind::cuda;
  const fs::path data = folder / ((on_gpu ? "gpu" : "cpu") + std::to_string(number));
  fs::create_directories(data);
  Config config = test::small_config(
      data, test::pack_waves(data, static_cast<int>(on_gpu ? draw.from(3, 5) : draw.from(3, 30)), 6));
  config.run.device = on_gpu ? "cuda" : "cpu";
  config.run.threads = draw.from(1, 3);
  config.model.width = on_gpu ? draw.from(1, 2) * 16 : draw.from(3, 70);
  config.model.blocks = draw.from(1, on_gpu ? 2 : 6);
  config.model.hidden_layers = draw.from(1, 3);
  config.model.keep_hidden = draw.from(0, 1) == 0;
  config.model.path = draw.from(0, 3) == 0 ? ComputePath::op_by_op : ComputePath::fused;
  config.model.norm = draw.from(0, 1) == 0 ? Norm::layer : Norm::rms;
  const DType precisions[] = {DType::f32, DType::f16, DType::bf16, DType::f64};
  config.precision = precisions[draw.from(0, on_gpu ? 2 : 3)];
  const OptimizerKind optimizers[] = {OptimizerKind::adam, OptimizerKind::adamw, OptimizerKind::sgd};
  config.optimizer.name = optimizers[draw.from(0, 2)];
  config.train.batch = draw.from(1, on_gpu ? 2 : 5);
  config.train.accumulate = 1;
  config.memory.plan_steps = draw.from(0, 2) == 0;
  config.train.validate_every = 0;
  config.train.checkpoint_every = 0;
  const RecomputeMode modes[] = {RecomputeMode::off, RecomputeMode::block, RecomputeMode::every,
                                 RecomputeMode::sqrt};
  config.recompute.mode = modes[draw.from(0, 3)];
  config.recompute.every = draw.from(1, 3);
  const bool moves = draw.from(0, 1) == 0 && number < 200 && config.recompute.mode != RecomputeMode::off;
  if (moves) config.recompute.offload = on_gpu ? OffloadTo::host : OffloadTo::file;
  if (draw.from(0, 2) == 0) config.recompute.keep = {"linear", "edge_update"};
  return config;
}

struct PlannedRun {
  Config config;
  Dataset dataset;
  StepProbe probe;
  PlannedRun(const fs::path& folder, uint64_t number, Device device)
      : PlannedRun(random_config(folder, number, device), device) {}
  PlannedRun(const Config& with, Device device)
      : config(with), dataset(Dataset::open(config.data.path)), probe(dataset, device) {}
};

/// What the allocator reports when it has handed out the most of a run. Peaks start anew at an epoch's end.
MemoryStats stats_of_run(const Config& config, Device device) {
  Runtime runtime(
      {.device = device, .threads = static_cast<int>(config.run.threads), .allocator = config.memory});
  MemoryStats most;
  TrainOptions options;
  options.observer.progress = [&](const TrainObserver::Progress&) {
    const MemoryStats stats = runtime.allocator().stats();
    if (stats.allocated.peak > most.allocated.peak) most = stats;
  };
  train(runtime, config, options);
  return most;
}

TEST_CASE("a predicted step is within -2 and +10 % of a run") {
  const ScratchDirectory scratch;
  for (const Device device : devices()) {
    const bool on_gpu = device.kind == DeviceKind::cuda;
    for (uint64_t number = 0; number < (on_gpu ? 4u : 24u); ++number) {
      PlannedRun c(scratch.path, number, device);
      CAPTURE(number);
      CAPTURE(name_of(device));
      c.config.train.steps = on_gpu ? 3 : 8;
      c.config.train.batch = 1;  // so that a batch of the largest mesh comes
      const StepMemory predicted = c.probe.predict(c.config);
      const MemoryStats stats = stats_of_run(c.config, device);
      CHECK(predicted.live >= 98 * stats.allocated.peak / 100);
      CHECK(predicted.live <= 110 * stats.allocated.peak / 100);
      CHECK(std::accumulate(predicted.by_tag.begin(), predicted.by_tag.end(), int64_t{0}) == predicted.live);
      for (const Tag tag : {Tag::parameters, Tag::gradients, Tag::optimizer})
        CHECK(predicted.of(tag) == stats.tags_at_peak[static_cast<size_t>(tag)]);
      CHECK(predicted.reserved >= predicted.live);
    }
  }
}

TEST_CASE("a measured step is what was predicted of the same shapes") {
  const ScratchDirectory scratch;
  for (const Device device : devices()) {
    const bool on_gpu = device.kind == DeviceKind::cuda;
    for (uint64_t number = 100; number < (on_gpu ? 103u : 112u); ++number) {
      const PlannedRun c(scratch.path, number, device);
      CAPTURE(number);
      CAPTURE(name_of(device));
      const StepMemory predicted = c.probe.predict(c.config);
      const StepMemory measured = measured_memory(c.probe, c.config);
      CHECK(std::abs(predicted.live - measured.live) <= measured.live / 50);
      CHECK(predicted.by_tag == measured.by_tag);
      CHECK(predicted.offloaded == measured.offloaded);
      CHECK(predicted.reserved == measured.reserved);
    }
  }
}

/// The batch size that the fields of a budget lead to.
int64_t batch_of(const MemoryBudget& b) {
  const int64_t left = b.available - b.activation;
  return std::min(b.max_batch, std::max<int64_t>(0, left / b.per_graph));
}

TEST_CASE("the batch size follows from the budget") {
  const ScratchDirectory scratch;
  for (uint64_t number = 200; number < 220; ++number) {
    PlannedRun c(scratch.path, number, {});
    Draw draw(number + 1000);
    CAPTURE(number);
    c.config.plan.target_utilization = 0.5 + 0.025 * static_cast<double>(draw.from(0, 20));
    c.config.plan.max_batch = draw.from(1, 200);
    const auto peak = [&](int64_t batch) {
      c.config.train.batch = batch;
      return c.probe.predict(c.config).reserved;
    };
    const MemoryRoom room{.total = peak(1) * draw.from(1, 150) / draw.from(1, 3)};
    const MemoryBudget budget = memory_budget(c.probe, c.config, room);
    CAPTURE(to_text(budget));
    const int64_t usable = budget.available + budget.fixed();
    CHECK(usable == static_cast<int64_t>(c.config.plan.target_utilization * static_cast<double>(room.total)));
    CHECK(batch_of(budget) == budget.batch_size);
    CHECK(budget.batch_size <= c.config.plan.max_batch);
    if (budget.batch_size > 0) CHECK(peak(budget.batch_size) <= usable);
    if (budget.batch_size < c.config.plan.max_batch) CHECK(peak(budget.batch_size + 1) > usable);
  }
}

TEST_CASE("the optimizer's state is twice the weights in f32") {
  const ScratchDirectory scratch;
  PlannedRun c(scratch.path, 300, {});
  c.config.optimizer.name = OptimizerKind::adamw;
  c.config.precision = DType::f32;
  const StepMemory f32 = c.probe.predict(c.config);
  const auto about = [](int64_t bytes, int64_t expected) { return std::abs(bytes - expected) <= 4096; };
  CHECK(about(f32.of(Tag::optimizer), 2 * f32.of(Tag::parameters)));
  CHECK(f32.of(Tag::gradients) == f32.of(Tag::parameters));
  c.config.precision = DType::bf16;
  const StepMemory bf16 = c.probe.predict(c.config);
  CHECK(about(bf16.of(Tag::parameters), f32.of(Tag::parameters) * 3 / 2));
  CHECK(bf16.of(Tag::optimizer) == f32.of(Tag::optimizer));
}

TEST_CASE("changes come in order, and useless ones are left out") {
  const ScratchDirectory scratch;
  PlannedRun c(scratch.path, 301, {});
  c.config.precision = DType::f32;
  c.config.recompute.mode = RecomputeMode::off;
  c.config.model.path = ComputePath::op_by_op;
  c.config.model.keep_hidden = true;
  c.config.model.blocks = 4;
  c.config.train.batch = 4;
  const std::vector<MemoryChange> changes = memory_ladder(c.probe, c.config);
  REQUIRE(changes.size() == 7);
  const bool on_gpu = c.probe.device().kind == DeviceKind::cuda;
  const char* const order[] = {"model.path = \"fused\"",
                               "keep_hidden = false",
                               "recompute.mode = \"block\"",
                               on_gpu ? "recompute.offload = \"host\"" : "recompute.offload = \"file\"",
                               "train.batch = 2",
                               "precision = \"bf16\"",
                               "model.blocks = 2"};
  int64_t bytes = c.probe.predict(c.config).live;
  for (size_t i = 0; i < changes.size(); ++i) {
    CHECK_MESSAGE(contains(changes[i].text, order[i]), changes[i].text);
    CHECK(changes[i].before == bytes);
    CHECK(changes[i].after < bytes);
    bytes = changes[i].after;
  }
  c.config.model.path = ComputePath::fused;
  c.config.model.keep_hidden = false;
  c.config.recompute.mode = RecomputeMode::block;
  c.config.recompute.offload = on_gpu ? OffloadTo::host : OffloadTo::file;
  c.config.train.batch = 2;
  c.config.precision = DType::bf16;
  c.config.model.blocks = 2;
  CHECK(c.probe.predict(c.config).live == bytes);
  c.config.train.batch = 1;
  c.config.model.blocks = 1;
  CHECK(memory_ladder(c.probe, c.config).empty());
}

TEST_CASE("train.batch = \"auto\" takes what fits") {
  const ScratchDirectory scratch;
  for (const Device device : devices()) {
    const bool on_gpu = device.kind == DeviceKind::cuda;
    Config config = random_config(scratch.path, on_gpu ? 400 : 401, device);
    CAPTURE(name_of(device));
    config.train.batch = kAutoBatch;
    config.train.steps = on_gpu ? 2 : 6;
    config.train.checkpoint_every = 1;
    config.plan.min_batch = on_gpu ? 2 : 5;  // an eighth of the samples is one
    config.plan.max_batch = on_gpu ? 3 : 64;
    config.run.threads = 2;
    Config wanted = config;
    wanted.train.batch = config.plan.min_batch;
    config.memory.memory_limit = PlannedRun(wanted, device).probe.predict(wanted).reserved * 10 / 9 + 4096;
    Config larger = config;
    larger.plan.min_batch = larger.plan.max_batch = on_gpu ? 64 : wanted.train.batch + 4;
    {
      Runtime runtime({.device = device, .threads = 2, .allocator = larger.memory});
      CHECK_THROWS_WITH_AS(train(runtime, larger, {}), doctest::Contains("[plan.min_batch] needed"),
                           ConfigError);
    }
    std::vector<std::string> said;
    int64_t most = 0;  // handed out
    const auto run = [&](bool resume, int64_t steps) {
      config.train.steps = steps;
      Runtime runtime({.device = device, .threads = 2, .allocator = config.memory});
      TrainOptions options;
      options.resume = resume;
      options.observer.event = [&](const RunEvent& event) { said.push_back(event.text); };
      options.observer.progress = [&](const TrainObserver::Progress&) {
        most = std::max(most, runtime.allocator().stats().allocated.peak);
      };
      train(runtime, config, options);
      return runtime.allocator().stats();
    };
    // What is left beside the steps is for the holes between blocks: meshes differ, and nothing is planned.
    const MemoryStats stats = run(false, config.train.steps);
    CHECK(static_cast<double>(most) <=
          config.plan.target_utilization * static_cast<double>(config.memory.memory_limit));
    CHECK(stats.reserved.peak <= config.memory.memory_limit);
    REQUIRE_FALSE(said.empty());
    CHECK(said.front().starts_with("train.batch = "));
    const fs::path resolved = fs::path(config.run.dir) / "config.resolved.toml";
    const int64_t batch = load_config(resolved.string()).train.batch;
    CHECK(batch == wanted.train.batch);
    CHECK(contains(said.front(), "train.batch = " + std::to_string(batch) + ","));
    config.memory.memory_limit *= 2;
    run(true, config.train.steps + 1);
    CHECK(load_config(resolved.string()).train.batch == batch);
  }
}

TEST_CASE("unrolled steps take what is predicted") {
  const ScratchDirectory scratch;
  for (const Device device : devices()) {
    for (const SegmentUnit unit : {SegmentUnit::block, SegmentUnit::frame, SegmentUnit::sequence}) {
      const uint64_t number = 700 + static_cast<uint64_t>(unit);
      PlannedRun c(scratch.path / name_of(device), number, device);
      CAPTURE(name_of(device));
      CAPTURE(number);
      if (device.kind == DeviceKind::cuda && unit == SegmentUnit::sequence) continue;
      c.config.train.batch = 2;
      c.config.unroll.steps = 4;
      c.config.recompute.segments = unit;
      const StepMemory predicted = c.probe.predict(c.config);
      const StepMemory measured = measured_memory(c.probe, c.config);
      CHECK(std::abs(predicted.live - measured.live) <= measured.live / 50);
      CHECK(predicted.by_tag == measured.by_tag);
      CHECK(predicted.reserved == measured.reserved);
      c.config.unroll.steps = 6;  // of 6 frames
      CHECK_THROWS_AS(measured_memory(c.probe, c.config), DataError);
    }
  }
}

TEST_CASE("the grid is of batches and possible unrolled steps") {
  const ScratchDirectory scratch;
  PlannedRun c(scratch.path, 710, {});
  c.config.train.batch = 3;
  c.config.unroll.steps = 3;
  c.config.model.blocks = 6;
  c.config.recompute.mode = RecomputeMode::off;
  const int64_t room = c.probe.predict(c.config).reserved * 5 / 4;
  const MemoryPlan plan = plan_memory(c.config, {.device_memory = room});
  std::vector<int64_t> steps;
  bool fits = false, too_large = false;
  for (const MemoryPlan::Cell& cell : plan.grid) {
    CAPTURE(cell.batch);
    CAPTURE(cell.steps);
    if (cell.batch == 1) steps.push_back(cell.steps);
    Config one = c.config;
    one.train.batch = cell.batch;
    one.unroll.steps = cell.steps;
    CHECK(cell.bytes == c.probe.predict(one).reserved);
    CHECK(cell.fits == (cell.bytes <= plan.usable));
    fits = fits || (cell.steps == 4 && cell.fits);
    too_large = too_large || (cell.steps == 4 && !cell.fits);
  }
  CHECK(steps == std::vector<int64_t>{1, 2, 3, 4});
  CHECK(fits);
  CHECK(too_large);
  CHECK(plan.grid.size() % steps.size() == 0);
  CHECK(contains(to_text(plan), "    batch     1 frame         2 frames        3 frames"));
  const auto offers_frames = [&](const MemoryPlan& of) {
    return std::any_of(of.changes.begin(), of.changes.end(), [](const MemoryChange& change) {
      return contains(change.text, "recompute.segments = \"frame\"");
    });
  };
  CHECK(offers_frames(plan));
  c.config.unroll.steps = 1;
  CHECK_FALSE(offers_frames(plan_memory(c.config, {.device_memory = room})));
}

TEST_CASE("a budget that only 16 bits keep to is planned") {
  const ScratchDirectory scratch;
  PlannedRun c(scratch.path, 302, {});
  c.config.model.width = 32;
  c.config.model.blocks = 4;
  c.config.train.batch = 4;
  c.config.precision = DType::bf16;
  c.config.recompute.mode = RecomputeMode::budget;
  const auto kept = [&](DType precision) {
    Config config = c.config;
    config.precision = precision;
    try {
      return c.probe.predict(config).live > 0;
    } catch (const ConfigError&) {
      return false;
    }
  };
  c.config.recompute.budget = 1 << 14;
  while (!kept(DType::bf16)) c.config.recompute.budget += c.config.recompute.budget / 8;
  REQUIRE_FALSE(kept(DType::f32));
  const MemoryPlan plan = plan_memory(c.config, {.device_memory = int64_t{1} << 30});
  REQUIRE(plan.choices.size() == 4);
  CHECK_FALSE(plan.choices[1].possible);
  CHECK(plan.choices[3].possible);
  CHECK(contains(to_text(plan), "over recompute.budget"));
}

TEST_CASE("running out of memory prints the plan's changes") {
  const ScratchDirectory scratch;
  PlannedRun c(scratch.path, 403, {});
  c.config.model.path = ComputePath::fused;
  c.config.model.keep_hidden = true;
  c.config.model.blocks = 6;
  c.config.model.width = 64;
  c.config.train.batch = 8;
  const std::vector<MemoryChange> changes = memory_ladder(c.probe, c.config);
  REQUIRE(changes.size() > 2);
  c.config.memory.memory_limit = c.probe.predict(c.config).reserved * 6 / 10;
  std::string said;
  try {
    stats_of_run(c.config, {});
  } catch (const OutOfMemory& error) {
    said = error.what();
  }
  CAPTURE(said);
  for (size_t i = 0; i < changes.size(); ++i)
    CHECK(contains(said, "\n  " + std::to_string(i + 1) + ". " + changes[i].line() + "\n"));
}

TEST_CASE("a run below plan.min_batch does not start") {
  const ScratchDirectory scratch;
  Config config = random_config(scratch.path, 402, {});
  config.train.batch = kAutoBatch;
  config.memory.memory_limit = int64_t{8} << 20;
  config.plan.min_batch = 1000;
  Runtime runtime({.device = {}, .threads = 1, .allocator = config.memory});
  CHECK_THROWS_AS(train(runtime, config, {}), ConfigError);
  CHECK_FALSE(fs::exists(config.run.dir));
}

TEST_CASE("meshgrad plan needs no memory for a step of many GiB") {
  const ScratchDirectory scratch;
  Config config = random_config(scratch.path, 500, {});
  config.model.width = 1024;
  config.model.blocks = 15;
  config.model.path = ComputePath::fused;
  config.precision = DType::f32;
  config.train.batch = 512;
  const std::string file = test::write_config(scratch.path, config);
  const auto plan = [&](const std::string& arguments) {
    // Addresses for the program and its libraries, of which a step would need fifty times as many.
    const std::string command =
        "ulimit -v 1000000; exec " + test::program() + " plan " + file + " " + arguments;
    return test::Process({"-c", command}, "/bin/sh").wait();
  };
  const test::Outcome text = plan("--device-memory 64GiB");
  CAPTURE(text.err);
  REQUIRE(text.code == 0);
  CAPTURE(text.out);
  for (const char* part :
       {"static plan for cpu: a step of batch 512 ", "parameters ", "gradients ", "optimizer ",
        "activations ", "workspace ", "data ", "total ", "reserved ", "baseline ", "recomputation ",
        "16 bits ", "both ", "recommended: ", "to save memory, in this order:",
        "  1. set model.keep_hidden = false", "MemoryBudget(total=68719.476736MB static="})
    CHECK_MESSAGE(contains(text.out, part), part);
  const test::Outcome json = plan("--device-memory 64GiB --json");
  REQUIRE(json.code == 0);
  const auto fields = nlohmann::json::parse(json.out);
  CHECK(fields["step"]["total"].get<int64_t>() > int64_t{20} << 30);
  int64_t sum = 0;
  for (const auto& [tag, bytes] : fields["step"]["tags"].items()) sum += bytes.get<int64_t>();
  CHECK(sum == fields["step"]["total"]);
  CHECK(fields["batch"] == 512);
  const auto largest = fields["budget"]["batch_size"].get<int64_t>();
  CHECK(largest > 1);
  bool fits = true;
  for (const auto& cell : fields["grid"]) {
    CHECK(cell["fits"] == (cell["bytes"] <= fields["usable"]));
    if (cell["steps"] == 1) CHECK(cell["fits"] == (cell["batch"] <= largest));
    fits = fits && cell["fits"].get<bool>();
  }
  CHECK_FALSE(fits);
  const test::Outcome wrong = plan("--device-memory lots");
  CHECK(wrong.code == 2);
  CHECK(contains(wrong.err, "[--device-memory] needed a size with a unit"));
}

TEST_CASE("captured steps of several classes are planned for" * doctest::skip(cuda_devices().empty())) {
  const ScratchDirectory scratch;
  const Device device{DeviceKind::cuda, 0};
  Config config = random_config(scratch.path, 600, device);
  config.graphs = GraphsMode::capture;
  config.train.batch = 1;
  config.train.steps = 6;
  PlannedRun c(config, device);
  const StepMemory predicted = c.probe.predict(c.config);
  const MemoryStats stats = stats_of_run(c.config, device);
  CHECK(predicted.live >= 98 * stats.allocated.peak / 100);
  CHECK(predicted.live <= 110 * stats.allocated.peak / 100);
}

}  // namespace
}  // namespace meshgrad
