// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/learn/planning/recompute.h>

#include <fmt/format.h>

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

namespace meshgrad {
namespace {

/// `*` stands for any text; "processor" names all its blocks.
bool names(const std::string& pattern, const std::string& stage) {
  const auto matches = [&](const std::string& text) {
    return fnmatch(pattern.c_str(), text.c_str(), 0) == 0;
  };
  return matches(stage) || matches(stage.substr(0, stage.find('.')));
}

int64_t count_stages(const Model& model) { return static_cast<int64_t>(model.stages.size()); }
const Stage& stage_of(const Model& model, int64_t stage) { return model.stages[static_cast<size_t>(stage)]; }
bool is_block(const Model& model, int64_t stage) { return stage_of(model, stage).repeated; }

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

SavePolicy kept_outputs(const RecomputeConfig& config) {
  SavePolicy keep = config.policy == RecomputePolicy::products ? SavePolicy::matmuls : SavePolicy::inputs;
  for (const std::string& op : config.keep) keep = keep | SavePolicy::outputs_of(op);
  return keep;
}

std::vector<bool> included_stages(const Config& config, const Model& model) {
  std::vector<bool> included(static_cast<size_t>(count_stages(model)));
  for (const std::string& pattern : config.recompute.include) {
    bool found = false;
    for (int64_t stage = 0; stage < count_stages(model); ++stage) {
      if (!names(pattern, stage_of(model, stage).name)) continue;
      included[static_cast<size_t>(stage)] = found = true;
    }
    if (!found) {
      throw config_error("recompute.include", "names of parts of the model", '"' + pattern + '"',
                         fmt::format("name encoder, processor, {} or decoder; * stands for anything",
                                     stage_of(model, count_stages(model) - 2).name));
    }
  }
  return included;
}

std::vector<RecomputedStages> uniform_segments(const Config& config, const Model& model) {
  std::vector<RecomputedStages> segments;
  if (config.recompute.mode == RecomputeMode::off) return segments;
  const std::vector<bool> included = included_stages(config, model);
  int64_t blocks = 0;
  for (int64_t stage = 0; stage < count_stages(model); ++stage)
    blocks += is_block(model, stage) && included[static_cast<size_t>(stage)] ? 1 : 0;
  const int64_t length = segment_length(config, blocks);
  for (int64_t stage = 0; stage < count_stages(model); ++stage) {
    if (!included[static_cast<size_t>(stage)]) continue;
    const bool goes_on = !segments.empty() && segments.back().end == stage && is_block(model, stage) &&
                         is_block(model, segments.back().begin) && stage - segments.back().begin < length;
    if (goes_on) {
      ++segments.back().end;
    } else {
      segments.push_back({stage, stage + 1, kept_outputs(config.recompute)});
    }
  }
  // Behind the last block there is only the decoder.
  if (!segments.empty() && segments.back().end >= count_stages(model) - 1) segments.pop_back();
  return segments;
}

namespace {

/// The stages' costs with what recompute.include allows. Seconds are in the proportion that second runs
/// usually have to a block's forward pass: nothing is timed, so that the choice is the same from run to run.
std::vector<StageCost> costs_of(const Config& config, const Model& model, DryModel& dry, SavePolicy partial,
                                bool offload) {
  std::vector<StageCost> costs = dry.costs(partial);
  const std::vector<bool> included = included_stages(config, model);
  for (size_t stage = 0; stage < costs.size(); ++stage) {
    costs[stage].may_recompute = included[stage];
    costs[stage].forward_s = 1.0;
    costs[stage].recomputed_s = 0.9;
    costs[stage].partial_s = 0.4;
    if (offload) costs[stage].inputs = 0;  // they are offloaded before the next stage but one
  }
  return costs;
}

/// What a batch may take beside what the run keeps already.
int64_t room_for_batch(Runtime& runtime, const Config& config, int64_t batch_bytes) {
  constexpr int64_t kBatches = 2;  // one is computed while the next is in flight
  const MemoryStats stats = runtime.allocator().stats();
  const auto usable =
      static_cast<int64_t>(config.plan.target_utilization * static_cast<double>(stats.capacity));
  const int64_t room = usable - stats.allocated.current - kBatches * batch_bytes;
  // Recorded steps keep memory for classes of batches, each half as large as the one before.
  return config.graphs == GraphsMode::capture && runtime.stream().on_gpu() ? room / 2 : room;
}

/// On which sides of the seam something is gained.
OffloadTo checked_offload(const Config& config, Device device) {
  const OffloadTo to = config.recompute.offload;
  const bool on_gpu = device.kind == DeviceKind::cuda;
  if (to == OffloadTo::file && on_gpu) {
    throw config_error("recompute.offload", "\"host\" or \"none\" on a GPU", "\"file\"",
                       "set recompute.offload = \"host\": the host's memory is faster than a disk");
  }
  // The values are in the host's memory already.
  return to == OffloadTo::host && !on_gpu ? OffloadTo::none : to;
}

}  // namespace

void fit_recomputation(std::span<const StageCost> costs, DryModel& dry, int64_t room, SavePolicy partial,
                       Recomputation& choice) {
  constexpr int64_t kSteps = 1000;
  std::optional<RecomputePlan> best;
  const auto try_budget = [&](int64_t budget) {
    const RecomputePlan plan = plan_recomputation(costs, budget, partial).value_or(RecomputePlan());
    Recomputation tried = choice;
    tried.stages = plan.stages;
    const DryModel::Peak peak = dry.peak(tried);
    const bool fitted = best && choice.predicted_bytes <= room;
    const bool better = fitted ? peak.bytes <= room && plan.seconds < best->seconds
                               : !best || peak.bytes < choice.predicted_bytes;
    if (!better) return peak.bytes;
    best = plan;
    choice = tried;
    choice.predicted_bytes = peak.bytes;
    choice.offloaded_bytes = peak.offloaded;
    return peak.bytes;
  };
  const int64_t least = least_budget(costs);
  int64_t fits = least, over = std::max(room, least) + 1;
  if (try_budget(over - 1) <= room) return;
  // The memory of a plan hardly falls when its budget rises, so the largest budget that fits is found by
  // bisection.
  while (over - fits > room / kSteps + 1) {
    const int64_t middle = fits + (over - fits) / 2;
    (try_budget(middle) <= room ? fits : over) = middle;
  }
  try_budget(least);
}

Recomputation choose_recomputation(Runtime& runtime, const Config& config, const Task& task,
                                   const BatchShape& largest, const Model& model) {
  DryModel dry(runtime.device(), runtime.threads().threads(), config, task.sizes(),
               task.layout(largest, config.precision, BatchLayout::Sizes::exact), task.batch_loss());
  return choose_recomputation(runtime, config, dry, model);
}

Recomputation choose_recomputation(Runtime& runtime, const Config& config, DryModel& dry,
                                   const Model& model) {
  const RecomputeMode mode = config.recompute.mode;
  Recomputation choice{.check = config.recompute.check,
                       .segments = config.recompute.segments,
                       .offload = checked_offload(config, runtime.device())};
  const bool offload = choice.offload != OffloadTo::none;
  const bool uniform = mode != RecomputeMode::budget && mode != RecomputeMode::automatic;
  if (uniform) choice.stages = uniform_segments(config, model);
  if (uniform && !offload) return choice;
  const DryModel::Peak peak = dry.peak(choice);
  choice.predicted_bytes = peak.bytes;
  choice.offloaded_bytes = peak.offloaded;
  if (uniform) return choice;
  const bool given = mode == RecomputeMode::budget;
  const int64_t room = given ? config.recompute.budget : room_for_batch(runtime, config, dry.batch_bytes());
  if (choice.predicted_bytes <= room) return choice;
  const SavePolicy keep = kept_outputs(config.recompute);
  const SavePolicy partial = keep == SavePolicy::inputs ? SavePolicy::matmuls : keep;
  fit_recomputation(costs_of(config, model, dry, partial, offload), dry, room, partial, choice);
  if (given && choice.predicted_bytes > room) {
    throw config_error("recompute.budget",
                       fmt::format("at least {:.1f} MiB", mebibytes(choice.predicted_bytes)),
                       fmt::format("{:.1f} MiB", mebibytes(room)),
                       config.unroll.steps > 1 && choice.segments == SegmentUnit::block
                           ? "raise it, lower train.batch, or set recompute.segments = \"frame\""
                           : "raise it, lower train.batch, or let recompute.include name more");
  }
  return choice;
}

namespace {

/// "encoder, processor.0..processor.3, ..., processor.14", and how many of the segments save outputs of ops.
std::string names_of_segments(const std::vector<RecomputedStages>& stages, const Model& model) {
  constexpr size_t kMost = 6, kFirst = 3;
  std::string names;
  for (size_t i = 0; i < stages.size(); ++i) {
    const RecomputedStages& segment = stages[i];
    if (stages.size() > kMost && i == kFirst) names += ", ...";
    if (stages.size() > kMost && i >= kFirst && i + 1 < stages.size()) continue;
    names += (i > 0 ? ", " : "") + stage_of(model, segment.begin).name;
    if (segment.end - segment.begin > 1) names += ".." + stage_of(model, segment.end - 1).name;
  }
  return names;
}

}  // namespace

std::string describe(const Recomputation& recomputation, const Model& model, int64_t frames) {
  const std::vector<RecomputedStages>& stages = recomputation.stages;
  std::string text;
  if (frames > 1 && recomputation.segments != SegmentUnit::block) {
    const bool sequences = recomputation.segments == SegmentUnit::sequence;
    text = fmt::format("recomputing {} of {} frames in backward{}", frames - 1, frames,
                       sequences ? fmt::format(", in runs of {}", sequence_length(frames)) : "");
    if (!stages.empty()) text += "; within a frame, ";
  }
  if (stages.empty()) return text;
  int64_t count = 0, partial = 0;
  for (const RecomputedStages& segment : stages) {
    count += segment.end - segment.begin;
    if (segment.keep != SavePolicy::inputs) ++partial;
  }
  text += fmt::format("recomputing {} of {} stages in backward, in {} segment{}{}: {}", count,
                      count_stages(model), stages.size(), stages.size() == 1 ? "" : "s",
                      partial == 0 ? std::string() : fmt::format(" ({} of them save op outputs)", partial),
                      names_of_segments(stages, model));
  if (recomputation.offload != OffloadTo::none) {
    text += fmt::format("; up to {:.1f} MiB are offloaded to {}", mebibytes(recomputation.offloaded_bytes),
                        recomputation.offload == OffloadTo::host ? "host memory" : "a file");
  }
  return text;
}

}  // namespace meshgrad
