// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/train/data/host_memory_error.h>
#include <meshgrad/train/learn/planning/plan.h>
#include <meshgrad/train/learn/planning/recompute.h>
#include <meshgrad/train/learn/run/history_json.h>
#include <meshgrad/train/learn/run/run_start.h>
#include <meshgrad/train/learn/run/trainer.h>
#include <meshgrad/train/learn/task/largest_batch.h>
#include <meshgrad/train/learn/train.h>

#include <fmt/format.h>

#include <algorithm>

namespace meshgrad {
namespace {

/// What OutOfMemory advises to change, with what each change saves: computed when memory has run out.
void advise_on_memory(Runtime& runtime, const Config& config) {
  CachingAllocator& allocator = runtime.allocator();
  Config here = config;
  here.run.threads = runtime.threads().threads();
  here.memory = allocator.options();
  const bool limited = here.memory.memory_limit == allocator.stats().capacity;
  here.memory.memory_limit = allocator.stats().capacity;
  allocator.advise([here, limited, device = runtime.device()] {
    std::vector<std::string> advice;
    try {
      const StepProbe probe(Dataset::open(here.data.path).with_edges(edge_options(here.data)), device);
      for (const MemoryChange& change : memory_ladder(probe, here)) advice.push_back(change.line());
    } catch (const std::exception&) {
      // Without predictions the rest of the report still helps.
    }
    if (limited) advice.push_back("raise memory.limit");
    return advice;
  });
}

Recomputation choose(Runtime& runtime, const Config& config, const TrainObserver& observer, const Task& task,
                     const Model& model) {
  const Recomputation chosen =
      choose_recomputation(runtime, config, task, largest_batch(config, task), model);
  const auto tell = [&](std::string text) {
    if (!observer.event) return;
    observer.event({.kind = RunEventKind::recompute,
                    .text = std::move(text),
                    .fields = {{"segments", std::ssize(chosen.stages)}}});
  };
  if (const std::string text = describe(chosen, model, config.unroll.steps); !text.empty()) {
    tell(text);
  } else if (config.recompute.mode != RecomputeMode::off) {
    tell("nothing is recomputed: recompute.* selects no stages, or everything fits");
  }
  if (config.recompute.offload != chosen.offload) {
    tell(
        "recompute.offload = \"host\" has no effect on the CPU, whose tensors are in host memory already; "
        "use \"file\"");
  }
  return chosen;
}

}  // namespace

TrainResult train(Runtime& runtime, const Config& asked, const TrainOptions& options) {
  require_data_path(asked);
  std::string note;
  const std::filesystem::path resumed =
      options.resume && asked.train.batch == kAutoBatch
          ? checkpoint_to_resume(asked.run.dir, options.checkpoint, options.command)
          : "";
  Config config = resolve_batch(runtime, asked, resumed, note);
  if (options.ranks != nullptr && asked.train.batch == kAutoBatch) {
    // What fits on every rank.
    const std::vector<int64_t> fitting = all_gather(*options.ranks, config.train.batch, "train.batch");
    const int64_t least = *std::min_element(fitting.begin(), fitting.end());
    if (least < config.train.batch)
      note = fmt::format("train.batch = {}, as rank {} takes no more", least,
                         std::ranges::find(fitting, least) - fitting.begin());
    config.train.batch = least;
  }
  const bool speaks = options.ranks == nullptr || options.ranks->first();
  if (!note.empty() && speaks && options.observer.event) {
    options.observer.event(
        {.kind = RunEventKind::batch, .text = note, .fields = {{"batch", config.train.batch}}});
  }
  const std::filesystem::path memory_dir = std::filesystem::path(config.run.dir) / "memory";
  const bool history = runtime.allocator().options().history > 0;
  advise_on_memory(runtime, config);
  try {
    const TrainResult result =
        with_host_memory_named(config.data.path, !runtime.stream().on_gpu(), "to train", [&] {
          Trainer trainer(runtime, config, options, [&](const Task& task, const Model& model) {
            return choose(runtime, config, speaks ? options.observer : TrainObserver(), task, model);
          });
          return trainer.run();
        });
    if (history && speaks) write_memory_history(memory_dir, runtime.allocator());
    return result;
  } catch (const OutOfMemory&) {
    try {
      if (history) write_memory_history(memory_dir, runtime.allocator());
    } catch (const Error&) {
      // Running out of memory is the error to report.
    }
    throw;
  }
}

}  // namespace meshgrad
