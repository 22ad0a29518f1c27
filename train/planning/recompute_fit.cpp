// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/planning/recompute_fit.h>

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace meshgrad {
namespace {

using Stages = std::vector<RecomputedStages>;

/// What is done with one stage.
enum class Deal : uint8_t {
  keep,    ///< all of it stays
  some,    ///< a segment that keeps more than its inputs
  begins,  ///< a segment
  follows  ///< part of the segment of the stage before it; where there is none it begins one
};

class Fit {
 public:
  Fit(std::span<const StageCost> costs, DryModel& dry, const FitOptions& options)
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
    if (!fits_) look_around();
    return best_;
  }

 private:
  static constexpr int64_t kSteps = 1000;
  static constexpr int64_t kShort = 4;  // blocks in a segment

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

  /// From several places, as a way down may end in a dent.
  void look_around() {
    climb_down(deals_of(best_));
    climb_down(std::vector<Deal>(costs_.size(), Deal::some));
    const auto all = static_cast<int64_t>(costs_.size());
    for (int64_t length = 1; length <= all && !fits_;
         length += length < kShort ? 1 : std::max<int64_t>(1, all - kShort))
      climb_down(uniform(length));
  }

  void climb_down(std::vector<Deal> from) {
    int64_t least = try_deals(from);
    for (bool improved = true; improved && !fits_;) {
      improved = false;
      std::vector<Deal> next = from;
      const auto look_at = [&](const std::vector<Deal>& changed) {
        const int64_t bytes = try_deals(changed);
        if (bytes >= least) return;
        least = bytes;
        next = changed;
        improved = true;
      };
      for (size_t stage = 0; stage < from.size(); ++stage) {
        for (const Deal deal : {Deal::keep, Deal::some, Deal::begins, Deal::follows}) {
          std::vector<Deal> changed = from;
          changed[stage] = deal;
          if (deal != from[stage]) look_at(changed);
        }
        std::vector<Deal> exchanged = from;
        if (stage > 0) std::swap(exchanged[stage - 1], exchanged[stage]);
        if (exchanged != from) look_at(exchanged);
      }
      from = std::move(next);
    }
  }

  std::vector<Deal> uniform(int64_t length) const {
    std::vector<Deal> deals;
    for (int64_t stage = 0; stage < static_cast<int64_t>(costs_.size()); ++stage)
      deals.push_back(stage % length == 1 % length ? Deal::begins : Deal::follows);
    return deals;
  }

  int64_t try_deals(const std::vector<Deal>& deals) {
    const Stages stages = stages_of(deals);
    return attempt(stages, cost_of(costs_, stages).seconds);
  }

  Stages stages_of(const std::vector<Deal>& deals) const {
    Stages stages;
    for (size_t i = 0; i < deals.size(); ++i) {
      if (deals[i] == Deal::keep || !costs_[i].may_recompute) continue;
      const auto stage = static_cast<int64_t>(i);
      const bool goes_on = deals[i] == Deal::follows && !stages.empty() && stages.back().end == stage &&
                           stages.back().keep == SavePolicy::inputs;
      if (goes_on) {
        ++stages.back().end;
      } else {
        stages.push_back({stage, stage + 1, deals[i] == Deal::some ? options_.partial : SavePolicy::inputs});
      }
    }
    return stages;
  }

  std::vector<Deal> deals_of(const Stages& stages) const {
    std::vector<Deal> deals(costs_.size(), Deal::keep);
    for (const RecomputedStages& segment : stages) {
      for (int64_t stage = segment.begin; stage < segment.end; ++stage)
        deals[static_cast<size_t>(stage)] = Deal::follows;
      deals[static_cast<size_t>(segment.begin)] =
          segment.keep == SavePolicy::inputs ? Deal::begins : Deal::some;
    }
    return deals;
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
  return Fit(costs, dry, options).run();
}

}  // namespace meshgrad
