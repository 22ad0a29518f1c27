// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/offload/offload_store.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/train/planning/recompute_cost.h>
#include <meshgrad/train/task/unrolled_loss.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace meshgrad {
namespace {

RuntimeOptions dry_options(Device device, int threads) {
  RuntimeOptions options;
  options.device = device;
  options.threads = threads;
  options.dry = true;
  return options;
}

MeshGraphNet allocated(Runtime& runtime, const MeshGraphNetOptions& options, DType precision) {
  MeshGraphNet model(options);
  model.allocate(runtime, precision, 0);
  return model;
}

std::vector<GradientSlot> slots_of(const Variables& variables) {
  std::vector<GradientSlot> slots;
  slots.reserve(variables.size());
  for (const Variable& variable : variables) slots.push_back(variable.slot());
  return slots;
}

/// Walks back from gradients, of whatever values, of all outputs.
void walk_back(Tape& tape, const std::vector<GradientSlot>& outputs) {
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

/// The stage's outputs, it alone being a segment.
Variables run(Tape& tape, const MeshGraphNet& model, const Batch& batch, int64_t stage,
              const Variables& before, std::optional<SavePolicy> segment) {
  if (!segment) return model.run_stage(tape, batch, stage, before);
  return checkpoint(
      tape, model.stage_name(stage),
      [&, stage](Tape& inner, const Variables& in) { return model.run_stage(inner, batch, stage, in); },
      before, *segment);
}

}  // namespace

DryModel::DryModel(Device device, int threads, const MeshGraphNetOptions& options, DType precision,
                   const BatchSizes& sizes)
    : runtime_(dry_options(device, threads)),
      model_(allocated(runtime_, options, precision)),
      memory_(sizes, precision, BatchMemory::Sizes::exact),
      piece_(runtime_.allocator().allocate(memory_.bytes(), 512, runtime_.stream(), Tag::data, "batch")),
      batch_(memory_.batch(piece_)) {}

DryModel::Peak DryModel::peak(const Recomputation& recomputation) {
  CachingAllocator& allocator = runtime_.allocator();
  const int64_t before = allocator.stats().allocated.current;
  allocator.reset_peak();
  const std::unique_ptr<OffloadStore> store = make_counting_store();
  {
    Tape tape(runtime_);
    if (recomputation.offload != OffloadTo::none) tape.offload(*store);
    const Variable loss = batch_loss(tape, model_, batch_, recomputation);
    tape.backward(loss, Tensor::zeros(runtime_, {1}, DType::f64, Tag::workspace, "seed"));
  }
  return {allocator.stats().allocated.peak - before, store->peak_bytes()};
}

DryModel::Taken DryModel::run_stage(int64_t stage, const Variables& before,
                                    std::optional<SavePolicy> segment) {
  CachingAllocator& allocator = runtime_.allocator();
  const int64_t start = allocator.stats().allocated.current;
  Tape tape(runtime_);
  Variables inputs;
  for (const Variable& variable : before)
    inputs.push_back(variable ? Variable(variable.value(), stage > 0, variable.rows()) : Variable());
  // Holds the inputs' gradients: they last until the stage before has walked back.
  const std::vector<GradientSlot> into = slots_of(inputs);
  const std::vector<GradientSlot> from = slots_of(run(tape, model_, batch_, stage, inputs, segment));
  inputs.clear();
  Taken taken;
  for (const Variable& variable : before) {
    if (variable && variable.value().storage().use_count() > 1) taken.held += variable.value().bytes();
  }
  taken.kept = allocator.stats().allocated.current - start;
  allocator.reset_peak();
  walk_back(tape, from);
  taken.peak = allocator.stats().allocated.peak - start;
  return taken;
}

StageCost DryModel::cost_of(int64_t stage, const Variables& before, SavePolicy partial) {
  const Taken all = run_stage(stage, before, std::nullopt);
  const Taken inputs = run_stage(stage, before, SavePolicy::inputs);
  const Taken some = run_stage(stage, before, partial);
  StageCost cost;
  if (stage > 0) {  // what goes into the first is the batch's
    cost.inputs = inputs.held;
    cost.held = all.held;
  }
  cost.kept = all.kept;
  cost.kept_partial = some.kept;
  cost.backward = all.peak - all.kept;
  cost.again = std::max<int64_t>(0, inputs.peak - cost.backward);
  cost.again_partial = std::max<int64_t>(0, some.peak - some.kept - cost.backward);
  return cost;
}

std::vector<StageCost> DryModel::costs(SavePolicy partial) {
  std::vector<StageCost> costs;
  Tape tape(runtime_, Tape::Mode::evaluate);
  Variables before = model_.inputs(tape, batch_);
  for (int64_t stage = 0; stage < model_.stages(); ++stage) {
    costs.push_back(cost_of(stage, before, partial));
    Variables after = model_.run_stage(tape, batch_, stage, before);
    before = std::move(after);
  }
  return costs;
}

BlockSeconds measure_block(Runtime& runtime, MeshGraphNetOptions options, DType precision,
                           const BatchSizes& sizes, SavePolicy partial) {
  constexpr int64_t kMostEdges = 5000;  // enough for times to be in proportion
  constexpr int64_t kBlock = 1;         // of two: the last one has no new edges
  constexpr int kRuns = 6;
  const double share = std::min(1.0, static_cast<double>(kMostEdges) / static_cast<double>(sizes.edges));
  const auto nodes = std::max<int64_t>(1, std::llround(share * static_cast<double>(sizes.nodes)));
  const auto edges = std::max<int64_t>(1, std::llround(share * static_cast<double>(sizes.edges)));
  options.blocks = 2;
  const MeshGraphNet model = allocated(runtime, options, precision);
  std::vector<int32_t> senders, receivers;
  for (int64_t e = 0; e < edges; ++e) {
    receivers.push_back(static_cast<int32_t>(e * nodes / edges));
    senders.push_back(
        static_cast<int32_t>(uniform_below(1, 0, static_cast<uint64_t>(e), static_cast<uint64_t>(nodes))));
  }
  Batch batch;
  batch.nodes = nodes;
  batch.edge_sets.push_back({"mesh", build_graph(runtime, nodes, senders, receivers), {}});
  const auto zeros = [&](int64_t rows) {
    return Variable(Tensor::zeros(runtime, {rows, options.width}, precision, Tag::data, "probe"), true);
  };
  const Variables before{zeros(nodes), zeros(edges)};
  const auto seconds_of = [&](bool back, std::optional<SavePolicy> segment) {
    const auto start = std::chrono::steady_clock::now();
    {
      Tape tape(runtime);
      Variables after = run(tape, model, batch, kBlock, before, segment);
      if (back) walk_back(tape, slots_of(after));
    }
    runtime.stream().synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  double forward = 0, plain = 0, inputs = 0, some = 0;
  for (int run = 0; run < kRuns; ++run) {
    // The first is slower than the others, and is not counted by a minimum.
    const auto least = [&](double& known, double now) { known = run == 0 ? now : std::min(known, now); };
    least(forward, seconds_of(false, {}));
    least(plain, seconds_of(true, {}));
    least(inputs, seconds_of(true, SavePolicy::inputs));
    least(some, seconds_of(true, partial));
  }
  // On a busy machine a difference can be anything; a second run is about a forward pass.
  const auto between = [&](double low, double seconds) {
    return std::clamp(seconds, low * forward, 1.2 * forward) / share;
  };
  return {forward / share, between(0.5, inputs - plain), between(0.1, some - plain)};
}

}  // namespace meshgrad
