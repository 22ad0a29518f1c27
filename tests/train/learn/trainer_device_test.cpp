// SPDX-License-Identifier: Apache-2.0
// Training on a GPU, or on the simulated device where the test is linked with it: the same losses as on the
// CPU, nothing waited for within a step, the same bits after a resume, captured or not.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/metrics_log.h>
#include <meshgrad/train/learn/run/step_cache.h>
#include <meshgrad/train/learn/task/upload.h>
#include <meshgrad/train/tools/extras/reference_values.h>

#include <algorithm>
#include <cmath>

#include "paths.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::ScratchDirectory;

constexpr Device kGpu{DeviceKind::cuda, 0};

Config tiny_config(const fs::path& folder) {
  Config config = test::small_config(folder, test::pack_waves(folder, 4, 6));
  config.run.device = "cuda";
  config.model.width = 8;
  config.train.steps = 4;
  config.train.accumulate = 1;
  config.train.validate_every = 0;
  config.train.checkpoint_every = 0;
  config.train.log_every = 1;
  return config;
}

struct Run {
  TrainResult result;
  std::vector<RunEvent> events;
  gpu::Counters counted;  // by all of it
};

Run train_on(Device device, const Config& config, bool resume = false,
             const std::function<void(TrainObserver&)>& observe = {}) {
  Runtime runtime({.device = device, .threads = 3, .allocator = config.memory});
  TrainOptions options;
  options.resume = resume;
  Run run;
  options.observer.event = [&](const RunEvent& event) { run.events.push_back(event); };
  if (observe) observe(options.observer);
  const gpu::Counters before = gpu::counters();
  run.result = train(runtime, config, options);
  const gpu::Counters after = gpu::counters();
  run.counted = {after.launches - before.launches, after.graph_launches - before.graph_launches,
                 after.captures - before.captures, after.synchronizations - before.synchronizations,
                 after.awaits - before.awaits};
  return run;
}

std::vector<double> losses_of(const Config& config) {
  std::vector<double> losses;
  for (const auto& row : read_metrics(fs::path(config.run.dir) / "metrics.jsonl"))
    if (row.count("loss") > 0) losses.push_back(row.at("loss"));
  return losses;
}

Config in(Config config, const fs::path& folder, const std::string& name) {
  config.run.dir = (folder / name).string();
  return config;
}

double largest_deviation(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  REQUIRE(!a.empty());
  double worst = 0.0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return worst;
}

TEST_CASE("a device trains as the CPU does" * doctest::skip(cuda_devices().empty())) {
  const ScratchDirectory scratch;
  const Config config = tiny_config(scratch.path);
  Config cpu = in(config, scratch.path, "cpu");
  cpu.train.validate_every = 4;
  const double valid = train_on({}, cpu).result.state.last_valid_loss;
  for (const ComputePath path : {ComputePath::fused, ComputePath::op_by_op}) {
    const std::string name = path == ComputePath::fused ? "fused" : "op_by_op";
    CAPTURE(name);
    Config gpu = in(config, scratch.path, name);
    gpu.model.path = path;
    gpu.train.validate_every = 4;
    CHECK(train_on(kGpu, gpu).result.state.last_valid_loss == doctest::Approx(valid).epsilon(1e-4));
    CHECK(largest_deviation(losses_of(gpu), losses_of(cpu)) < 1e-4);
  }
  for (const DType precision : {DType::f16, DType::bf16}) {
    CAPTURE(name_of(precision));
    Config narrow = in(config, scratch.path, std::string(name_of(precision)));
    narrow.precision = precision;
    const Run run = train_on(kGpu, narrow);
    CHECK(run.result.state.optimizer.steps + run.result.state.optimizer.skipped == 4);
    CHECK(run.result.state.optimizer.loss_scale >= 1.0);
    CHECK(std::abs(losses_of(narrow).front() / losses_of(cpu).front() - 1.0) < 0.05);
  }
}

TEST_CASE("no step waits for the device" * doctest::skip(cuda_devices().empty())) {
  const ScratchDirectory scratch;
  for (const GraphsMode graphs : {GraphsMode::off, GraphsMode::capture}) {
    Config config = in(tiny_config(scratch.path), scratch.path, graphs == GraphsMode::off ? "off" : "on");
    config.graphs = graphs;
    config.precision = DType::f16;  // and skips, which only the device decides on
    config.loss_scale.rule = {.initial = 1e9, .interval = 2, .cap = 1e9};
    config.train.free_gradients = graphs == GraphsMode::off;
    config.train.steps = 12;
    config.train.log_every = 1000;
    std::vector<gpu::Counters> after_steps;
    const Run run = train_on(kGpu, config, false, [&](TrainObserver& observer) {
      observer.progress = [&](const TrainObserver::Progress&) { after_steps.push_back(gpu::counters()); };
    });
    REQUIRE(after_steps.size() == 12);
    CHECK(run.result.state.optimizer.skipped > 2);
    CHECK(run.result.state.optimizer.steps + run.result.state.optimizer.skipped == 12);
    CHECK(after_steps[10].synchronizations == after_steps[0].synchronizations);
    CHECK((after_steps[10].graph_launches > after_steps[9].graph_launches) ==
          (graphs == GraphsMode::capture));
    if (graphs == GraphsMode::capture) CHECK(after_steps[10].launches == after_steps[9].launches);
  }
}

TEST_CASE("a run on a device resumes to the same bits" * doctest::skip(cuda_devices().empty())) {
  const ScratchDirectory scratch;
  for (const DType precision : {DType::f32, DType::f16}) {
    for (const GraphsMode graphs : {GraphsMode::off, GraphsMode::capture}) {
      CAPTURE(name_of(precision));
      Config config = tiny_config(scratch.path);
      config.precision = precision;
      config.graphs = graphs;
      config.train.steps = 6;
      config.train.accumulate = 2;
      config.train.log_every = 4;
      fs::remove_all(config.run.dir);
      fs::remove_all(scratch.path / "straight");
      train_on(kGpu, config);
      fs::rename(config.run.dir, scratch.path / "straight");
      int64_t batches = 0;
      const auto stop_at = [&](int64_t at) {
        return [&batches, at](TrainObserver& observer) {
          observer.stop = [&batches, at] { return ++batches == at; };
        };
      };
      CHECK(train_on(kGpu, config, false, stop_at(3)).result.stopped);
      CHECK(train_on(kGpu, config, true, stop_at(8)).result.stopped);
      CHECK_FALSE(train_on(kGpu, config, true).result.stopped);
      CHECK(test::checkpoint_bytes(config.run.dir, "last") ==
            test::checkpoint_bytes(scratch.path / "straight", "last"));
      CHECK(test::lasting_metrics(config.run.dir) == test::lasting_metrics(scratch.path / "straight"));
    }
  }
}

TEST_CASE("captured steps give the losses of steps that are not" * doctest::skip(cuda_devices().empty())) {
  struct Model {
    const char* name;
    DType precision;
    int64_t width;
    ComputePath path;
    double tolerance;
  };
  for (const Model& m : {Model{"f32", DType::f32, 8, ComputePath::fused, 1e-5},
                         Model{"op by op", DType::f32, 8, ComputePath::op_by_op, 1e-5},
                         Model{"f16 on tensor cores", DType::f16, 64, ComputePath::fused, 2e-3}}) {
    CAPTURE(std::string(m.name));
    const ScratchDirectory scratch;
    Config config = tiny_config(scratch.path);
    config.precision = m.precision;
    config.model.width = m.width;
    config.model.blocks = 1;
    config.model.path = m.path;
    config.train.steps = 6;
    config.train.batch = 1;                                 // meshes of two sizes, one by one
    config.optimizer.lr = config.schedule.final_lr = 1e-5;  // so that roundings do not part the ways
    train_on(kGpu, in(config, scratch.path, "off"));
    config.graphs = GraphsMode::capture;
    const Run run = train_on(kGpu, in(config, scratch.path, "capture"));
    CHECK(largest_deviation(losses_of(in(config, scratch.path, "capture")),
                            losses_of(in(config, scratch.path, "off"))) < m.tolerance);
    CHECK(run.counted.captures == 2);  // 16 and 25 nodes: one class; and the optimizer's step
    const auto captured = std::ranges::find(run.events, RunEventKind::captured, &RunEvent::kind);
    REQUIRE(std::ranges::count(run.events, RunEventKind::captured, &RunEvent::kind) == 1);
    CHECK(captured->text.starts_with("captured the step of batches of up to 25 nodes"));
    CHECK(captured->fields.front() == RunEvent::Fields::value_type{"nodes", int64_t{25}});
  }
}

TEST_CASE("batch classes halve the largest batch") {
  const BatchClasses classes({.nodes = 1000, .edges = 6001});
  CHECK(classes.class_of({.nodes = 1000, .edges = 6001}) == 0);
  CHECK(classes.class_of({.nodes = 500, .edges = 3001}) == 1);
  CHECK(classes.class_of({.nodes = 501, .edges = 3001}) == 0);
  CHECK(classes.class_of({.nodes = 10, .edges = 3002}) == 0);
  for (uint64_t shape = 0; shape < 1000; ++shape) {
    const auto nodes = static_cast<int64_t>(1 + uniform_below(5, 0, shape, 1000));
    const auto edges = static_cast<int64_t>(1 + uniform_below(5, 1, shape, 6001));
    const int number = classes.class_of({.nodes = nodes, .edges = edges});
    CAPTURE(nodes);
    CAPTURE(edges);
    REQUIRE((0 <= number && number < BatchClasses::kClasses));
    const auto holds = [&](int of) {
      return classes.capacity(of).nodes >= nodes && classes.capacity(of).edges >= edges;
    };
    CHECK(holds(number));
    CHECK((number + 1 == BatchClasses::kClasses || !holds(number + 1)));
  }
  CHECK(classes.class_of({.nodes = 1, .edges = 0}) == 5);
  CHECK(classes.capacity(5).nodes == 32);
  CHECK(classes.capacity(5).edges == 188);
}

TEST_CASE("a class of batches is captured once and stays" * doctest::skip(cuda_devices().empty())) {
  const ScratchDirectory scratch;
  const Config config = [&] {
    Config changed = tiny_config(scratch.path);
    changed.graphs = GraphsMode::capture;
    return changed;
  }();
  Runtime runtime({.device = kGpu, .threads = 1});
  const Dataset dataset = Dataset::open(config.data.path);
  const Task task = make_task(config, dataset);
  const Model model = make_model(runtime, config, task.sizes());
  const Optimizer optimizer(runtime, model.parameters, {}, 0.0, {.peak = 1e-3});
  Normalizers normalizers = task.dataset_normalizers({});
  std::vector<RunEventKind> told;
  const int64_t before = runtime.allocator().stats().allocated.current;
  {
    StepCache steps(
        runtime, config, task, model, optimizer, {},
        [&](RunEventKind kind, const std::string&, const RunEvent::Fields&) { told.push_back(kind); });
    Uploader uploader(runtime, 2, 0);
    SampleScratch scratch_memory;
    const std::vector<Sample> small{{0, 1, 0}}, large{{0, 1, 0}, {1, 1, 0}};
    const auto run = [&](const std::vector<Sample>& samples) {
      const BatchLayout layout = steps.layout(task.shape(config.data.train_split, samples));
      const StoragePtr staged = uploader.stage(layout.bytes());
      const Batch batch = layout.batch(staged);
      task.write(batch, config.data.train_split, samples, {}, normalizers, false, scratch_memory);
      *batch.tensor(kWindowWeight).data<double>() = 30.0;
      steps.run(layout, [&](const StoragePtr& to) { return uploader.upload(staged, layout.bytes(), to); });
    };
    for (int i = 0; i < 3; ++i) run(large);
    CHECK(told == std::vector{RunEventKind::captured});
    for (int i = 0; i < 3; ++i) run(small);
    CHECK(told == std::vector(2, RunEventKind::captured));
    for (int i = 0; i < 3; ++i) run(large);
    CHECK(told == std::vector(2, RunEventKind::captured));
  }
  runtime.stream().synchronize();
  CHECK(runtime.allocator().stats().allocated.current == before);
}

TEST_CASE("a loss that is not finite stops the run on a device" * doctest::skip(cuda_devices().empty())) {
  const ScratchDirectory scratch;
  Config config = tiny_config(scratch.path);
  config.train.steps = 30;
  config.optimizer.lr = 1e3;
  config.schedule.final_lr = 1e3;
  config.optimizer.name = OptimizerKind::sgd;
  config.train.clip_norm = 0.0;
  CHECK(test::contains(test::message_of([&] { train_on(kGpu, config); }), "finite"));

  config = in(tiny_config(scratch.path), scratch.path, "f16");
  config.precision = DType::f16;
  config.train.noise = 1e6;  // features beyond f16's range
  config.train.steps = 3;
  const std::string text = test::message_of([&] { train_on(kGpu, config); });
  CHECK_MESSAGE(test::contains(text, "[step 3] needed a finite loss at the last step"), text);
  CHECK(test::contains(text, "loss scale 16384"));  // of the third step: 65536, halved twice
}

TEST_CASE("a device verifies, validates, evaluates and rolls out" * doctest::skip(cuda_devices().empty())) {
  Runtime runtime({.device = kGpu, .threads = 1});
  const std::string oracle = test::data_file("oracles/mgn_small.safetensors");
  for (const DType precision : {DType::f32, DType::f16, DType::bf16}) {
    CAPTURE(name_of(precision));
    for (const VerifyGroup& group : verify(runtime, oracle, precision).groups) {
      CAPTURE(group.name);
      CAPTURE(group.worst);
      CHECK(group.relative <= group.tolerance);
    }
  }
  const ScratchDirectory scratch;
  Config config = tiny_config(scratch.path);
  const fs::path checkpoint = train_on(kGpu, config).result.checkpoint;
  Runtime host({.device = {}, .threads = 1});
  const Predictor on_device(runtime, checkpoint), on_host(host, checkpoint);
  const EvaluateOptions options{.split = "test"};
  const Evaluation a = evaluate(on_device, options), b = evaluate(on_host, options);
  CHECK(a.fields.at(0).rmse == doctest::Approx(b.fields.at(0).rmse).epsilon(1e-4));
  CHECK(a.dynamics->rollouts.back().fields.at(0).rmse ==
        doctest::Approx(b.dynamics->rollouts.back().fields.at(0).rmse).epsilon(1e-3));
}

TEST_CASE("a GPU says which precision it does not have" * doctest::skip(cuda_devices().empty())) {
  const ScratchDirectory scratch;
  Config config = tiny_config(scratch.path);
  config.precision = DType::f64;
  CHECK(test::contains(test::message_of([&] { train_on(kGpu, config); }), "f32, f16 or bf16 on a GPU"));
}

}  // namespace
}  // namespace meshgrad
