// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/planning/recompute_plan.h>

#include <algorithm>
#include <tuple>

namespace meshgrad {
namespace {

/// A run of stages that are handled together: one that is not recomputed, or a segment.
struct StageRun {
  int64_t begin = 0, end = 0;
  std::optional<SavePolicy> segment;  // none: the one stage saves everything
};

/// What a run leaves until its backward, what its backward adds to what the runs before it left, and the
/// time of its second run.
struct RunCost {
  int64_t left = 0, peak = 0;
  double seconds = 0;
};

RunCost cost_of(std::span<const StageCost> costs, const StageRun& run) {
  const StageCost& first = costs[static_cast<size_t>(run.begin)];
  const StageCost& last = costs[static_cast<size_t>(run.end - 1)];
  if (!run.segment) {
    const int64_t left = last.held + last.saved;
    return {left, left + last.backward, 0.0};
  }
  if (*run.segment != SavePolicy::inputs) {
    const int64_t left = last.inputs + last.saved_partial;
    return {left, left + last.recomputed_partial + last.backward, last.partial_s};
  }
  RunCost cost{.left = first.inputs, .peak = first.inputs + last.recomputed, .seconds = last.recomputed_s};
  int64_t most_backward = last.backward;
  for (int64_t stage = run.begin; stage + 1 < run.end; ++stage) {
    const StageCost& inner = costs[static_cast<size_t>(stage)];
    cost.peak += inner.saved + costs[static_cast<size_t>(stage + 1)].held;
    cost.seconds += inner.forward_s;
    most_backward = std::max(most_backward, inner.backward);
  }
  cost.peak += most_backward;
  return cost;
}

/// The best plans for the stages up to one: by what they leave, less and less time for more bytes.
struct PartialPlan {
  int64_t left = 0, peak = 0;
  double seconds = 0;
  StageRun last;
  size_t before = 0;  // the choice that `last` extends, of those up to last.begin
};

void keep_best(std::vector<PartialPlan>& plans) {
  std::sort(plans.begin(), plans.end(), [](const PartialPlan& a, const PartialPlan& b) {
    return std::tie(a.left, a.seconds, a.peak) < std::tie(b.left, b.seconds, b.peak);
  });
  size_t kept = 0;
  for (const PartialPlan& plan : plans) {
    if (kept == 0 || plan.seconds < plans[kept - 1].seconds) plans[kept++] = plan;
  }
  plans.resize(kept);
}

}  // namespace

std::optional<RecomputePlan> plan_recomputation(std::span<const StageCost> costs, int64_t budget,
                                                SavePolicy partial) {
  const auto stages = static_cast<int64_t>(costs.size());
  std::vector<std::vector<PartialPlan>> up_to(costs.size() + 1);
  up_to[0].push_back({});
  for (int64_t begin = 0; begin < stages; ++begin) {
    std::vector<PartialPlan>& plans = up_to[static_cast<size_t>(begin)];
    keep_best(plans);
    const auto go_on = [&](const StageRun& run) {
      const RunCost cost = cost_of(costs, run);
      for (size_t i = 0; i < plans.size(); ++i) {
        const PartialPlan& plan = plans[i];
        if (plan.left + cost.peak > budget) break;  // the plans after it leave more
        up_to[static_cast<size_t>(run.end)].push_back({plan.left + cost.left,
                                                       std::max(plan.peak, plan.left + cost.peak),
                                                       plan.seconds + cost.seconds, run, i});
      }
    };
    go_on({begin, begin + 1, {}});
    if (!costs[static_cast<size_t>(begin)].may_recompute) continue;
    go_on({begin, begin + 1, partial});
    for (int64_t end = begin + 1; end <= stages && costs[static_cast<size_t>(end - 1)].may_recompute; ++end)
      go_on({begin, end, SavePolicy::inputs});
  }
  const std::vector<PartialPlan>& all = up_to.back();
  const auto best = std::min_element(all.begin(), all.end(), [](const PartialPlan& a, const PartialPlan& b) {
    return std::tie(a.seconds, a.peak) < std::tie(b.seconds, b.peak);
  });
  if (best == all.end()) return std::nullopt;
  RecomputePlan plan{.stages = {}, .peak = best->peak, .seconds = best->seconds};
  for (const PartialPlan* part = &*best; part->last.end > 0;
       part = &up_to[static_cast<size_t>(part->last.begin)][part->before]) {
    if (part->last.segment) plan.stages.push_back({part->last.begin, part->last.end, *part->last.segment});
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
