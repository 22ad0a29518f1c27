// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/train/recompute.h>
#include <meshgrad/train/recompute_cost.h>

#include <fmt/format.h>

#include <cmath>

namespace meshgrad {
namespace {

/// `*` stands for any text.
bool matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = pattern.npos, resumed = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resumed = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++resumed;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == pattern.npos;
}

/// "processor" names all its blocks.
bool names(std::string_view pattern, const std::string& stage) {
  return matches(pattern, stage) || matches(pattern, stage.substr(0, stage.find('.')));
}

bool is_block(const MeshGraphNet& model, int64_t stage) { return stage > 0 && stage + 1 < model.stages(); }

int64_t segment_length(const Config& config, int64_t blocks) {
  switch (config.recompute.mode) {
    case RecomputeMode::every:
      return config.recompute.every;
    case RecomputeMode::sqrt:
      return static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(blocks))));
    default:
      return 1;
  }
}

}  // namespace

std::vector<bool> included_stages(const Config& config, const MeshGraphNet& model) {
  std::vector<bool> included(static_cast<size_t>(model.stages()));
  for (const std::string& pattern : config.recompute.include) {
    bool found = false;
    for (int64_t stage = 0; stage < model.stages(); ++stage) {
      if (!names(pattern, model.stage_name(stage))) continue;
      included[static_cast<size_t>(stage)] = found = true;
    }
    if (!found) {
      throw config_error("recompute.include", "names of parts of the model", '"' + pattern + '"',
                         fmt::format("name encoder, processor, {} or decoder; * stands for anything",
                                     model.stage_name(model.stages() - 2)));
    }
  }
  return included;
}

std::vector<RecomputedStages> uniform_segments(const Config& config, const MeshGraphNet& model) {
  std::vector<RecomputedStages> segments;
  if (config.recompute.mode == RecomputeMode::off) return segments;
  const std::vector<bool> included = included_stages(config, model);
  int64_t blocks = 0;
  for (int64_t stage = 0; stage < model.stages(); ++stage)
    blocks += is_block(model, stage) && included[static_cast<size_t>(stage)] ? 1 : 0;
  const int64_t length = segment_length(config, blocks);
  for (int64_t stage = 0; stage < model.stages(); ++stage) {
    if (!included[static_cast<size_t>(stage)]) continue;
    const bool goes_on = !segments.empty() && segments.back().end == stage && is_block(model, stage) &&
                         is_block(model, segments.back().begin) && stage - segments.back().begin < length;
    if (goes_on) {
      ++segments.back().end;
    } else {
      segments.push_back({stage, stage + 1, config.recompute.policy});
    }
  }
  // Behind the last block there is only the decoder.
  if (!segments.empty() && segments.back().end >= model.stages() - 1) segments.pop_back();
  return segments;
}

namespace {

/// The stages' costs with what recompute.include allows. On a runtime that computes nothing, times are those
/// that are usual in proportion.
std::vector<StageCost> costs_of(Runtime& runtime, const Config& config, const BatchSizes& largest,
                                const MeshGraphNet& model, DryModel& dry) {
  std::vector<StageCost> costs = dry.costs();
  const std::vector<bool> included = included_stages(config, model);
  constexpr BlockSeconds kUsual{1.0, 0.9, 0.4};
  const BlockSeconds block =
      runtime.dry() ? kUsual : measure_block(runtime, model.options(), config.precision, largest);
  for (size_t stage = 0; stage < costs.size(); ++stage) {
    costs[stage].may_recompute = included[stage];
    costs[stage].forward_s = block.forward;
    costs[stage].again_s = block.again;
    costs[stage].products_s = block.products;
  }
  return costs;
}

/// The fastest choice that takes at most `room` bytes when it is run dry; the smallest if none does.
Recomputation fit(std::span<const StageCost> costs, DryModel& dry, int64_t room) {
  constexpr int kTries = 6;
  const int64_t least = least_budget(costs);
  int64_t budget = room;
  Recomputation choice;
  // Stages run by themselves are a little off what they take in a row.
  for (int i = 0; i < kTries; ++i) {
    const auto plan = plan_recomputation(costs, std::max(budget, least));
    choice.stages = plan->stages;
    choice.predicted = dry.peak(choice.stages);
    if (choice.predicted <= room || budget <= least) break;
    budget -= choice.predicted - room;
  }
  return choice;
}

/// What a batch may take beside what the run keeps already.
int64_t room_for_batch(Runtime& runtime, const Config& config, int64_t batch_bytes) {
  constexpr int64_t kBatches = 2;  // one is computed while the next is on its way
  const MemoryStats stats = runtime.allocator().stats();
  const auto usable =
      static_cast<int64_t>(config.plan.target_utilization * static_cast<double>(stats.capacity));
  const int64_t room = usable - stats.allocated.current - kBatches * batch_bytes;
  // Recorded steps keep memory for classes of batches, each half as large as the one before.
  return config.graphs == GraphsMode::capture && runtime.stream().on_gpu() ? room / 2 : room;
}

}  // namespace

Recomputation choose_recomputation(Runtime& runtime, const Config& config, const BatchSizes& largest,
                                   const MeshGraphNet& model) {
  const RecomputeMode mode = config.recompute.mode;
  if (mode != RecomputeMode::budget && mode != RecomputeMode::automatic)
    return {uniform_segments(config, model), config.recompute.check};
  DryModel dry(runtime.device(), runtime.threads().threads(), model.options(), config.precision, largest);
  const bool given = mode == RecomputeMode::budget;
  const int64_t room = given ? config.recompute.budget : room_for_batch(runtime, config, dry.batch_bytes());
  if (dry.peak({}) <= room) return {{}, config.recompute.check};
  Recomputation choice = fit(costs_of(runtime, config, largest, model, dry), dry, room);
  choice.check = config.recompute.check;
  if (given && choice.predicted > room) {
    throw config_error("recompute.budget", fmt::format("at least {:.1f} MiB", mebibytes(choice.predicted)),
                       fmt::format("{:.1f} MiB", mebibytes(room)),
                       "raise it, lower train.batch, or let recompute.include name more");
  }
  return choice;
}

std::string describe(const Recomputation& recomputation, const MeshGraphNet& model) {
  const std::vector<RecomputedStages>& stages = recomputation.stages;
  if (stages.empty()) return {};
  int64_t count = 0, keeping_products = 0;
  std::string names;
  for (size_t i = 0; i < stages.size(); ++i) {
    const RecomputedStages& segment = stages[i];
    count += segment.end - segment.begin;
    if (segment.keep == Keep::products) ++keeping_products;
    if (stages.size() > 6 && i == 3) names += ", ...";
    if (stages.size() > 6 && i >= 3 && i + 1 < stages.size()) continue;
    names += (i > 0 ? ", " : "") + model.stage_name(segment.begin);
    if (segment.end - segment.begin > 1) names += ".." + model.stage_name(segment.end - 1);
  }
  return fmt::format("the backward pass computes {} of {} stages again, in {} segment{}{}: {}", count,
                     model.stages(), stages.size(), stages.size() == 1 ? "" : "s",
                     keeping_products == 0
                         ? std::string()
                         : fmt::format(" ({} of them keep matrix products)", keeping_products),
                     names);
}

}  // namespace meshgrad
