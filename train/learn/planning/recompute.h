// SPDX-License-Identifier: Apache-2.0
// Which stages of a model are recomputed in the backward pass: the meaning of the keys recompute.*.
#pragma once
#include <meshgrad/train/learn/planning/recompute_plan.h>
#include <meshgrad/train/learn/task/task.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshgrad {

/// Dry runs of batches of one size.
class DryModel {
 public:
  /// Of config.model in config.precision. `loss` must be valid as long as this.
  DryModel(Device device, int threads, const Config& config, const ModelSizes& sizes,
           const BatchLayout& layout, BatchLoss loss);

  struct Peak {
    int64_t bytes = 0;      ///< of forward and backward of a batch, beside parameters and batch
    int64_t offloaded = 0;  ///< bytes offloaded at once
  };
  Peak peak(const Recomputation& recomputation);
  int64_t batch_bytes() const { return layout_.bytes(); }
  /// Bytes of every stage; all of them may be recomputed, and seconds are 0. `partial`: outputs that segments
  /// may save beside their inputs.
  std::vector<StageCost> costs(SavePolicy partial = SavePolicy::matmuls);

 private:
  /// Memory of one stage.
  struct StageMemory {
    int64_t held = 0;             ///< bytes of its inputs that it saves itself
    int64_t saved = 0, peak = 0;  ///< beside inputs
  };
  StageMemory measure_stage(int64_t stage, const Values& before, std::optional<SavePolicy> segment);
  StageCost cost_of(int64_t stage, const Values& before, SavePolicy partial);

  Runtime runtime_;
  Model model_;
  BatchLayout layout_;
  BatchLoss loss_;
  StoragePtr memory_;
  Batch batch_;
};

/// The outputs that a segment saves beside its inputs.
SavePolicy kept_outputs(const RecomputeConfig& config);

/// For each stage, whether recompute.include names it. Throws ConfigError for a name that fits none.
std::vector<bool> included_stages(const Config& config, const Model& model);

/// Segments of recompute.mode = "block", "every" or "sqrt"; none when it is "off". Stages that are not
/// repeated (encoder, decoder) are segments of their own. A segment at the end of the model is left out,
/// since its backward runs immediately.
std::vector<RecomputedStages> uniform_segments(const Config& config, const Model& model);

/// Segments by plan_recomputation, tried in dry runs of the whole model, as stages that run by themselves
/// need a little more or less memory than in a row: the fastest of those tried that fit in `room` bytes, or
/// if none does, the one that needs least. `choice` has everything but the stages, and gets them with their
/// memory.
void fit_recomputation(std::span<const StageCost> costs, DryModel& dry, int64_t room, SavePolicy partial,
                       Recomputation& choice);

/// The choice of recompute.* for a model that is allocated on the runtime's device, for batches of up to
/// `largest`. Throws ConfigError when a budget cannot be met, or values of the device cannot be offloaded to
/// where they should.
Recomputation choose_recomputation(Runtime& runtime, const Config& config, const Task& task,
                                   const BatchShape& largest, const Model& model);
/// The same with a dry model of that batch.
Recomputation choose_recomputation(Runtime& runtime, const Config& config, DryModel& dry, const Model& model);

/// One line for the user, for batches unrolled over `frames`; empty when nothing is recomputed.
std::string describe(const Recomputation& recomputation, const Model& model, int64_t frames = 1);

}  // namespace meshgrad
