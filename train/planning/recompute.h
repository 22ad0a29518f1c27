// SPDX-License-Identifier: Apache-2.0
// Which stages of a model are computed again in the backward pass: what the keys recompute.* stand for.
#pragma once
#include <meshgrad/train/config/config.h>
#include <meshgrad/train/task/batch_memory.h>

namespace meshgrad {

struct Recomputation {
  std::vector<RecomputedStages> stages;
  bool check = false;                         ///< compare what is computed again, bit for bit
  int64_t predicted = 0;                      ///< bytes that a batch takes, if that was asked for
  SegmentUnit segments = SegmentUnit::block;  ///< of unrolled training: what holds those of each frame
  OffloadTo offload = OffloadTo::none;        ///< where what segments keep waits, if anything is gained by it
  int64_t offloaded = 0;                      ///< bytes that wait there, of the largest batch
};

/// Whether there is a segment at all in a batch that is unrolled over `steps`.
inline bool has_segments(const Recomputation& recomputation, int64_t steps) {
  return !recomputation.stages.empty() || (steps > 1 && recomputation.segments != SegmentUnit::block);
}

/// What a segment keeps beside its inputs.
SavePolicy kept_outputs(const RecomputeConfig& config);

/// The stages that recompute.include names, in order. Throws ConfigError for a name that fits none.
std::vector<bool> included_stages(const Config& config, const MeshGraphNet& model);

/// Segments of recompute.mode = "block", "every" or "sqrt"; none when it is "off". One that ends the model is
/// left out: its backward pass comes at once. Encoder and decoder are segments of their own.
std::vector<RecomputedStages> uniform_segments(const Config& config, const MeshGraphNet& model);

/// What recompute.* make of a model, for batches of up to `largest` on the runtime's device. "budget" and
/// "auto" run blocks on it, to measure them. Throws ConfigError when a budget cannot be kept to, or values
/// of the device cannot wait where they should.
Recomputation choose_recomputation(Runtime& runtime, const Config& config, const BatchSizes& largest,
                                   const MeshGraphNet& model);

/// The frames that make a segment with segments = sequence.
int64_t sequence_length(int64_t steps);

/// Of a batch that is unrolled over `steps`, for people; empty when nothing is computed again.
std::string describe(const Recomputation& recomputation, const MeshGraphNet& model, int64_t steps = 1);

}  // namespace meshgrad
