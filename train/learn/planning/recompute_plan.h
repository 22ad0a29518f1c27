// SPDX-License-Identifier: Apache-2.0
// The choice of what a model saves for its backward pass: the least time under a bound on memory, by dynamic
// programming over the stages of a chain (Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal
// checkpointing for heterogeneous chains", 2019, without nested segments).
#pragma once
#include <meshgrad/nn/model.h>

#include <optional>
#include <span>

namespace meshgrad {

/// Bytes and seconds of one stage. A value counts for the stage that reads it, not for the one that makes it.
/// "Recomputed" is this stage as a segment of its own; "partial" is a segment that saves some outputs, too.
struct StageCost {
  bool may_recompute = true;
  int64_t inputs = 0;              ///< bytes of the stage's inputs, which a segment that begins with it saves
  int64_t held = 0;                ///< those inputs that the stage itself saves when it is not recomputed
  int64_t saved = 0;               ///< saved besides inputs when it is not recomputed
  int64_t saved_partial = 0;       ///< saved besides inputs by a partial segment
  int64_t recomputed = 0;          ///< allocated by the second forward run, when the stage ends its segment
  int64_t recomputed_partial = 0;  ///< the same for a partial segment
  int64_t backward = 0;            ///< temporary memory of the stage's backward
  double forward_s = 0;            ///< second forward run, when later stages of the segment read its outputs
  double recomputed_s = 0;         ///< second forward run, when the stage ends its segment
  double partial_s = 0;            ///< second forward run of a partial segment
};

struct RecomputePlan {
  std::vector<RecomputedStages> stages;
  int64_t peak = 0;    ///< bytes
  double seconds = 0;  ///< added by second forward runs
};

/// The fastest choice whose peak is at most `budget` bytes; nothing when there is none. Each stage is either
/// not recomputed, a partial segment, the first of a segment, or joins the segment of the stage before it.
std::optional<RecomputePlan> plan_recomputation(std::span<const StageCost> costs, int64_t budget,
                                                SavePolicy partial = SavePolicy::matmuls);

/// The least budget for which plan_recomputation has an answer.
int64_t least_budget(std::span<const StageCost> costs);

}  // namespace meshgrad
