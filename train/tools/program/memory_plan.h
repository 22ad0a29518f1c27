// SPDX-License-Identifier: Apache-2.0
// meshgrad plan: the memory of a step, the largest batch, what to choose and what to change.
#pragma once
#include <meshgrad/engine/gpu_card.h>
#include <meshgrad/kernels/work.h>
#include <meshgrad/train/learn/planning/plan.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace meshgrad {

/// The mesh to plan for where there is no packed file.
struct PlannedMesh {
  int64_t nodes = 0, edges = 0;       ///< directed edges
  int dim = 2;                        ///< 2 or 3
  std::map<std::string, int> fields;  ///< components of data.inputs, data.targets, data.world_position, else
                                      ///< `dim`; of data.edge_inputs, else 1
  std::set<std::string> on_graphs;    ///< of data.inputs and data.targets those on graphs; else on nodes
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
  /// Of the step below: train.batch, or what training makes of "auto"; with train.batch_nodes the most
  /// samples of a batch.
  int64_t batch = 0;
  StepMemory step;       ///< predicted or measured, as `mode` says
  StepMemory predicted;  ///< the same, predicted
  bool fits = false;
  MemoryRoom room;
  int64_t usable = 0;  ///< target_utilization * (total - context): what a step may take
  MemoryBudget budget;
  std::vector<std::string> notes;  ///< what was assumed of the data; which ops have no fused kernel, and why
  std::string gpu;                 ///< the card that was named to plan for; empty: none
  std::string peaks;               ///< the card whose stated peaks `bound` is of; empty: none
  /// Of the step's MLPs and edge updates on a GPU: which the fused kernels take, and which run op by op, all
  /// of their calls or some.
  std::vector<std::string> fused, op_by_op;
  std::optional<StepBound> bound;      ///< of the step above, on a GPU
  BatchShape bounded;                  ///< what `bound` is of: all `batch` samples together
  std::optional<double> step_seconds;  ///< of the step above, measured; only with PlanOptions::time, on a CPU
  int64_t steps = 0;                   ///< of a run, where that is known
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
  bool narrow = false;   ///< the configuration's precision has 16 bits
  int recommended = -1;  ///< what fits in the configuration's precision, or else in another; -1: none

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
  int64_t device_memory = 0;  ///< bytes of a device to plan for; 0: those of the card or device
  /// A card to plan for, of gpu::card_names(), which need not be there. Empty: the device there is, with the
  /// peaks of its card, or for a device of no known card those of an H200.
  std::string gpu;
  bool time = false;  ///< measure ten steps, in either mode, where the device is this CPU
  std::optional<PlannedMesh>
      mesh;                     ///< instead of the data that the configuration names; predicted plans only
  std::optional<Dataset> data;  ///< what it names, where that is open already
};
/// Throws what opening the data set throws, InvalidArgument for a PlannedMesh that cannot be and for a card
/// that cannot be planned for, DeviceError for a device that is not there (a predicted plan needs none), and
/// OutOfMemory when a measured step does not fit.
MemoryPlan plan_memory(const Config& config, const PlanOptions& options);

/// The kernel calls of a step of one batch of this shape, whose rows are all real, and of its update, by a
/// dry run.
std::vector<WorkTrace::Call> kernel_calls(const StepProbe& probe, const Config& config,
                                          const BatchShape& shape);

/// Of the calls of kernel_calls.
StepBound step_bound(const std::vector<WorkTrace::Call>& calls, const gpu::Card& card, const Config& config);

/// The device that `config` names, for a plan: a predicted one does without it.
Device planned_device(const Config& config, PlanMode mode);
/// The card that PlanOptions::gpu names; null: none. Throws InvalidArgument for a card and a CPU, or a
/// measured plan.
const gpu::Card* named_card(const Config& config, const PlanOptions& options);
/// The thread's planned card, or the one that the device is; null for another GPU and a CPU.
const gpu::Card* card_of(Device device);
/// The memory to plan for: of `options`, of the card, or of the device.
MemoryRoom planned_room(const Config& config, Device device, const PlanOptions& options,
                        const gpu::Card* card);

}  // namespace meshgrad
