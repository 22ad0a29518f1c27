// SPDX-License-Identifier: Apache-2.0
// What recomputation saves and costs: training steps of the standard model on four meshes of the standard
// size, with more and more recomputation, and of one mesh, unrolled over ever more steps. A row is right
// when its gradients are those of the same step without recomputation, to the last bit.
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/nn/mesh_graph_net.h>
#include <meshgrad/train/learn/planning/recompute.h>
#include <meshgrad/train/learn/run/optimizer.h>
#include <meshgrad/train/learn/run/step_cache.h>
#include <meshgrad/train/learn/task/unrolled_loss.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "inputs.h"
#include "model_case.h"
#include "standard_step.h"

namespace meshgrad::bench {
namespace {

constexpr int64_t kMeshes = 4;
constexpr int64_t kKept = int64_t{256} << 20;   // stands for what a run keeps beside its steps
constexpr int64_t kHistory = int64_t{1} << 16;  // more events than a step has

struct Kind {
  std::string name;
  ComputePath path = ComputePath::fused;
  bool keep_hidden = true;
  RecomputeConfig recompute{};
  double share = 0.0;  ///< of the path's memory without recomputation: room for "budget" and "auto"
  int64_t steps = 1;   ///< of the model in a row
};

test::ModelCase case_of(const Scale& scale, const Kind& kind) {
  test::ModelCase made = test::model_case(11, 2, scale.width, scale.blocks);
  made.path = kind.path;
  made.keep_hidden = kind.keep_hidden;
  return made;
}

Recomputation recomputation_of(Runtime& runtime, const Scale& scale, const Kind& kind, const Model& model,
                               DType dtype) {
  Config config;
  config.precision = dtype;
  config.recompute = kind.recompute;
  const int threads = runtime.threads().threads();
  config.unroll.steps = kind.steps;
  const test::ModelCase shape = case_of(scale, kind);
  DryModel dry = dry_model(runtime, shape, shape.sizes(), {scale.nodes(), scale.edges()}, dtype, kind.steps);
  if (kind.share == 0.0) return choose_recomputation(runtime, config, dry, model);
  // Of a tiny model that is less than any choice takes.
  Config blocks;
  blocks.recompute.mode = RecomputeMode::block;
  const int64_t room = std::max(static_cast<int64_t>(kind.share * static_cast<double>(dry.peak({}).bytes)),
                                dry.peak({.stages = uniform_segments(blocks, model)}).bytes);
  config.recompute.budget = room;
  const double limit =
      static_cast<double>(room + kKept + 2 * dry.batch_bytes()) / config.plan.target_utilization;
  Runtime limited({.device = runtime.device(),
                   .threads = threads,
                   .allocator = {.memory_limit = static_cast<int64_t>(limit)}});
  const StoragePtr kept = limited.allocator().allocate(kKept, 512, limited.stream(), Tag::parameters, "kept");
  return choose_recomputation(limited, config, dry, model);
}

struct RecomputeStep {
  Case inputs;
  Model model;
  Batch batch;
  Optimizer optimizer;
  UnrolledFrames frames;
  Recomputation recomputed;
  std::unique_ptr<OffloadStore> store;

  RecomputeStep(Runtime& runtime, const Scale& scale, const Kind& kind, DType dtype)
      : inputs(runtime, scale, dtype, kind.name),
        model(test::make_model(case_of(scale, kind), runtime, dtype, 1)),
        optimizer(runtime, model.parameters, {}, 1.0, {.peak = 1e-4, .last = 1e-4}),
        frames{.count = kind.steps},
        recomputed(recomputation_of(runtime, scale, kind, model, dtype)),
        store(make_offload_store(runtime, here(), recomputed)) {
    const std::vector<double> nodes{static_cast<double>(kind.steps * scale.nodes())};
    batch.tensors.push_back(
        {kWindowWeight, Tensor::from<double>(runtime, nodes, Shape{1}, Tag::data, "weight")});
    batch.graph.nodes = scale.nodes();
    batch.graph.node_features = inputs.rows(scale.period, 11).tensor;
    batch.graph.edge_sets.push_back(
        {"mesh", make_mesh(runtime, scale).graph, inputs.rows(scale.base_edges(), 3).tensor});
    batch.tensors.push_back({"target", inputs.rows(scale.period, 2, accumulator_of(dtype)).tensor});
    const std::vector<uint8_t> ones(static_cast<size_t>(batch.graph.nodes), 1);
    batch.tensors.push_back(
        {"mask", Tensor::from<uint8_t>(runtime, ones, Shape{batch.graph.nodes}, Tag::data, "mask")});
    if (kind.steps > 1) unroll(runtime, scale, kind.steps);
    inputs.randomise();
  }
  /// Files lie in the current folder: a temporary one may be memory.
  static Config here() {
    Config config;
    config.recompute.offload_dir = ".";
    return config;
  }
  /// The two outputs are the first two of the inputs.
  void unroll(Runtime& runtime, const Scale& scale, int64_t steps) {
    const DType sums = accumulator_of(batch.graph.node_features.dtype());
    const int64_t rows = (steps - 1) * unrolled_rows(scale.period);
    batch.tensors.push_back({"unroll.nodes", inputs.rows(rows, 11).tensor});
    batch.tensors.push_back({"unroll.target", inputs.rows(rows, 2, sums).tensor});
    std::vector<int32_t> source(11, -1);
    source[0] = 0;
    source[1] = 1;
    batch.tensors.push_back(
        {"unroll.source", Tensor::from<int32_t>(runtime, source, Shape{11}, Tag::data, "source")});
    const std::vector<float> ratio(11, 0.25f);
    batch.tensors.push_back(
        {"unroll.ratio", Tensor::from<float>(runtime, ratio, Shape{11}, Tag::data, "ratio")});
  }
  void add_gradients(const Recomputation& recomputation, OffloadStore* to) const {
    const BatchLoss loss = [this](Tape& tape, const Model& run, const Batch& on, const Recomputation& how) {
      return unrolled_loss(tape, run, on, frames, how);
    };
    run_batch(inputs.runtime(), loss, model, optimizer, batch, recomputation, to);
  }
  void train() const {
    add_gradients(recomputed, store.get());
    optimizer.step(inputs.runtime());
  }
  std::vector<double> gradients(const Recomputation& recomputation, OffloadStore* to) const {
    fill_zero(model.parameters.gradients(), inputs.stream());
    add_gradients(recomputation, to);
    std::vector<double> values = values_of(model.parameters.gradients(), inputs.stream());
    fill_zero(model.parameters.gradients(), inputs.stream());
    return values;
  }
  std::string check() const {
    const std::vector<double> a = gradients(recomputed, store.get()), b = gradients({}, nullptr);
    const bool equal =
        a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
    return equal ? std::string() : "gradients: other bits than without recomputation";
  }
};

/// The most bytes that these tags had together.
int64_t peak_of(const MemoryHistory& history, std::initializer_list<Tag> tags) {
  check_internal(history.dropped == 0, "a step with more events than are kept");
  int64_t now = 0, peak = 0;
  for (const MemoryEvent& event : history.events) {
    if (std::find(tags.begin(), tags.end(), event.tag) == tags.end()) continue;
    if (event.kind == MemoryEvent::Kind::alloc) now += event.bytes;
    if (event.kind == MemoryEvent::Kind::free_requested) now -= event.bytes;
    peak = std::max(peak, now);
  }
  return peak;
}

/// Of the second step on a runtime of its own, which remembers every allocation of the first.
StepBytes step_bytes(const Runtime& like, int threads, const Scale& scale, const Kind& kind, DType dtype) {
  Runtime runtime({.device = like.device(), .threads = threads, .allocator = {.history = kHistory}});
  const RecomputeStep step(runtime, scale, kind, dtype);
  // The choice of what is recomputed may have needed more memory than a step.
  runtime.allocator().release_cached();
  runtime.allocator().reset_peak();
  step.train();
  runtime.stream().synchronize();
  const int64_t activations = peak_of(runtime.allocator().history(), {Tag::activations, Tag::recompute});
  step.train();
  runtime.stream().synchronize();
  return {activations, runtime.allocator().stats().reserved.peak,
          step.store != nullptr ? step.store->peak_bytes() : 0};
}

Workload prepare(Runtime& runtime, const Scale& scale, const Kind& kind, DType dtype) {
  const auto step = std::make_shared<RecomputeStep>(runtime, scale, kind, dtype);
  Workload work;
  work.description = fmt::format("{} nodes, {} edges, {} blocks, width {}", scale.nodes(), scale.edges(),
                                 scale.blocks, scale.width);
  if (kind.steps > 1) work.description += fmt::format(", {} steps", kind.steps);
  work.check = [step] { return step->check(); };
  work.run = [step] { step->train(); };
  work.step_bytes = [&runtime, scale, kind, dtype] {
    return step_bytes(runtime, runtime.threads().threads(), scale, kind, dtype);
  };
  return work;
}

std::vector<Kind> kinds(const Selection& selection) {
  using Mode = RecomputeMode;
  constexpr ComputePath kByOps = ComputePath::op_by_op, kFused = ComputePath::fused;
  const bool on_gpu = selection.device == DeviceKind::cuda;
  const OffloadTo to = on_gpu ? OffloadTo::host : OffloadTo::file;
  const std::string offload = on_gpu ? "block_offload_host" : "block_offload_file";
  const RecomputeConfig block{.mode = Mode::block};
  const RecomputeConfig products{.mode = Mode::block, .keep = {"linear", "mlp", "edge_update"}};
  const RecomputeConfig every_4{.mode = Mode::every, .every = 4};
  const RecomputeConfig encoder{.mode = Mode::block, .include = {"encoder", "processor"}};
  const RecomputeConfig moved{.mode = Mode::block, .offload = to};
  // On the simulated device a fused step takes seconds.
  if (selection.quick && on_gpu) {
    return {{"op_by_op/block", kByOps, true, block},
            {"op_by_op/block_linear", kByOps, true, {.mode = Mode::block, .keep = {"linear"}}},
            {"op_by_op/" + offload, kByOps, true, moved},
            {"op_by_op/budget_half", kByOps, true, {.mode = Mode::budget}, 0.5},
            {"fused/" + offload, kFused, true, moved}};
  }
  return {{"op_by_op/off", kByOps},
          {"op_by_op/block", kByOps, true, block},
          {"op_by_op/block_encoder", kByOps, true, encoder},
          {"op_by_op/block_products", kByOps, true, products},
          {"op_by_op/block_linear", kByOps, true, {.mode = Mode::block, .keep = {"linear"}}},
          {"op_by_op/block_linear_concat", kByOps, true, {.mode = Mode::block, .keep = {"linear", "concat"}}},
          {"op_by_op/every_4", kByOps, true, every_4},
          {"op_by_op/" + offload, kByOps, true, moved},
          {"op_by_op/auto_half", kByOps, true, {.mode = Mode::automatic}, 0.5},
          {"op_by_op/budget_half", kByOps, true, {.mode = Mode::budget}, 0.5},
          {"op_by_op/budget_third", kByOps, true, {.mode = Mode::budget}, 1.0 / 3.0},
          {"fused/off", kFused},
          {"fused/block", kFused, true, block},
          {"fused/block_encoder", kFused, true, encoder},
          {"fused/" + offload, kFused, true, moved},
          {"fused_in_tile/off", kFused, false},
          {"fused_in_tile/block", kFused, false, block},
          {"fused_in_tile/" + offload, kFused, false, moved},
          {"fused_in_tile/every_4", kFused, false, every_4}};
}

/// Steps of one mesh, without recomputation and with every kind of segments.
std::vector<Kind> unrolled_kinds(const Selection& selection) {
  // On the simulated device a fused step takes seconds.
  if (selection.quick && selection.device == DeviceKind::cuda)
    return {{.name = "sequence/3",
             .path = ComputePath::op_by_op,
             .recompute = {.segments = SegmentUnit::sequence},
             .steps = 3}};
  const std::vector<int64_t> all =
      selection.quick ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{1, 2, 4, 8};
  const std::vector<Kind> kinds = {
      {.name = "off"},
      {.name = "frame", .recompute = {.segments = SegmentUnit::frame}},
      {.name = "frame_block", .recompute = {.mode = RecomputeMode::block, .segments = SegmentUnit::frame}},
      {.name = "sequence", .recompute = {.segments = SegmentUnit::sequence}}};
  std::vector<Kind> unrolled;
  for (Kind kind : kinds) {
    const std::string name = kind.name;
    for (const int64_t steps : all) {
      kind.steps = steps;
      kind.name = fmt::format("{}/{}", name, steps);
      unrolled.push_back(kind);
    }
  }
  return unrolled;
}

}  // namespace

std::vector<Benchmark> recompute_benchmarks(const Selection& selection) {
  Scale scale = size_classes(selection.quick).front().scale;
  scale.copies *= kMeshes;
  if (selection.quick) {
    scale.copies = 1;
    scale.blocks = 5;
  }
  std::vector<DType> types = timed_types();
  if (selection.quick) types = {types.back()};
  std::vector<Benchmark> list;
  for (const DType dtype : types) {
    for (const Kind& kind : kinds(selection)) {
      list.push_back({fmt::format("memory/recompute/{}/{}", kind.name, name_of(dtype)),
                      [=](Runtime& runtime) { return prepare(runtime, scale, kind, dtype); }});
    }
    Scale one = scale;
    one.copies = size_classes(selection.quick).front().scale.copies;
    if (selection.quick) one.blocks = 2;
    for (const Kind& kind : unrolled_kinds(selection)) {
      list.push_back({fmt::format("memory/unroll/{}/{}", kind.name, name_of(dtype)),
                      [=](Runtime& runtime) { return prepare(runtime, one, kind, dtype); }});
    }
  }
  return list;
}

}  // namespace meshgrad::bench
