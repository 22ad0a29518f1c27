// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/planning/recompute_fit.h>

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace meshgrad {
namespace {

using Stages = std::vector<RecomputedStages>;

class StageSearch {
 public:
  StageSearch(std::span<const StageCost> costs, DryModel& dry, const FitOptions& options)
      : costs_(costs), dry_(dry), options_(options) {}

  Stages run() {
    const int64_t least = least_budget(costs_);
    int64_t fits = 0, over = std::max(options_.room, least) + 1;
    try_budget(over - 1);
    if (fits_) return best_;
    // What a plan takes hardly falls when its budget rises, so the largest budget that fits is looked for by
    // halves.
    for (fits = least; over - fits > options_.room / kSteps + 1;) {
      const int64_t middle = fits + (over - fits) / 2;
      (try_budget(middle) <= options_.room ? fits : over) = middle;
    }
    try_budget(least);
    return best_;
  }

 private:
  static constexpr int64_t kSteps = 1000;

  int64_t try_budget(int64_t budget) {
    const auto plan = plan_recomputation(costs_, budget, options_.partial);
    return plan ? attempt(plan->stages, plan->seconds) : attempt({}, 0.0);
  }

  /// Remembers the fastest that fits, or, as long as none does, the one that takes least.
  int64_t attempt(const Stages& stages, double seconds) {
    const int64_t bytes = bytes_of(stages);
    const bool fits = bytes <= options_.room;
    const bool better = fits_ ? fits && seconds < seconds_ : fits || best_bytes_ < 0 || bytes < best_bytes_;
    if (better) {
      best_ = stages;
      best_bytes_ = bytes;
      seconds_ = seconds;
      fits_ = fits_ || fits;
    }
    return bytes;
  }

  /// Ways down meet.
  int64_t bytes_of(const Stages& stages) {
    std::string known;
    for (const RecomputedStages& segment : stages)
      known +=
          fmt::format("{}-{}{} ", segment.begin, segment.end, segment.keep == SavePolicy::inputs ? "" : "+");
    const auto [found, added] = known_bytes_.try_emplace(known);
    if (added) {
      Recomputation tried = options_.like;
      tried.stages = stages;
      found->second = dry_.peak(tried).bytes;
    }
    return found->second;
  }

  std::span<const StageCost> costs_;
  DryModel& dry_;
  FitOptions options_;
  std::unordered_map<std::string, int64_t> known_bytes_;
  Stages best_;
  int64_t best_bytes_ = -1;
  double seconds_ = 0.0;
  bool fits_ = false;
};

}  // namespace

std::vector<RecomputedStages> fit_recomputation(std::span<const StageCost> costs, DryModel& dry,
                                                const FitOptions& options) {
  return StageSearch(costs, dry, options).run();
}

}  // namespace meshgrad
