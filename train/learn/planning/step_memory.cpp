// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/halo.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/learn/planning/recompute.h>
#include <meshgrad/train/learn/planning/step_memory.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/step_cache.h>
#include <meshgrad/train/learn/task/largest_batch.h>
#include <meshgrad/train/learn/task/upload.h>

#include <algorithm>
#include <utility>

namespace meshgrad {
namespace {

RuntimeOptions runtime_options(const Config& config, Device device) {
  RuntimeOptions options;
  options.device = device;
  options.threads = static_cast<int>(config.run.threads);
  options.seed = static_cast<uint64_t>(config.run.seed);
  options.autotune = config.autotune;
  options.tf32 = config.tf32;
  options.wgmma = config.wgmma;
  options.allocator.expandable_segments = config.memory.expandable_segments;
  options.allocator.plan_steps = config.memory.plan_steps;
  return options;
}

/// What a run holds on the device between steps.
struct Held {
  Model model;
  Optimizer optimizer;

  Held(Runtime& runtime, const Config& config, const Task& task)
      : model(make_model(runtime, config, task.sizes())),
        optimizer(runtime, model.parameters, config, config.train.steps) {}
};

StepMemory memory_of(Runtime& runtime, int64_t offloaded) {
  const MemoryStats stats = runtime.allocator().stats();
  return {stats.allocated.peak, stats.tags_at_peak, stats.reserved.peak, offloaded, {}};
}

/// What a run within memory.limit would choose.
Recomputation recomputation_of(const Config& config, Device device, const Task& task) {
  RuntimeOptions options = runtime_options(config, device);
  options.dry = true;
  options.allocator.memory_limit = config.memory.memory_limit;
  try {
    Runtime limited(std::move(options));
    const Held held(limited, config, task);
    Recomputation chosen =
        choose_recomputation(limited, config, task, largest_batch(config, task), held.model);
    chosen.check = false;  // there are no values to compare
    return chosen;
  } catch (const OutOfMemory&) {
    return {};  // not even the parameters fit
  }
}

/// A step in memory that is not filled.
void dry_run(Runtime& runtime, StepCache& steps, const BatchLayout& layout) {
  steps.run(layout, [&](const StoragePtr& to) {
    return to != nullptr ? to : device_batch_memory(runtime, layout.bytes());
  });
}

/// Counts what would be sent.
class DryExchange final : public HaloExchange {
 public:
  std::unique_ptr<Flight> forward(const Halo&, const Tensor& sent, const Tensor&) override {
    return start(sent);
  }
  std::unique_ptr<Flight> backward(const Halo&, const Tensor& d_ghosts, const Tensor&) override {
    return start(d_ghosts);
  }
  int64_t take_bytes() { return std::exchange(bytes_, 0); }

 private:
  /// In flight, as it is between ranks: kernels then have the memory that they have there.
  class DryFlight final : public Flight {
    void wait() override {}
  };
  std::unique_ptr<Flight> start(const Tensor& sent) {
    bytes_ += sent.bytes();
    return std::make_unique<DryFlight>();
  }

  int64_t bytes_ = 0;
};

/// Of a batch of `copies` of the part's mesh.
std::shared_ptr<Halo> dry_halo(Runtime& runtime, const Part& part, int64_t copies,
                               std::shared_ptr<HaloExchange> exchange) {
  std::vector<Neighbour> neighbours = part.neighbours;
  for (Neighbour& neighbour : neighbours) {
    neighbour.sent *= copies;
    neighbour.ghosts *= copies;
  }
  std::vector<int32_t> sent;
  for (int64_t copy = 0; copy < copies; ++copy) sent.insert(sent.end(), part.sent.begin(), part.sent.end());
  Halo halo = make_halo(runtime, copies * part.owned, std::move(neighbours), sent, std::move(exchange));
  halo.interior = copies * part.interior;
  if (runtime.stream().on_gpu()) {
    const PartEdges& edges = part.edges(kMeshEdges);
    const auto indices = [&](int64_t count) {
      return Tensor::empty(runtime, Shape{count}, DType::i32, Tag::data, "halo");
    };
    halo.interior_edges = copies * edges.interior;
    halo.border_receivers = indices(copies * (edges.edges() - edges.interior));
    halo.border_offsets = indices(copies * (part.owned - part.interior) + 1);
  }
  return std::make_shared<Halo>(std::move(halo));
}

}  // namespace

StepMemory StepProbe::predict(const Config& config, Batches batches) const {
  RuntimeOptions options = runtime_options(config, device_);
  options.dry = true;
  std::vector<std::string> messages;
  options.log = [&](LogLevel, std::string_view text) { messages.emplace_back(text); };
  Runtime runtime(std::move(options));
  const Task task = make_task(config, dataset_);
  const Held held(runtime, config, task);
  StepCache steps(runtime, config, task, held.model, held.optimizer, recomputation_of(config, device_, task),
                  [](const std::string&) {});
  if (steps.captures()) {
    const int last = batches == Batches::largest ? 0 : steps.classes().class_of(smallest_batch(config, task));
    for (int number = 0; number <= last; ++number)
      dry_run(runtime, steps, steps.layout(steps.classes().capacity(number)));
    steps.update();
  } else {
    // Planned offsets are recorded in the second step, and used from the third on.
    const int count = config.memory.plan_steps ? 3 : 2;
    for (int step = 0; step < count; ++step) {
      dry_run(runtime, steps, steps.layout(largest_batch(config, task)));
      steps.update();
    }
  }
  StepMemory memory = memory_of(runtime, steps.offloaded_bytes());
  memory.messages = std::move(messages);
  return memory;
}

StepProbe::PartStep StepProbe::predict_part(const Config& config, const Part& part) const {
  RuntimeOptions options = runtime_options(config, device_);
  options.dry = true;
  Runtime runtime(std::move(options));
  const Task task = make_task(config, dataset_);
  const Held held(runtime, config, task);
  StepCache steps(runtime, config, task, held.model, held.optimizer, recomputation_of(config, device_, task),
                  [](const std::string&) {});
  const int64_t copies = config.train.batch;
  BatchLayout layout = steps.layout({.nodes = copies * part.owned,
                                     .edges = copies * part.edges(kMeshEdges).edges(),
                                     .ghosts = copies * part.ghosts(),
                                     .world_edges = world_room(config.data, copies * part.owned),
                                     .graphs = copies});
  const auto exchange = std::make_shared<DryExchange>();
  layout.set_halo(dry_halo(runtime, part, copies, exchange));
  int64_t sent = 0;
  const int count = config.memory.plan_steps ? 3 : 2;
  for (int step = 0; step < count; ++step) {
    dry_run(runtime, steps, layout);
    steps.update();
    sent = exchange->take_bytes();
  }
  return {memory_of(runtime, steps.offloaded_bytes()), sent};
}

std::vector<WorkTrace::Call> StepProbe::kernel_calls(const Config& config, const BatchShape& shape) const {
  Config plain = config;
  plain.graphs = GraphsMode::off;  // a captured step counts on the device
  plain.memory.plan_steps = false;
  RuntimeOptions options = runtime_options(plain, device_);
  options.dry = true;
  options.log = [](LogLevel, std::string_view) {};
  Runtime runtime(std::move(options));
  const Task task = make_task(plain, dataset_);
  const Held held(runtime, plain, task);
  StepCache steps(runtime, plain, task, held.model, held.optimizer, recomputation_of(plain, device_, task),
                  [](const std::string&) {});
  const WorkTrace trace;
  dry_run(runtime, steps, steps.layout(shape));
  steps.update();
  return trace.calls();
}

TrajectoryView StepProbe::largest_trajectory(const Config& config) const {
  const std::string& split = config.data.train_split;
  const auto size = [&](int64_t i) {
    const Dataset::MeshSizes mesh = dataset_.mesh_sizes(split, i);
    return std::pair(mesh.edges, mesh.nodes);
  };
  int64_t largest = 0;
  for (int64_t i = 1; i < dataset_.size(split); ++i)
    if (size(i) > size(largest)) largest = i;
  return dataset_.trajectory(split, largest);
}

StepMemory StepProbe::measure(const Config& config) const {
  RuntimeOptions options = runtime_options(config, device_);
  options.allocator = config.memory;
  options.allocator.history = 0;
  Runtime runtime(std::move(options));
  const Task task = make_task(config, dataset_);
  Held held(runtime, config, task);
  StepCache steps(runtime, config, task, held.model, held.optimizer,
                  choose_recomputation(runtime, config, task, largest_batch(config, task), held.model),
                  [](const std::string&) {});
  runtime.allocator().reset_peak();  // the choice of what is recomputed is no part of a step

  const std::string& split = config.data.train_split;
  const std::vector<Sample> samples = largest_samples(config, task);
  Normalizers normalizers = task.online_normalizers();
  const BatchLayout layout = steps.layout(task.shape(split, samples));
  Uploader uploader(runtime, 2, layout.bytes());
  SampleScratch scratch;
  // Offsets are recorded in the second step and used from the third on; a captured step is recorded in the
  // second.
  constexpr int kSteps = 3;
  for (int run = 0; run < kSteps; ++run) {
    const StoragePtr staged = uploader.stage(layout.bytes());
    const Batch batch = layout.batch(staged);
    task.write(batch, split, samples, {}, normalizers, false, scratch);
    *batch.tensor(kWindowWeight).data<double>() = static_cast<double>(config.train.batch);
    steps.run(layout, [&](const StoragePtr& to) { return uploader.upload(staged, layout.bytes(), to); });
    steps.update();
  }
  runtime.stream().synchronize();
  return memory_of(runtime, steps.offloaded_bytes());
}

int64_t StepProbe::most_samples(const Config& config) const {
  const Dataset::MeshSizes mesh = dataset_.largest_mesh(config.data.train_split);
  const int64_t world = world_room(config.data, mesh.nodes);
  return std::max<int64_t>(1, (INT32_MAX - 1) / std::max<int64_t>({1, mesh.nodes, mesh.edges, world}));
}

}  // namespace meshgrad
