// SPDX-License-Identifier: Apache-2.0
// The choice of recompute_plan.h, checked by dry runs of the whole model: stages that run by themselves need
// a little more or less memory than in a row.
#pragma once
#include <meshgrad/train/learn/planning/recompute_cost.h>

namespace meshgrad {

struct FitOptions {
  int64_t room = 0;  ///< bytes of a batch in a dry run, at most
  SavePolicy partial = SavePolicy::matmuls;
  Recomputation like;  ///< everything but the stages
};

/// The fastest segments that need at most `room` bytes; where planning finds none, those that need
/// least: no change of one stage, or exchange of two neighbours, needs less (dynamic programming alone ends 3
/// to 6 % above that, since stages that run by themselves need other memory than in a row).
std::vector<RecomputedStages> fit_recomputation(std::span<const StageCost> costs, DryModel& dry,
                                                const FitOptions& options);

}  // namespace meshgrad
