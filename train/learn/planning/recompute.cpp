// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/offload/offload_store.h>
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/learn/planning/recompute.h>
#include <meshgrad/train/learn/run/make_model.h>

#include <fmt/format.h>

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

namespace meshgrad {
namespace {

std::vector<GradientSlot> slots_of(const Values& variables) {
  std::vector<GradientSlot> slots;
  slots.reserve(variables.size());
  for (const Variable& variable : variables) slots.push_back(variable.slot());
  return slots;
}

/// Runs the backward pass from gradients, of whatever values, of all outputs.
void run_backward(Tape& tape, const std::vector<GradientSlot>& outputs) {
  Runtime& runtime = tape.runtime();
  const Variable end(Tensor::zeros(runtime, {1}, DType::f64, Tag::workspace, "end"), true);
  const Tensor seed = Tensor::zeros(runtime, {1}, DType::f64, Tag::workspace, "seed");
  tape.record({.op = "end"}, [outputs, end = end.slot()](Tape& back) {
    back.take_gradient(end);
    for (const GradientSlot& output : outputs) {
      if (!output) continue;
      const Tensor d_output = back.scratch(output.shape(), output.dtype(), "gradient");
      fill_zero(d_output, back.stream());
      back.add_gradient(output, d_output);
    }
  });
  tape.backward(end, seed);
}

/// The stage's outputs; with `segment` the stage is a recomputed segment.
Values run(Tape& tape, const Model& model, const GraphBatch& batch, int64_t stage, const Values& before,
           std::optional<SavePolicy> segment) {
  if (!segment) return run_stage(model, tape, batch, stage, before);
  return checkpoint(
      tape, model.stages[static_cast<size_t>(stage)].name,
      [&, stage](Tape& inner, const Values& in) { return run_stage(model, inner, batch, stage, in); }, before,
      *segment);
}

/// `*` stands for any text; "processor" names all blocks, whatever they are called, and so does their name.
bool names(const std::string& pattern, const Stage& named) {
  const std::string& stage = named.name;
  if (named.repeated && pattern == "processor") return true;
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

DryModel::DryModel(Device device, int threads, const Config& config, const ModelSizes& sizes,
                   const BatchLayout& layout, BatchLoss loss)
    : runtime_({.device = device, .threads = threads, .dry = true}),
      model_(make_model(runtime_, config, sizes)),
      layout_(layout),
      loss_(std::move(loss)),
      memory_(runtime_.allocator().allocate(layout_.bytes(), 512, runtime_.stream(), Tag::data, "batch")),
      batch_(layout_.batch(memory_, runtime_.stream().on_gpu())) {}

DryModel::Peak DryModel::peak(const Recomputation& recomputation) {
  CachingAllocator& allocator = runtime_.allocator();
  const int64_t before = allocator.stats().allocated.current;
  allocator.reset_peak();
  const std::unique_ptr<OffloadStore> store = make_counting_store();
  {
    Tape tape(runtime_, Tape::Mode::train);
    if (recomputation.offload != OffloadTo::none) tape.offload(*store);
    const Variable loss = loss_(tape, model_, batch_, recomputation).sum;
    tape.backward(loss, Tensor::zeros(runtime_, {1}, DType::f64, Tag::workspace, "seed"));
  }
  return {allocator.stats().allocated.peak - before, store->peak_bytes()};
}

DryModel::StageMemory DryModel::measure_stage(int64_t stage, const Values& before,
                                              std::optional<SavePolicy> segment) {
  CachingAllocator& allocator = runtime_.allocator();
  const int64_t start = allocator.stats().allocated.current;
  Tape tape(runtime_, Tape::Mode::train);
  Values inputs;
  for (const Variable& variable : before)
    inputs.push_back(variable ? Variable(variable.value(), stage > 0, variable.rows()) : Variable());
  // Holds the inputs' gradients: they last until the stage before has walked back.
  const std::vector<GradientSlot> into = slots_of(inputs);
  const std::vector<GradientSlot> from = slots_of(run(tape, model_, batch_.graph, stage, inputs, segment));
  inputs.clear();
  StageMemory memory;
  for (const Variable& variable : before) {
    if (variable && variable.value().storage().use_count() > 1) memory.held += variable.value().bytes();
  }
  memory.saved = allocator.stats().allocated.current - start;
  allocator.reset_peak();
  run_backward(tape, from);
  memory.peak = allocator.stats().allocated.peak - start;
  return memory;
}

StageCost DryModel::cost_of(int64_t stage, const Values& before, SavePolicy partial) {
  const StageMemory all = measure_stage(stage, before, std::nullopt);
  const StageMemory inputs = measure_stage(stage, before, SavePolicy::inputs);
  const StageMemory some = measure_stage(stage, before, partial);
  StageCost cost;
  if (stage > 0) {  // what goes into the first is the batch's
    cost.inputs = inputs.held;
    cost.held = all.held;
  }
  cost.saved = all.saved;
  cost.saved_partial = some.saved;
  cost.backward = all.peak - all.saved;
  cost.recomputed = std::max<int64_t>(0, inputs.peak - cost.backward);
  cost.recomputed_partial = std::max<int64_t>(0, some.peak - some.saved - cost.backward);
  return cost;
}

std::vector<StageCost> DryModel::costs(SavePolicy partial) {
  std::vector<StageCost> costs;
  Tape tape(runtime_, Tape::Mode::evaluate);
  Values before = input_values(tape, batch_.graph);
  for (int64_t stage = 0; stage < static_cast<int64_t>(model_.stages.size()); ++stage) {
    costs.push_back(cost_of(stage, before, partial));
    before = run_stage(model_, tape, batch_.graph, stage, before);
  }
  return costs;
}

SavePolicy kept_outputs(const RecomputeConfig& config) {
  SavePolicy keep = SavePolicy::inputs;
  for (const std::string& op : config.keep)
    if (op != "auto" && op != "none") keep = keep | SavePolicy::outputs_of(op);
  return keep;
}

std::vector<bool> included_stages(const Config& config, const Model& model) {
  std::vector<bool> included(static_cast<size_t>(count_stages(model)));
  for (const std::string& pattern : config.recompute.include) {
    bool found = false;
    for (int64_t stage = 0; stage < count_stages(model); ++stage) {
      if (!names(pattern, stage_of(model, stage))) continue;
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
  // After the last block there is only the decoder.
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
  while (over - fits > std::max<int64_t>(0, room) / kSteps + 1) {
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
  // Earlier versions wrote "auto" as an empty list.
  const std::vector<std::string>& kept = config.recompute.keep;
  const bool free = kept.empty() || kept == RecomputeConfig().keep;
  const SavePolicy partial = free ? SavePolicy::matmuls : kept_outputs(config.recompute);
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
