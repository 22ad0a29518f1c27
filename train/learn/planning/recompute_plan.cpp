// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/planning/recompute_plan.h>

#include <algorithm>
#include <tuple>

namespace meshgrad {
namespace {

/// A run of stages that are handled together: one that is not recomputed, or a segment.
struct Piece {
  int64_t begin = 0, end = 0;
  std::optional<SavePolicy> segment;  // none: the one stage saves everything
};

/// What a piece leaves until its backward, what its backward adds to what the pieces before it left, and the
/// time of its second run.
struct PieceCost {
  int64_t left = 0, peak = 0;
  double seconds = 0;
};

PieceCost cost_of(std::span<const StageCost> costs, const Piece& piece) {
  const StageCost& first = costs[static_cast<size_t>(piece.begin)];
  const StageCost& last = costs[static_cast<size_t>(piece.end - 1)];
  if (!piece.segment) {
    const int64_t left = last.held + last.saved;
    return {left, left + last.backward, 0.0};
  }
  if (*piece.segment != SavePolicy::inputs) {
    const int64_t left = last.inputs + last.saved_partial;
    return {left, left + last.recomputed_partial + last.backward, last.partial_s};
  }
  PieceCost cost{.left = first.inputs, .peak = first.inputs + last.recomputed, .seconds = last.recomputed_s};
  int64_t most_backward = last.backward;
  for (int64_t stage = piece.begin; stage + 1 < piece.end; ++stage) {
    const StageCost& inner = costs[static_cast<size_t>(stage)];
    cost.peak += inner.saved + costs[static_cast<size_t>(stage + 1)].held;
    cost.seconds += inner.forward_s;
    most_backward = std::max(most_backward, inner.backward);
  }
  cost.peak += most_backward;
  return cost;
}

/// The best ways to deal with the stages up to one: by what they leave, less and less time for more bytes.
struct Way {
  int64_t left = 0, peak = 0;
  double seconds = 0;
  Piece last;
  size_t before = 0;  // the choice that `last` extends, of those up to last.begin
};

void keep_best(std::vector<Way>& ways) {
  std::sort(ways.begin(), ways.end(), [](const Way& a, const Way& b) {
    return std::tie(a.left, a.seconds, a.peak) < std::tie(b.left, b.seconds, b.peak);
  });
  size_t kept = 0;
  for (const Way& way : ways) {
    if (kept == 0 || way.seconds < ways[kept - 1].seconds) ways[kept++] = way;
  }
  ways.resize(kept);
}

}  // namespace

std::optional<RecomputePlan> plan_recomputation(std::span<const StageCost> costs, int64_t budget,
                                                SavePolicy partial) {
  const auto stages = static_cast<int64_t>(costs.size());
  std::vector<std::vector<Way>> up_to(costs.size() + 1);
  up_to[0].push_back({});
  for (int64_t begin = 0; begin < stages; ++begin) {
    std::vector<Way>& ways = up_to[static_cast<size_t>(begin)];
    keep_best(ways);
    const auto go_on = [&](const Piece& piece) {
      const PieceCost cost = cost_of(costs, piece);
      for (size_t i = 0; i < ways.size(); ++i) {
        const Way& way = ways[i];
        if (way.left + cost.peak > budget) break;  // the ways behind it leave more
        up_to[static_cast<size_t>(piece.end)].push_back({way.left + cost.left,
                                                         std::max(way.peak, way.left + cost.peak),
                                                         way.seconds + cost.seconds, piece, i});
      }
    };
    go_on({begin, begin + 1, {}});
    if (!costs[static_cast<size_t>(begin)].may_recompute) continue;
    go_on({begin, begin + 1, partial});
    for (int64_t end = begin + 1; end <= stages && costs[static_cast<size_t>(end - 1)].may_recompute; ++end)
      go_on({begin, end, SavePolicy::inputs});
  }
  const std::vector<Way>& all = up_to.back();
  const auto best = std::min_element(all.begin(), all.end(), [](const Way& a, const Way& b) {
    return std::tie(a.seconds, a.peak) < std::tie(b.seconds, b.peak);
  });
  if (best == all.end()) return std::nullopt;
  RecomputePlan plan{.stages = {}, .peak = best->peak, .seconds = best->seconds};
  for (const Way* way = &*best; way->last.end > 0;
       way = &up_to[static_cast<size_t>(way->last.begin)][way->before]) {
    if (way->last.segment) plan.stages.push_back({way->last.begin, way->last.end, *way->last.segment});
  }
  std::reverse(plan.stages.begin(), plan.stages.end());
  return plan;
}

int64_t least_budget(std::span<const StageCost> costs) {
  int64_t enough = 0;
  for (const StageCost& cost : costs) enough += cost.held + cost.saved + cost.backward;
  int64_t too_little = -1;
  while (enough - too_little > 1) {
    const int64_t middle = too_little + (enough - too_little) / 2;
    (plan_recomputation(costs, middle) ? enough : too_little) = middle;
  }
  return enough;
}

}  // namespace meshgrad
