// SPDX-License-Identifier: Apache-2.0
// Memory of the stages of a model, from dry runs: the same code with nothing computed and nothing allocated
// on a device.
#pragma once
#include <meshgrad/train/learn/planning/recompute_plan.h>
#include <meshgrad/train/learn/task/task.h>

#include <optional>

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

}  // namespace meshgrad
