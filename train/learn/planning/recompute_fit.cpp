// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/planning/recompute_fit.h>

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace meshgrad {
namespace {

using Stages = std::vector<RecomputedStages>;

/// The choice for one stage.
enum class StageChoice : uint8_t {
  save,    ///< not recomputed
  some,    ///< a segment that saves more than its inputs
  begins,  ///< a segment
  follows  ///< joins the segment of the stage before it; without one it begins a segment
};

class StageSearch {
 public:
  StageSearch(std::span<const StageCost> costs, DryModel& dry, const FitOptions& options)
      : costs_(costs), dry_(dry), options_(options) {}

  Stages run() {
    const int64_t least = least_budget(costs_);
    int64_t fits = 0, over = std::max(options_.room, least) + 1;
    try_budget(over - 1);
    if (fits_) return best_;
    // The memory of a plan hardly falls when its budget rises, so the largest budget that fits is found by
    // bisection.
    for (fits = least; over - fits > options_.room / kSteps + 1;) {
      const int64_t middle = fits + (over - fits) / 2;
      (try_budget(middle) <= options_.room ? fits : over) = middle;
    }
    try_budget(least);
    if (!fits_) search_neighbours();
    return best_;
  }

 private:
  static constexpr int64_t kSteps = 1000;
  static constexpr int64_t kShort = 4;  // blocks in a segment

  int64_t try_budget(int64_t budget) {
    const auto plan = plan_recomputation(costs_, budget, options_.partial);
    return plan ? attempt(plan->stages, plan->seconds) : attempt({}, 0.0);
  }

  /// Remembers the fastest that fits, or, as long as none does, the one that needs least.
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

  /// Descents reach the same choices: their memory is remembered.
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

  /// From several starts, since a descent may end in a local minimum.
  void search_neighbours() {
    descend(choices_of(best_));
    descend(std::vector<StageChoice>(costs_.size(), StageChoice::some));
    const auto all = static_cast<int64_t>(costs_.size());
    for (int64_t length = 1; length <= all && !fits_;
         length += length < kShort ? 1 : std::max<int64_t>(1, all - kShort))
      descend(uniform(length));
  }

  void descend(std::vector<StageChoice> from) {
    int64_t least = try_choices(from);
    for (bool improved = true; improved && !fits_;) {
      improved = false;
      std::vector<StageChoice> next = from;
      const auto try_change = [&](const std::vector<StageChoice>& changed) {
        const int64_t bytes = try_choices(changed);
        if (bytes >= least) return;
        least = bytes;
        next = changed;
        improved = true;
      };
      for (size_t stage = 0; stage < from.size(); ++stage) {
        for (const StageChoice choice :
             {StageChoice::save, StageChoice::some, StageChoice::begins, StageChoice::follows}) {
          std::vector<StageChoice> changed = from;
          changed[stage] = choice;
          if (choice != from[stage]) try_change(changed);
        }
        std::vector<StageChoice> exchanged = from;
        if (stage > 0) std::swap(exchanged[stage - 1], exchanged[stage]);
        if (exchanged != from) try_change(exchanged);
      }
      from = std::move(next);
    }
  }

  std::vector<StageChoice> uniform(int64_t length) const {
    std::vector<StageChoice> choices;
    for (int64_t stage = 0; stage < static_cast<int64_t>(costs_.size()); ++stage)
      choices.push_back(stage % length == 1 % length ? StageChoice::begins : StageChoice::follows);
    return choices;
  }

  int64_t try_choices(const std::vector<StageChoice>& choices) {
    const Stages stages = stages_of(choices);
    return attempt(stages, cost_of(costs_, stages).seconds);
  }

  Stages stages_of(const std::vector<StageChoice>& choices) const {
    Stages stages;
    for (size_t i = 0; i < choices.size(); ++i) {
      if (choices[i] == StageChoice::save || !costs_[i].may_recompute) continue;
      const auto stage = static_cast<int64_t>(i);
      const bool goes_on = choices[i] == StageChoice::follows && !stages.empty() &&
                           stages.back().end == stage && stages.back().keep == SavePolicy::inputs;
      if (goes_on) {
        ++stages.back().end;
      } else {
        stages.push_back(
            {stage, stage + 1, choices[i] == StageChoice::some ? options_.partial : SavePolicy::inputs});
      }
    }
    return stages;
  }

  std::vector<StageChoice> choices_of(const Stages& stages) const {
    std::vector<StageChoice> choices(costs_.size(), StageChoice::save);
    for (const RecomputedStages& segment : stages) {
      for (int64_t stage = segment.begin; stage < segment.end; ++stage)
        choices[static_cast<size_t>(stage)] = StageChoice::follows;
      choices[static_cast<size_t>(segment.begin)] =
          segment.keep == SavePolicy::inputs ? StageChoice::begins : StageChoice::some;
    }
    return choices;
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
