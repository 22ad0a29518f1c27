// SPDX-License-Identifier: Apache-2.0
// What recomputation saves and costs: training steps of the standard model on four meshes of the standard
// size, of which ever more is computed again. A row is right when its gradients are those of the same step
// without recomputation, to the last bit.
#include <meshgrad/nn/mesh_graph_net.h>
#include <meshgrad/train/optimizer.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "inputs.h"

namespace meshgrad::bench {
namespace {

constexpr int64_t kMeshes = 4;
constexpr int64_t kHistory = int64_t{1} << 16;  // more events than a step has

struct Kind {
  std::string name;
  ComputePath path = ComputePath::fused;
  bool keep_hidden = true;
  int64_t every = 0;  ///< blocks of a segment; 0: nothing is computed again
  Keep keep = Keep::inputs;
};

/// All blocks but those of the last segment, whose backward pass comes at once.
std::vector<RecomputedStages> segments(const Kind& kind, int64_t blocks) {
  std::vector<RecomputedStages> stages;
  for (int64_t begin = 1; kind.every > 0 && begin + kind.every <= blocks; begin += kind.every)
    stages.push_back({begin, begin + kind.every, kind.keep});
  return stages;
}

struct Step {
  Case inputs;
  MeshGraphNet model;
  Batch batch;
  Optimizer optimizer;
  Tensor weight;
  std::vector<RecomputedStages> recomputed;

  Step(Runtime& runtime, const Scale& scale, const Kind& kind, DType dtype)
      : inputs(runtime, scale, dtype, kind.name),
        model(make_model(runtime, scale, kind, dtype)),
        optimizer(runtime, model.parameters(), {}, 1.0, {.peak = 1e-4, .last = 1e-4}),
        recomputed(segments(kind, scale.blocks)) {
    const std::vector<double> nodes{static_cast<double>(scale.nodes())};
    weight = Tensor::from<double>(runtime, nodes, Shape{1}, Tag::data, "weight");
    batch.nodes = scale.nodes();
    batch.graph_offsets = {0, batch.nodes};
    batch.node_features = inputs.rows(scale.period, 11).tensor;
    batch.edge_sets.push_back(
        {"mesh", make_torus(runtime, scale).graph, inputs.rows(6 * scale.period, 3).tensor});
    batch.target = inputs.rows(scale.period, 2, accumulator_of(dtype)).tensor;
    const std::vector<uint8_t> ones(static_cast<size_t>(batch.nodes), 1);
    batch.mask = Tensor::from<uint8_t>(runtime, ones, Shape{batch.nodes}, Tag::data, "mask");
    inputs.randomise();
  }
  static MeshGraphNet make_model(Runtime& runtime, const Scale& scale, const Kind& kind, DType dtype) {
    MeshGraphNet model({.node_inputs = 11,
                        .edge_inputs = {3},
                        .edge_set_names = {"mesh"},
                        .outputs = 2,
                        .width = scale.width,
                        .blocks = scale.blocks,
                        .path = kind.path,
                        .keep_hidden = kind.keep_hidden});
    model.allocate(runtime, dtype, 1);
    return model;
  }

  void add_gradients(const std::vector<RecomputedStages>& stages) const {
    Runtime& runtime = inputs.runtime();
    Tape tape(runtime);
    const LossSum loss = masked_loss(tape, model.forward(tape, batch, stages), batch.target, batch.mask);
    tape.backward(loss.sum, optimizer.note_loss(runtime, loss.sum.value(), weight));
  }
  void train() const {
    add_gradients(recomputed);
    optimizer.step(inputs.runtime());
  }
  std::vector<double> gradients(const std::vector<RecomputedStages>& stages) const {
    fill_zero(model.parameters().gradients(), inputs.stream());
    add_gradients(stages);
    std::vector<double> values = values_of(model.parameters().gradients(), inputs.stream());
    fill_zero(model.parameters().gradients(), inputs.stream());
    return values;
  }
  std::string check() const {
    const std::vector<double> a = gradients(recomputed), b = gradients({});
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

/// Of a step on a runtime of its own, which remembers every allocation.
int64_t activation_bytes(const Runtime& like, int threads, const Scale& scale, const Kind& kind,
                         DType dtype) {
  Runtime runtime({.device = like.device(), .threads = threads, .allocator = {.history = kHistory}});
  Step(runtime, scale, kind, dtype).train();
  runtime.stream().synchronize();
  return peak_of(runtime.allocator().history(), {Tag::activations, Tag::recompute});
}

Workload prepare(Runtime& runtime, const Scale& scale, const Kind& kind, DType dtype) {
  const auto step = std::make_shared<Step>(runtime, scale, kind, dtype);
  Workload work;
  work.description = fmt::format("{} nodes, {} edges, {} blocks, width {}", scale.nodes(), scale.edges(),
                                 scale.blocks, scale.width);
  work.check = [step] { return step->check(); };
  work.run = [step] { step->train(); };
  work.activation_bytes = [&runtime, scale, kind, dtype] {
    return activation_bytes(runtime, runtime.threads().threads(), scale, kind, dtype);
  };
  return work;
}

}  // namespace

std::vector<Benchmark> recompute_benchmarks(const Selection& selection) {
  Scale scale = size_classes(selection.quick).front().scale;
  scale.copies *= kMeshes;
  if (selection.quick) {
    scale.copies = 1;
    scale.blocks = 5;
  }
  constexpr ComputePath kByOps = ComputePath::op_by_op;
  const std::vector<Kind> kinds = {{"op_by_op/off", kByOps},
                                   {"op_by_op/block", kByOps, true, 1},
                                   {"op_by_op/block_products", kByOps, true, 1, Keep::products},
                                   {"op_by_op/every_4", kByOps, true, 4},
                                   {"fused/off"},
                                   {"fused/block", ComputePath::fused, true, 1},
                                   {"fused_in_tile/off", ComputePath::fused, false},
                                   {"fused_in_tile/block", ComputePath::fused, false, 1},
                                   {"fused_in_tile/every_4", ComputePath::fused, false, 4}};
  std::vector<DType> types = timed_types(selection.device);
  if (selection.quick) types = {types.back()};
  std::vector<Benchmark> list;
  for (const DType dtype : types) {
    for (const Kind& kind : kinds) {
      list.push_back({fmt::format("memory/recompute/{}/{}", kind.name, name_of(dtype)),
                      [=](Runtime& runtime) { return prepare(runtime, scale, kind, dtype); }});
    }
  }
  return list;
}

}  // namespace meshgrad::bench
