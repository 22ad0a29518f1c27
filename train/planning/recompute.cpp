// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/planning/recompute.h>
#include <meshgrad/train/planning/recompute_fit.h>

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

SavePolicy kept_outputs(const RecomputeConfig& config) {
  SavePolicy keep = config.policy == RecomputePolicy::products ? SavePolicy::matmuls : SavePolicy::inputs;
  for (const std::string& op : config.keep) keep = keep | SavePolicy::outputs_of(op);
  return keep;
}

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
      segments.push_back({stage, stage + 1, kept_outputs(config.recompute)});
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
                                const MeshGraphNet& model, DryModel& dry, SavePolicy partial, bool offload) {
  std::vector<StageCost> costs = dry.costs(partial);
  const std::vector<bool> included = included_stages(config, model);
  constexpr BlockSeconds kUsual{1.0, 0.9, 0.4};
  const BlockSeconds block =
      runtime.dry() ? kUsual : measure_block(runtime, model.options(), config.precision, largest, partial);
  for (size_t stage = 0; stage < costs.size(); ++stage) {
    costs[stage].may_recompute = included[stage];
    costs[stage].forward_s = block.forward;
    costs[stage].again_s = block.again;
    costs[stage].partial_s = block.partial;
    if (offload) costs[stage].inputs = 0;  // they are gone before the next stage but one
  }
  return costs;
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

/// On which sides of the seam something is gained.
OffloadTo checked_offload(const Config& config, Device device) {
  const OffloadTo to = config.recompute.offload;
  const bool on_gpu = device.kind == DeviceKind::cuda;
  if (to == OffloadTo::file && on_gpu) {
    throw config_error("recompute.offload", "\"host\" or \"none\" on a GPU", "\"file\"",
                       "set recompute.offload = \"host\": the host's memory is nearer than a disk");
  }
  // The values are in the host's memory already.
  return to == OffloadTo::host && !on_gpu ? OffloadTo::none : to;
}

}  // namespace

Recomputation choose_recomputation(Runtime& runtime, const Config& config, const BatchSizes& largest,
                                   const MeshGraphNet& model) {
  const RecomputeMode mode = config.recompute.mode;
  Recomputation choice{.check = config.recompute.check,
                       .segments = config.recompute.segments,
                       .offload = checked_offload(config, runtime.device())};
  const bool offload = choice.offload != OffloadTo::none;
  const bool uniform = mode != RecomputeMode::budget && mode != RecomputeMode::automatic;
  if (uniform) choice.stages = uniform_segments(config, model);
  if (uniform && !offload) return choice;
  DryModel dry(runtime.device(), runtime.threads().threads(), model.options(), config.precision, largest);
  const auto note_peak = [&] {
    const DryModel::Peak peak = dry.peak(choice);
    choice.predicted = peak.bytes;
    choice.offloaded = peak.offloaded;
  };
  note_peak();
  if (uniform) return choice;
  const bool given = mode == RecomputeMode::budget;
  const int64_t room = given ? config.recompute.budget : room_for_batch(runtime, config, dry.batch_bytes());
  if (choice.predicted <= room) return choice;
  const SavePolicy keep = kept_outputs(config.recompute);
  const SavePolicy partial = keep == SavePolicy::inputs ? SavePolicy::matmuls : keep;
  const std::vector<StageCost> costs = costs_of(runtime, config, largest, model, dry, partial, offload);
  choice.stages = fit_recomputation(costs, dry, {.room = room, .partial = partial, .like = choice});
  note_peak();
  if (given && choice.predicted > room) {
    throw config_error("recompute.budget", fmt::format("at least {:.1f} MiB", mebibytes(choice.predicted)),
                       fmt::format("{:.1f} MiB", mebibytes(room)),
                       largest.steps > 1 && choice.segments == SegmentUnit::block
                           ? "raise it, lower train.batch, or set recompute.segments = \"frame\""
                           : "raise it, lower train.batch, or let recompute.include name more");
  }
  return choice;
}

int64_t sequence_length(int64_t steps) {
  return static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(steps))));
}

std::string describe(const Recomputation& recomputation, const MeshGraphNet& model, int64_t steps) {
  const std::vector<RecomputedStages>& stages = recomputation.stages;
  std::string frames;
  if (steps > 1 && recomputation.segments != SegmentUnit::block) {
    const bool sequences = recomputation.segments == SegmentUnit::sequence;
    frames = fmt::format("the backward pass computes {} of {} frames again{}", steps - 1, steps,
                         sequences ? fmt::format(", in runs of {}", sequence_length(steps)) : "");
    if (!stages.empty()) frames += "; within a frame, ";
  }
  if (stages.empty()) return frames;
  int64_t count = 0, keeping_outputs = 0;
  std::string names;
  for (size_t i = 0; i < stages.size(); ++i) {
    const RecomputedStages& segment = stages[i];
    count += segment.end - segment.begin;
    if (segment.keep != SavePolicy::inputs) ++keeping_outputs;
    if (stages.size() > 6 && i == 3) names += ", ...";
    if (stages.size() > 6 && i >= 3 && i + 1 < stages.size()) continue;
    names += (i > 0 ? ", " : "") + model.stage_name(segment.begin);
    if (segment.end - segment.begin > 1) names += ".." + model.stage_name(segment.end - 1);
  }
  std::string waits;
  if (recomputation.offload != OffloadTo::none) {
    waits = fmt::format("; up to {:.1f} MiB that they keep wait in {}", mebibytes(recomputation.offloaded),
                        recomputation.offload == OffloadTo::host ? "the host's memory" : "a file");
  }
  return fmt::format("{}the backward pass computes {} of {} stages again, in {} segment{}{}: {}{}", frames,
                     count, model.stages(), stages.size(), stages.size() == 1 ? "" : "s",
                     keeping_outputs == 0 ? std::string()
                                          : fmt::format(" ({} of them keep outputs of ops)", keeping_outputs),
                     names, waits);
}

}  // namespace meshgrad
