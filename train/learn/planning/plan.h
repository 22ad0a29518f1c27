// SPDX-License-Identifier: Apache-2.0
// What training by a configuration takes of memory, what fits, and what to change.
#pragma once
#include <meshgrad/train/learn/planning/step_memory.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace meshgrad {

constexpr std::string_view name_of(PlanMode mode) {
  return mode == PlanMode::measured ? "measured" : "static";
}

/// Memory that a plan may use.
struct MemoryRoom {
  int64_t total = 0;    ///< of the device, or memory.limit where that is less
  int64_t context = 0;  ///< of it, in use before this program allocates: by the driver's context and others
};
/// Of the device now, within memory.limit; or of `device_memory` bytes, of a device that need not be there.
/// Throws ConfigError when neither says how much.
MemoryRoom memory_room(const Config& config, Device device, int64_t device_memory = 0);

/// How the largest batch follows: available = target_utilization * (total - context) - what a run holds
/// between steps; batch_size = floor((available - activation) / per_graph), at most max_batch, 0 when not
/// even one fits. What a step takes is what is mapped for it: what the allocator keeps for reuse included.
struct MemoryBudget {
  int64_t total = 0, context = 0;
  int64_t parameters = 0, embed = 0, optimizer = 0, gradients = 0;  ///< embed: tables of data.embed
  int64_t teacher = 0;                                              ///< its parameters
  int64_t activation = 0;  ///< of a step, whatever the batch; may be negative, as memory is not quite linear
  int64_t per_graph = 0;   ///< of one more sample
  int64_t available = 0;
  int64_t batch_size = 0;
  int64_t max_batch = 0;
  PlanMode mode = PlanMode::predicted;
  int64_t fitting() const;  ///< batch_size, from the fields
  int64_t fixed() const { return parameters + embed + optimizer + gradients + teacher; }
};

/// `config` with batches of that many samples.
Config with_batch(Config config, int64_t batch);

/// plan.target_utilization of what the room leaves.
int64_t usable_bytes(const MemoryRoom& room, const Config& config);
/// What of a step has to fit: what is mapped. recompute.mode = "auto" fills what it may with what is handed
/// out.
int64_t needed_bytes(const Config& config, const StepMemory& step);
/// The configuration with the room as its memory.limit, which recompute.mode = "auto" asks for.
Config within(const MemoryRoom& room, Config config);

/// The budget of a configuration, whose train.batch does not matter. `correction` is added to predicted
/// bytes.
MemoryBudget memory_budget(const StepProbe& probe, const Config& config, const MemoryRoom& room,
                           int64_t correction = 0);

/// A step of `config`, run on the device. Takes as much as the step, and as long. Throws OutOfMemory.
StepMemory measured_memory(const StepProbe& probe, const Config& config);
/// The same, or nothing where it does not fit.
std::optional<StepMemory> measured_if_it_fits(const StepProbe& probe, const Config& config);
/// What a measured step takes more than was predicted.
int64_t correction_of(const StepProbe& probe, const Config& config, const StepMemory& measured);

/// One thing that a user can change, after those before it.
struct MemoryChange {
  std::string text;  ///< what to set
  int64_t before = 0, after = 0;
  std::string line() const;  ///< the text and what it saves
};
/// What to change when memory is short, in order: first what leaves the results as they are. Changes that
/// save nothing are left out.
std::vector<MemoryChange> memory_ladder(const StepProbe& probe, const Config& config);

/// "MemoryBudget(total=... batch_size=12 mode=static)", one line.
std::string to_text(const MemoryBudget& budget);

constexpr double kMostStepSeconds = 2.0;

/// What train.batch = "auto" comes to, and why.
struct AutoBatch {
  int64_t batch = 0;
  std::string why;
};
/// The least of an eighth of the training split's `samples` (of a window: by train.accumulate), what fits,
/// and what a step computes in `most_seconds`, by up to ten measured steps; infinity: nothing is measured. At
/// least plan.min_batch.
AutoBatch auto_batch(const StepProbe& probe, const Config& config, const MemoryBudget& budget,
                     int64_t samples, double most_seconds);

/// `config` with a number for train.batch = "auto", and a line that says which and why: for a new run that of
/// auto_batch, which with plan.mode = "measured" a step of it has to confirm. A run that resumes from the
/// checkpoint `resumed` (empty: none) keeps its number, and so does one that begins again in the folder of
/// one that ended before its first checkpoint. Throws ConfigError when fewer than plan.min_batch samples fit.
Config resolve_batch(Runtime& runtime, Config config, const std::filesystem::path& resumed, std::string& note,
                     double most_seconds = kMostStepSeconds);

}  // namespace meshgrad
