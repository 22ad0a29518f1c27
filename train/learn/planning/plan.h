// SPDX-License-Identifier: Apache-2.0
// meshgrad plan: what training by a configuration takes of memory, what fits, and what to change.
#pragma once
#include <meshgrad/train/learn/planning/step_memory.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace meshgrad {

enum class PlanMode : uint8_t {
  predicted,  ///< "static": nothing is computed, and the device need not be there
  measured    ///< steps are run on the device
};
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
  int64_t parameters = 0, optimizer = 0, gradients = 0;
  int64_t activation = 0;  ///< of a step, whatever the batch; may be negative, as memory is not quite linear
  int64_t per_graph = 0;   ///< of one more sample
  int64_t available = 0;
  int64_t batch_size = 0;
  int64_t max_batch = 0;
  PlanMode mode = PlanMode::predicted;
  int64_t fitting() const;  ///< batch_size, from the fields
  int64_t fixed() const { return parameters + optimizer + gradients; }
};

/// The budget of a configuration, whose train.batch does not matter. `correction` is added to predicted
/// bytes.
MemoryBudget memory_budget(const StepProbe& probe, const Config& config, const MemoryRoom& room,
                           int64_t correction = 0);

/// One thing that a user can change, after those before it.
struct MemoryChange {
  std::string text;  ///< what to set
  int64_t before = 0, after = 0;
  std::string line() const;  ///< the text and what it saves
};
/// What to change when memory is short, in order: first what leaves the results as they are. Changes that
/// save nothing are left out.
std::vector<MemoryChange> memory_ladder(const StepProbe& probe, const Config& config);

/// The mesh to plan for where there is no packed file.
struct PlannedMesh {
  int64_t nodes = 0, edges = 0;  ///< directed edges
  int dim = 2;                   ///< 2 or 3
  std::map<std::string, int>
      fields;  ///< components of data.inputs, data.targets, data.world_position; else `dim`
};

/// What bounds the time of a step on a GPU from below: the sum over its kernel calls of least_seconds
/// (kernels/work.h). Nothing is measured, and no step with these calls is faster.
struct StepBound {
  double ms = 0.0;
  Work work;  ///< of all calls
};

struct MemoryPlan {
  Device device;
  PlanMode mode = PlanMode::predicted;
  int64_t batch = 0;     ///< of the step below: train.batch, or for "auto" the one that fits
  StepMemory step;       ///< predicted or measured, as `mode` says
  StepMemory predicted;  ///< the same, predicted
  bool fits = false;
  MemoryRoom room;
  int64_t usable = 0;  ///< target_utilization * (total - context): what a step may take
  MemoryBudget budget;
  std::vector<std::string> notes;  ///< what was assumed of the data; which ops have no fused kernel, and why
  std::string peaks;               ///< the device whose stated peaks `bound` is of; empty: none
  std::optional<StepBound> bound;  ///< of the step above, on a GPU
  BatchShape bounded;              ///< what `bound` is of: all `batch` samples together
  /// What `bound` counts, of each node: as many as frames of the data have on average, at most the room;
  /// without data the room.
  double world_edges_per_node = 0.0;

  struct Choice {
    std::string name;      ///< "baseline", "recomputation", "16 bits", "both"
    std::string settings;  ///< 'precision = "bf16", recompute.mode = "block", ...'
    bool possible = true;  ///< some choice keeps within recompute.budget; else nothing is predicted
    StepMemory predicted;
    std::optional<StepMemory> measured;  ///< absent in a predicted plan, and where memory ran out
    std::optional<StepBound> bound;
    int64_t batch_size = 0;  ///< the largest that fits
    bool fits = false;       ///< `batch` does, with cached memory
  };
  std::vector<Choice> choices;
  int recommended = -1;  ///< the first choice that fits; -1: none

  struct Cell {
    int64_t batch = 0, steps = 1;
    int64_t bytes = 0;  ///< mapped
    bool fits = false;
  };
  std::vector<Cell> grid;
  std::vector<MemoryChange> changes;
};

struct PlanOptions {
  PlanMode mode = PlanMode::predicted;
  int64_t device_memory = 0;   ///< bytes of a device to plan for; 0: those of the device there is
  std::string peaks = "h200";  ///< see device_peaks; for a GPU alone
  std::optional<PlannedMesh>
      mesh;  ///< instead of the data that the configuration names; predicted plans only
};
/// Throws what opening the data set throws, InvalidArgument for a PlannedMesh that cannot be, DeviceError for
/// a device that is not there (a predicted plan needs none), and OutOfMemory when a measured step does not
/// fit.
MemoryPlan plan_memory(const Config& config, const PlanOptions& options);

/// The device that `config` names, for a plan: a predicted one does without it.
Device planned_device(const Config& config, PlanMode mode);

/// "MemoryBudget(total=... batch_size=12 mode=static)", one line.
std::string to_text(const MemoryBudget& budget);

/// `config` with a number for train.batch = "auto", and a line that says which: a new run's is what fits now,
/// a run that resumes from the checkpoint `resumed` (empty: none) keeps that of it. Throws ConfigError when
/// fewer than plan.min_batch samples fit.
Config resolve_batch(Runtime& runtime, Config config, const std::filesystem::path& resumed,
                     std::string& note);

}  // namespace meshgrad
