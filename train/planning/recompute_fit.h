// SPDX-License-Identifier: Apache-2.0
// The choice of recompute_plan.h, held against runs of which nothing is computed: stages run by themselves
// are a little off what they take in a row.
#pragma once
#include <meshgrad/train/planning/recompute_cost.h>

namespace meshgrad {

struct FitOptions {
  int64_t room = 0;  ///< bytes that a batch may take, run dry
  SavePolicy partial = SavePolicy::matmuls;
  Recomputation like;  ///< but for its stages
};

/// Segments that take at most `room`: the fastest that planning finds. If it finds none, those that take
/// least: no change of one stage, or exchange of two neighbours, takes less.
std::vector<RecomputedStages> fit_recomputation(std::span<const StageCost> costs, DryModel& dry,
                                                const FitOptions& options);

}  // namespace meshgrad
