// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/learn/planning/recompute.h>
#include <meshgrad/train/learn/planning/step_memory.h>
#include <meshgrad/train/learn/run/load_teacher.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/task/largest_batch.h>
#include <meshgrad/train/learn/task/upload.h>

#include <algorithm>
#include <utility>

namespace meshgrad {

RuntimeOptions dry_options(const Config& config, Device device) {
  RuntimeOptions options;
  options.dry = true;
  options.device = device;
  options.threads = static_cast<int>(config.run.threads);
  options.seed = static_cast<uint64_t>(config.run.seed);
  options.autotune = config.autotune;
  options.tf32 = config.tf32;
  options.allocator.expandable_segments = config.memory.expandable_segments;
  options.allocator.plan_steps = config.memory.plan_steps;
  return options;
}

namespace {

/// What a run within memory.limit would choose.
Recomputation recomputation_of(const Config& config, Device device, const Task& task) {
  RuntimeOptions options = dry_options(config, device);
  options.allocator.memory_limit = config.memory.memory_limit;
  try {
    Runtime limited(std::move(options));
    const auto teacher = load_teacher(limited, config, task);
    const Model model = make_model(limited, config, task.sizes());
    const Optimizer held(limited, model.parameters, config, config.train.steps);
    Recomputation chosen = choose_recomputation(limited, config, task, largest_batch(config, task), model);
    chosen.check = false;  // there are no values to compare
    return chosen;
  } catch (const OutOfMemory&) {
    return {};  // not even the parameters fit
  }
}

}  // namespace

ProbedStep::ProbedStep(RuntimeOptions options, const Config& config, const Dataset& dataset)
    : runtime(std::move(options)),
      task(make_taught_task(runtime, config, dataset)),
      model(make_model(runtime, config, task.sizes())),
      optimizer(runtime, model.parameters, config, config.train.steps),
      steps(runtime, config, task, model, optimizer,
            runtime.dry() ? recomputation_of(config, runtime.device(), task)
                          : choose_recomputation(runtime, config, task, largest_batch(config, task), model)) {
  runtime.allocator().reset_peak();  // loading, and the choice of what is recomputed, are no part of a step
}

void ProbedStep::run(const BatchLayout& layout) {
  steps.run(layout, [&](const StoragePtr& to) {
    return to != nullptr ? to : device_batch_memory(runtime, layout.bytes());
  });
}

int ProbedStep::repeat(const BatchLayout& layout) {
  // Planned offsets are recorded in the second step, and used from the third on.
  const int count = runtime.allocator().options().plan_steps ? 3 : 2;
  for (int step = 0; step < count; ++step) {
    run(layout);
    steps.update();
  }
  return count;
}

StepMemory ProbedStep::memory() {
  const MemoryStats stats = runtime.allocator().stats();
  return {.live = stats.allocated.peak,
          .by_tag = stats.tags_at_peak,
          .reserved = stats.reserved.peak,
          .offloaded = steps.offloaded_bytes(),
          .teacher = task.teacher() != nullptr ? task.teacher()->bytes(runtime.device()) : 0,
          .messages = {}};
}

StepMemory StepProbe::predict(const Config& config, Batches batches) const {
  std::vector<std::string> messages;
  RuntimeOptions options = dry_options(config, device_);
  options.log = [&](LogLevel, std::string_view text) { messages.emplace_back(text); };
  ProbedStep step(std::move(options), config, dataset_);
  const BatchClasses& classes = step.steps.classes();
  if (step.steps.captures()) {
    const int last = batches == Batches::largest ? 0 : classes.class_of(smallest_batch(config, step.task));
    for (int number = 0; number <= last; ++number) step.run(step.steps.layout(classes.capacity(number)));
    step.steps.update();
  } else {
    step.repeat(step.steps.layout(largest_batch(config, step.task)));
  }
  StepMemory memory = step.memory();
  memory.messages = std::move(messages);
  return memory;
}

int64_t StepProbe::most_samples(const Config& config) const {
  const Dataset::MeshSizes mesh = dataset_.largest_mesh(config.data.train_split);
  const int64_t world = world_room(config.data, mesh.nodes);
  return std::max<int64_t>(1, (INT32_MAX - 1) / std::max<int64_t>({1, mesh.nodes, mesh.edges, world}));
}

}  // namespace meshgrad
