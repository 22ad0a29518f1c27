// SPDX-License-Identifier: Apache-2.0
// The planner against all ways there are.
#include <doctest/doctest.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/train/learn/planning/recompute_plan.h>

#include <algorithm>
#include <ctime>

#include "support.h"

namespace meshgrad {
namespace {

std::vector<StageCost> random_costs(uint64_t seed, int64_t stages, bool alike) {
  std::vector<StageCost> costs;
  for (int64_t stage = 0; stage < stages; ++stage) {
    uint64_t draws = 0;
    const auto draw = [&](uint64_t below) {
      const auto of = static_cast<uint64_t>(alike ? 0 : stage);
      return static_cast<int64_t>(1 + uniform_below(seed, of, draws++, below));
    };
    StageCost cost;
    cost.inputs = draw(40);
    cost.held = draw(2) == 1 ? cost.inputs : 0;
    cost.saved_partial = draw(60);
    cost.recomputed = draw(80);
    cost.saved = cost.recomputed + draw(40);
    cost.recomputed_partial = draw(30);
    cost.backward = draw(20);
    cost.partial_s = 0.5 * static_cast<double>(draw(20));
    cost.recomputed_s = cost.partial_s + 0.5 * static_cast<double>(draw(20));
    cost.forward_s = cost.recomputed_s + 0.5 * static_cast<double>(draw(5));
    cost.may_recompute = alike || draw(8) > 1;
    costs.push_back(cost);
  }
  return costs;
}

/// What a segment takes: what it leaves, the peak of its backward pass beside what earlier ones left,
/// seconds.
RecomputePlan cost_of_segment(std::span<const StageCost> costs, const RecomputedStages& segment,
                              int64_t& left) {
  const StageCost& first = costs[static_cast<size_t>(segment.begin)];
  const StageCost& last = costs[static_cast<size_t>(segment.end - 1)];
  if (segment.keep != SavePolicy::inputs) {
    left = first.inputs + first.saved_partial;
    return {{}, left + first.recomputed_partial + first.backward, first.partial_s};
  }
  left = first.inputs;
  RecomputePlan cost{{}, left + last.recomputed, last.recomputed_s};
  int64_t backward = last.backward;
  for (int64_t stage = segment.begin; stage + 1 < segment.end; ++stage) {
    const StageCost& inner = costs[static_cast<size_t>(stage)];
    cost.peak += inner.saved + costs[static_cast<size_t>(stage + 1)].held;
    cost.seconds += inner.forward_s;
    backward = std::max(backward, inner.backward);
  }
  cost.peak += backward;
  return cost;
}

/// Memory and time of a choice of segments. Partial segments have one stage each.
RecomputePlan cost_of(std::span<const StageCost> costs, const std::vector<RecomputedStages>& stages) {
  RecomputePlan plan{.stages = stages};
  int64_t before = 0;
  auto segment = stages.begin();
  for (int64_t stage = 0; stage < static_cast<int64_t>(costs.size());) {
    const StageCost& cost = costs[static_cast<size_t>(stage)];
    int64_t left = cost.held + cost.saved;
    if (segment == stages.end() || segment->begin > stage) {
      plan.peak = std::max(plan.peak, before + left + cost.backward);
      ++stage;
    } else {
      const RecomputePlan one = cost_of_segment(costs, *segment, left);
      plan.peak = std::max(plan.peak, before + one.peak);
      plan.seconds += one.seconds;
      stage = (segment++)->end;
    }
    before += left;
  }
  return plan;
}

/// Calls `body` with every plan of the stages from `stage` on, after those in `way`.
void for_all_ways(std::span<const StageCost> costs, std::vector<RecomputedStages>& way, int64_t stage,
                  const std::function<void(const std::vector<RecomputedStages>&)>& body) {
  if (stage == static_cast<int64_t>(costs.size())) return body(way);
  for_all_ways(costs, way, stage + 1, body);
  for (int64_t end = stage + 1; end <= static_cast<int64_t>(costs.size()); ++end) {
    if (!costs[static_cast<size_t>(end - 1)].may_recompute) break;
    for (const SavePolicy keep : {SavePolicy::inputs, SavePolicy::matmuls}) {
      if (keep == SavePolicy::matmuls && end > stage + 1) continue;
      way.push_back({stage, end, keep});
      for_all_ways(costs, way, end, body);
      way.pop_back();
    }
  }
}

TEST_CASE("the planner matches a search of all plans") {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const auto stages = static_cast<int64_t>(1 + seed % 8);
    const std::vector<StageCost> costs = random_costs(seed, stages, seed % 3 == 0);
    int64_t least = cost_of(costs, {}).peak;
    std::vector<RecomputedStages> way;
    for_all_ways(costs, way, 0, [&](const auto& w) { least = std::min(least, cost_of(costs, w).peak); });
    CAPTURE(seed);
    CHECK(least_budget(costs) == least);
    CHECK_FALSE(plan_recomputation(costs, least - 1));
    for (int step = 0; step <= 8; ++step) {
      const int64_t budget = least + (cost_of(costs, {}).peak - least) * step / 8;
      double best = 1e300;
      for_all_ways(costs, way, 0, [&](const auto& w) {
        const RecomputePlan tried = cost_of(costs, w);
        if (tried.peak <= budget) best = std::min(best, tried.seconds);
      });
      const auto plan = plan_recomputation(costs, budget);
      REQUIRE(plan);
      const RecomputePlan again = cost_of(costs, plan->stages);
      CHECK(again.peak <= budget);
      CHECK(again.peak == plan->peak);
      CHECK(again.seconds == plan->seconds);
      CHECK(plan->seconds == best);
    }
  }
}

TEST_CASE("the plan beats uniform choices, and takes milliseconds") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<StageCost> costs = random_costs(100 + seed, 17, true);
    for (int64_t every = 1; every <= 17; ++every) {
      std::vector<RecomputedStages> uniform;
      for (int64_t stage = 0; stage + every < 17; stage += every) uniform.push_back({stage, stage + every});
      const RecomputePlan fixed = cost_of(costs, uniform);
      const std::clock_t start = std::clock();  // of this process: others may have the machine meanwhile
      const auto plan = plan_recomputation(costs, fixed.peak);
      const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
      REQUIRE(plan);
      CHECK(plan->peak <= fixed.peak);
      CHECK(plan->seconds <= fixed.seconds);
      CHECK(seconds < 0.05);
    }
  }
}

TEST_CASE("stages that may not be recomputed are not") {
  std::vector<StageCost> costs = random_costs(7, 8, true);
  costs[3].may_recompute = false;
  const auto tight = plan_recomputation(costs, least_budget(costs));
  REQUIRE(tight);
  for (const RecomputedStages& segment : tight->stages) CHECK((segment.end <= 3 || segment.begin > 3));
  const auto loose = plan_recomputation(costs, cost_of(costs, {}).peak);
  REQUIRE(loose);
  CHECK(loose->stages.empty());
  CHECK(loose->seconds == 0.0);
}

}  // namespace
}  // namespace meshgrad
