// SPDX-License-Identifier: Apache-2.0
// How the samples of a window are shared out to ranks, so that all finish together: by their edges, which is
// what a step's time is proportional to. Pure functions: every rank computes the same.
#pragma once
#include <meshgrad/train/learn/config/config.h>

#include <cstdint>
#include <span>
#include <vector>

namespace meshgrad {

/// What a rank needs to know of the others to find its samples.
struct RankShare {
  int rank = 0;
  int size = 1;
  RankReduction reduction = RankReduction::fast;
  /// Without, every window is cut into batches of train.batch in its order.
  bool split() const { return size > 1 || reduction == RankReduction::ordered; }
};

/// For each rank the samples that it gets, as places in the window, ascending.
using WindowDeal = std::vector<std::vector<int64_t>>;

/// Largest first, each to the rank with the fewest edges so far (Graham: "Bounds on multiprocessing timing
/// anomalies", 1969: at most 4/3 of the best).
WindowDeal deal_largest_first(std::span<const int64_t> edges, int ranks);

/// In rounds: of every `ranks` consecutive samples each rank gets at most one, the largest of a round to the
/// rank with the fewest edges so far. So the sums of a round can be added to those of the rounds before it.
WindowDeal deal_in_rounds(std::span<const int64_t> edges, int ranks);

/// Edges of the rank that has most, over the mean of the ranks; 1 when there are none.
double imbalance(std::span<const int64_t> edges, const WindowDeal& deal);

}  // namespace meshgrad
