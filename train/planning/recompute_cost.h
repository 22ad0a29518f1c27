// SPDX-License-Identifier: Apache-2.0
// What the stages of a model cost: bytes from runs of which nothing is computed, seconds from runs of one
// block on the device.
#pragma once
#include <meshgrad/train/planning/recompute.h>
#include <meshgrad/train/planning/recompute_plan.h>

namespace meshgrad {

/// What batches of some sizes do with a model, without a device.
class DryModel {
 public:
  DryModel(Device device, int threads, const MeshGraphNetOptions& options, DType precision,
           const BatchSizes& sizes);

  struct Peak {
    int64_t bytes = 0;      ///< that forward and backward of a batch take, beside parameters and batch
    int64_t offloaded = 0;  ///< that wait elsewhere meanwhile
  };
  Peak peak(const Recomputation& recomputation);
  int64_t batch_bytes() const { return memory_.bytes(); }
  /// Bytes of every stage; all of them may be recomputed, and seconds are 0. `partial` is what segments may
  /// keep beside their inputs.
  std::vector<StageCost> costs(SavePolicy partial = SavePolicy::matmuls);

 private:
  struct Taken {
    int64_t held = 0;            ///< of the inputs
    int64_t kept = 0, peak = 0;  ///< beside inputs
  };
  Taken run_stage(int64_t stage, const Variables& before, std::optional<SavePolicy> segment);
  StageCost cost_of(int64_t stage, const Variables& before, SavePolicy partial);

  Runtime runtime_;
  MeshGraphNet model_;
  BatchMemory memory_;
  StoragePtr piece_;
  Batch batch_;
};

struct BlockSeconds {
  double forward = 0;  ///< of a block
  double again = 0;    ///< what its step takes longer when it keeps its inputs alone, 0.5 to 1.2 forwards
  double partial = 0;  ///< when it also keeps `partial`, 0.1 to 1.2 forwards
};
/// Of a model's blocks on the runtime's device, with batches of the sizes' proportions.
BlockSeconds measure_block(Runtime& runtime, MeshGraphNetOptions options, DType precision,
                           const BatchSizes& sizes, SavePolicy partial);

}  // namespace meshgrad
