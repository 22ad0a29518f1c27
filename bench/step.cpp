// SPDX-License-Identifier: Apache-2.0
// Whole steps of the standard model on a triangulated square of 43 x 43 nodes: 1,849 nodes, 10,752 directed
// edges, 15 blocks, width 128, node input 11, edge input 3, output 2.
#include "benchmark.h"

#include <meshgrad/engine/random.h>
#include <meshgrad/nn/mesh_graph_net.h>
#include <meshgrad/train/optimizer.h>

#include <fmt/format.h>

#include <memory>

namespace meshgrad::bench {
namespace {

constexpr int64_t kSide = 43;

Tensor random_tensor(Runtime& runtime, const Shape& shape, DType dtype, uint64_t purpose) {
  Tensor tensor = Tensor::empty(runtime, shape, dtype, Tag::data, "benchmark input");
  dispatch_storage(dtype, [&]<class T>() {
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      tensor.data<T>()[i] = static_cast<T>(normal(7, purpose, static_cast<uint64_t>(i)));
    }
  });
  return tensor;
}

Batch square_batch(Runtime& runtime, DType dtype) {
  std::vector<int32_t> senders, receivers;
  const auto connect = [&](int64_t a, int64_t b) {
    for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
      senders.push_back(static_cast<int32_t>(from));
      receivers.push_back(static_cast<int32_t>(to));
    }
  };
  for (int64_t y = 0; y < kSide; ++y) {
    for (int64_t x = 0; x < kSide; ++x) {
      const int64_t node = y * kSide + x;
      if (x + 1 < kSide) connect(node, node + 1);
      if (y + 1 < kSide) connect(node, node + kSide);
      if (x + 1 < kSide && y + 1 < kSide) connect(node, node + kSide + 1);
    }
  }
  Batch batch;
  batch.nodes = kSide * kSide;
  batch.graph_offsets = {0, batch.nodes};
  EdgeSet set{"mesh", build_graph(runtime, batch.nodes, senders, receivers), {}};
  set.features = random_tensor(runtime, Shape{set.graph.edges, 3}, dtype, 1);
  batch.edge_sets.push_back(std::move(set));
  batch.node_features = random_tensor(runtime, Shape{batch.nodes, 11}, dtype, 2);
  batch.target = random_tensor(runtime, Shape{batch.nodes, 2}, dtype, 3);
  const std::vector<uint8_t> mask(static_cast<size_t>(batch.nodes), 1);
  batch.mask = Tensor::from<uint8_t>(runtime, mask, Shape{batch.nodes}, Tag::data, "mask");
  return batch;
}

/// FLOPs of the matrix products of a forward pass with the first layers split by linearity.
double forward_flops(const MeshGraphNetOptions& o, double nodes, double edges) {
  const auto w = static_cast<double>(o.width);
  const double deep = static_cast<double>(o.hidden_layers) * w * w;  // the layers behind the first
  const double block = edges * (w * w + deep) + nodes * (2.0 * w * w + 2.0 * w * w + deep);
  const double encoders = edges * (static_cast<double>(o.edge_inputs[0]) * w + deep) +
                          nodes * (static_cast<double>(o.node_inputs) * w + deep);
  const double decoder = nodes * (deep + w * static_cast<double>(o.outputs));
  return 2.0 * (static_cast<double>(o.blocks) * block + encoders + decoder);
}

struct Setup {
  MeshGraphNetOptions options;
  MeshGraphNet model;
  Batch batch;
  Optimizer optimizer;
  Setup(Runtime& runtime, const MeshGraphNetOptions& o, DType dtype)
      : options(o),
        model(allocated(runtime, o, dtype)),
        batch(square_batch(runtime, dtype)),
        optimizer(runtime, model.parameters(), {}, 1.0) {}
  static MeshGraphNet allocated(Runtime& runtime, const MeshGraphNetOptions& o, DType dtype) {
    MeshGraphNet model(o);
    model.allocate(runtime, dtype, 1);
    return model;
  }
};

Workload prepare(Runtime& runtime, DType dtype, bool train, ComputePath path, bool keep_hidden) {
  MeshGraphNetOptions options;
  options.node_inputs = 11;
  options.edge_inputs = {3};
  options.edge_set_names = {"mesh"};
  options.outputs = 2;
  options.path = path;
  options.keep_hidden = keep_hidden;
  auto setup = std::make_shared<Setup>(runtime, options, dtype);
  const auto edges = static_cast<double>(setup->batch.edge_sets[0].graph.edges);
  Workload work;
  work.flops = forward_flops(options, static_cast<double>(setup->batch.nodes), edges) * (train ? 3.0 : 1.0);
  work.description = fmt::format("{} nodes, {} edges, {} blocks, width {}", setup->batch.nodes, edges,
                                 options.blocks, options.width);
  if (train) {
    work.run = [&runtime, setup] {
      Tape tape(runtime);
      const Variable prediction = setup->model.forward(tape, setup->batch);
      const LossSum loss = masked_loss(tape, prediction, setup->batch.target, setup->batch.mask);
      const Tensor seed = Tensor::empty(runtime, Shape{1}, DType::f64, Tag::workspace, "seed");
      *seed.data<double>() = 1.0 / *loss.weight.data<double>();
      tape.backward(loss.sum, seed);
      setup->optimizer.step(1e-4);
    };
  } else {
    work.run = [&runtime, setup] {
      Tape tape(runtime, Tape::Mode::evaluate);
      setup->model.forward(tape, setup->batch);
    };
  }
  return work;
}

}  // namespace

std::vector<Benchmark> step_benchmarks() {
  std::vector<Benchmark> list;
  const auto add = [&](const std::string& name, DType dtype, bool train, ComputePath path, bool keep) {
    list.push_back({name, [=](Runtime& runtime) { return prepare(runtime, dtype, train, path, keep); }});
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    const std::string suffix(name_of(dtype));
    add("step/train/" + suffix, dtype, true, ComputePath::fused, true);
    add("step/train_recompute_hidden/" + suffix, dtype, true, ComputePath::fused, false);
    add("step/train_op_by_op/" + suffix, dtype, true, ComputePath::op_by_op, true);
    add("step/forward/" + suffix, dtype, false, ComputePath::fused, true);
    add("step/forward_op_by_op/" + suffix, dtype, false, ComputePath::op_by_op, true);
  }
  return list;
}

}  // namespace meshgrad::bench
