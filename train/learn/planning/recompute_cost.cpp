// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/offload/offload_store.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/learn/planning/recompute_cost.h>
#include <meshgrad/train/learn/run/make_model.h>

#include <algorithm>

namespace meshgrad {
namespace {

RuntimeOptions dry_options(Device device, int threads) {
  RuntimeOptions options;
  options.device = device;
  options.threads = threads;
  options.dry = true;
  return options;
}

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

}  // namespace

DryModel::DryModel(Device device, int threads, const Config& config, const ModelSizes& sizes,
                   const BatchLayout& layout, BatchLoss loss)
    : runtime_(dry_options(device, threads)),
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
    Tape tape(runtime_);
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
  Tape tape(runtime_);
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

}  // namespace meshgrad
