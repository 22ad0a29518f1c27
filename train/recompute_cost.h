// SPDX-License-Identifier: Apache-2.0
// What the stages of a model cost: bytes from runs of which nothing is computed, seconds from runs of one
// block on the device.
#pragma once
#include <meshgrad/train/batch_memory.h>
#include <meshgrad/train/recompute_plan.h>

namespace meshgrad {

/// What batches of some sizes do with a model, without a device.
class DryModel {
 public:
  DryModel(Device device, int threads, const MeshGraphNetOptions& options, DType precision,
           const BatchSizes& sizes);

  /// Bytes that forward and backward of a batch take at their peak, beside parameters and batch.
  int64_t peak(const std::vector<RecomputedStages>& stages);
  int64_t batch_bytes() const { return memory_.bytes(); }
  /// Bytes of every stage; all of them may be recomputed, and seconds are 0.
  std::vector<StageCost> costs();

 private:
  struct Taken {
    int64_t kept = 0, peak = 0;
  };
  Taken run_stage(int64_t stage, const std::vector<Variable>& before, std::optional<Keep> segment);
  StageCost cost_of(int64_t stage, const std::vector<Variable>& before);

  Runtime runtime_;
  MeshGraphNet model_;
  BatchMemory memory_;
  StoragePtr piece_;
  Batch batch_;
};

struct BlockSeconds {
  double forward = 0;   ///< of a block
  double again = 0;     ///< what its step takes longer when it keeps its inputs alone, 0.5 to 1.2 forwards
  double products = 0;  ///< when it also keeps products, 0.1 to 1.2 forwards
};
/// Of a model's blocks on the runtime's device, with batches of the sizes' proportions.
BlockSeconds measure_block(Runtime& runtime, MeshGraphNetOptions options, DType precision,
                           const BatchSizes& sizes);

}  // namespace meshgrad
