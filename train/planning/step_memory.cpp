// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/planning/step_memory.h>
#include <meshgrad/train/run/step.h>
#include <meshgrad/train/run/trainer.h>

#include <algorithm>

namespace meshgrad {
namespace {

RuntimeOptions runtime_options(const Config& config, Device device) {
  RuntimeOptions options;
  options.device = device;
  options.threads = static_cast<int>(config.run.threads);
  options.seed = static_cast<uint64_t>(config.run.seed);
  options.autotune = config.autotune;
  options.allocator.expandable_segments = config.memory.expandable_segments;
  options.allocator.plan_steps = config.memory.plan_steps;
  return options;
}

/// What a run keeps on the device.
struct Kept {
  MeshGraphNet model;
  Optimizer optimizer;
  Recomputation recomputation;

  Kept(Runtime& runtime, const Config& config, const FrameFeatures& features)
      : model(allocated(runtime, config, features)),
        optimizer(runtime, model.parameters(), config.optimizer, config.train.clip_norm,
                  learning_rate(config.schedule, config.optimizer.lr, config.train.steps)) {}

 private:
  static MeshGraphNet allocated(Runtime& runtime, const Config& config, const FrameFeatures& features) {
    MeshGraphNet model(model_options(config.model, features));
    model.allocate(runtime, config.precision, static_cast<uint64_t>(config.run.seed));
    return model;
  }
};

StepMemory memory_of(Runtime& runtime, int64_t offloaded) {
  const MemoryStats stats = runtime.allocator().stats();
  return {stats.allocated.peak, stats.tags_at_peak, stats.reserved.peak, offloaded};
}

/// What a run within memory.limit would choose.
Recomputation recomputation_of(const Config& config, Device device, const FrameFeatures& features,
                               const BatchSizes& largest) {
  RuntimeOptions options = runtime_options(config, device);
  options.dry = true;
  options.allocator.memory_limit = config.memory.memory_limit;
  try {
    Runtime limited(std::move(options));
    const Kept kept(limited, config, features);
    Recomputation chosen = choose_recomputation(limited, config, largest, kept.model);
    chosen.check = false;  // there are no values to compare
    return chosen;
  } catch (const OutOfMemory&) {
    return {};  // not even the parameters fit
  }
}

void run_dry(Runtime& runtime, const Config& config, const Kept& kept, const BatchSizes& sizes,
             StepPlan& plan, OffloadStore* store) {
  const BatchMemory memory(sizes, config.precision, BatchMemory::Sizes::exact);
  const StoragePtr piece = device_batch_memory(runtime, memory.bytes());
  const auto work = [&] {
    run_batch(runtime, kept.model, kept.optimizer, memory.batch(piece), memory.window_weight(piece),
              kept.recomputation, store);
  };
  if (config.memory.plan_steps) {
    PlannedStep step(runtime.allocator(), plan, runtime.stream());
    work();
    step.done();
  } else {
    work();
  }
  kept.optimizer.step(runtime);
}

/// As TrainStep keeps them: the classes of batches up to the number `last`, and the optimizer's step.
struct CapturedSteps {
  struct Class {
    StoragePtr piece;
    Batch batch;
    std::unique_ptr<OffloadStore> store;
    std::unique_ptr<CapturedWork> work;  // goes first
  };
  std::vector<std::unique_ptr<Class>> classes;
  std::unique_ptr<CapturedWork> update;

  CapturedSteps(Runtime& runtime, const Config& config, const Kept& kept, const BatchClasses& sizes,
                int last) {
    for (int number = 0; number <= last; ++number) {
      const BatchMemory memory(sizes.capacity(number), config.precision, BatchMemory::Sizes::capacity);
      Class& made = *classes.emplace_back(std::make_unique<Class>());
      made.piece = device_batch_memory(runtime, memory.bytes());
      made.batch = memory.batch(made.piece);
      made.store = make_offload_store(runtime, config, kept.recomputation);
      made.work = std::make_unique<CapturedWork>(runtime, "captured step", [&, memory](Runtime& own) {
        run_batch(own, kept.model, kept.optimizer, made.batch, memory.window_weight(made.piece),
                  kept.recomputation, made.store.get());
      });
      made.work->run();
    }
    update = std::make_unique<CapturedWork>(runtime, "optimizer step",
                                            [&](Runtime& own) { kept.optimizer.step(own); });
    update->run();
  }
  int64_t offloaded_bytes() const {
    int64_t bytes = 0;
    for (const auto& made : classes) bytes += made->store != nullptr ? made->store->peak_bytes() : 0;
    return bytes;
  }
};

/// Trajectories by their number of edges, then of nodes.
template <class Better>
int64_t pick_trajectory(const Dataset& dataset, const std::string& split, Better&& better) {
  int64_t picked = 0;
  const auto size = [&](int64_t i) {
    const Dataset::MeshSizes mesh = dataset.mesh_sizes(split, i);
    return std::pair(mesh.edges, mesh.nodes);
  };
  for (int64_t i = 1; i < dataset.size(split); ++i)
    if (better(size(i), size(picked))) picked = i;
  return picked;
}

/// The smallest class that batches of config.train.batch samples can fall into.
int last_class(const Config& config, const Dataset& dataset, const BatchClasses& classes) {
  const std::string& split = config.data.train_split;
  const Dataset::MeshSizes mesh =
      dataset.mesh_sizes(split, pick_trajectory(dataset, split, std::less<std::pair<int64_t, int64_t>>()));
  return classes.class_of(
      {.nodes = mesh.nodes * config.train.batch, .edges = mesh.edges * config.train.batch});
}

}  // namespace

StepMemory StepProbe::predict(const Config& config, Batches batches) const {
  const bool on_gpu = device_.kind == DeviceKind::cuda;
  if (on_gpu && !gpu::built()) {
    throw device_error("plan", name_of(device_), "a build without CUDA, which does not have its kernels",
                       "build with -DMESHGRAD_CUDA=ON, or set run.device = \"cpu\"");
  }
  RuntimeOptions options = runtime_options(config, device_);
  options.dry = true;
  Runtime runtime(std::move(options));
  Kept kept(runtime, config, features_);
  const BatchSizes largest = largest_batch(config, dataset_, features_);
  kept.recomputation = recomputation_of(config, device_, features_, largest);
  if (on_gpu && config.graphs == GraphsMode::capture) {
    const BatchClasses classes(largest);
    const int last = batches == Batches::largest ? 0 : last_class(config, dataset_, classes);
    const CapturedSteps steps(runtime, config, kept, classes, last);
    return memory_of(runtime, steps.offloaded_bytes());
  }
  StepPlan plan;
  const std::unique_ptr<OffloadStore> store = make_offload_store(runtime, config, kept.recomputation);
  for (int step = 0; step < 2; ++step) run_dry(runtime, config, kept, largest, plan, store.get());
  return memory_of(runtime, store != nullptr ? store->peak_bytes() : 0);
}

StepMemory StepProbe::measure(const Config& config) const {
  RuntimeOptions options = runtime_options(config, device_);
  options.allocator = config.memory;
  options.allocator.history = 0;
  Runtime runtime(std::move(options));
  const Kept kept(runtime, config, features_);
  TrainStep step(runtime, config, dataset_, features_, kept.model, kept.optimizer, [](const std::string&) {});
  runtime.allocator().reset_peak();  // what it took to choose what is recomputed is no part of a step

  const std::string& split = config.data.train_split;
  const int64_t trajectory = pick_trajectory(dataset_, split, std::greater<std::pair<int64_t, int64_t>>());
  const FrameRange frames =
      usable_frames(config.data.predict, dataset_.frames(split, trajectory), config.unroll.steps);
  if (frames.end <= frames.first) {
    throw data_error(config.data.path, "frames to train on in the trajectory of the largest mesh", "too few",
                     "plan with --mode static, or lower unroll.steps");
  }
  std::vector<Sample> samples;
  for (int64_t i = 0; i < config.train.batch; ++i)
    samples.push_back({trajectory, frames.first + i % (frames.end - frames.first), 0});
  Normalizers normalizers = features_.online_normalizers();
  // A captured step is first queued, then recorded.
  for (int run = 0; run < 2; ++run) {
    step.batch(samples, {.weight = static_cast<double>(config.train.batch), .noise = {}}, normalizers);
    step.finish_window();
  }
  runtime.stream().synchronize();
  return memory_of(runtime, step.offloaded_bytes());
}

int64_t StepProbe::most_samples(const Config& config) const {
  const Dataset::MeshSizes mesh = dataset_.largest_mesh(config.data.train_split);
  return std::max<int64_t>(1, (INT32_MAX - 1) / std::max<int64_t>({1, mesh.nodes, mesh.edges}));
}

}  // namespace meshgrad
