// SPDX-License-Identifier: Apache-2.0
// Recomputation: which stages of a model a training step recomputes in the backward pass, and where their
// inputs are kept meanwhile. train/learn/planning/ chooses it from the keys recompute.*.
#pragma once
#include <meshgrad/nn/model.h>
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/learn/task/batch_layout.h>

#include <cmath>
#include <functional>

namespace meshgrad {

struct Recomputation {
  std::vector<RecomputedStages> stages;
  bool check = false;                         ///< compare recomputed values with the first ones, bit for bit
  int64_t predicted_bytes = 0;                ///< predicted memory of a batch, where it was asked for
  SegmentUnit segments = SegmentUnit::block;  ///< of unrolled training: the unit around each frame's segments
  OffloadTo offload = OffloadTo::none;        ///< where segments' inputs are offloaded to
  int64_t offloaded_bytes = 0;                ///< offloaded at once, of the largest batch
};

/// Whether a batch that is unrolled over `frames` has any segment.
inline bool has_segments(const Recomputation& recomputation, int64_t frames) {
  return !recomputation.stages.empty() || (frames > 1 && recomputation.segments != SegmentUnit::block);
}

/// Frames in a segment with segments = "sequence": the root of their number, rounded up.
inline int64_t sequence_length(int64_t frames) {
  return static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(frames))));
}

/// The loss of a batch as a sum over its terms, f64 [1].
struct LossTerms {
  Variable sum;         ///< what training minimises
  Variable penalty;     ///< the part of it that is not of errors (loss.change_penalty); absent without one
  Tensor missing = {};  ///< i64 [1]: world edges without room, where the device has searched them
};

/// The loss of a batch; all but the tape must outlive the tape's entries.
using BatchLoss = std::function<LossTerms(Tape&, const Model&, const Batch&, const Recomputation&)>;

}  // namespace meshgrad
