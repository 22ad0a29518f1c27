// SPDX-License-Identifier: Apache-2.0
// An application outside the tree: trains a small MeshGraphNet for three steps on a square of two triangles,
// through the installed headers and library alone.
#include <meshgrad/autograd/ops.h>
#include <meshgrad/autograd/tape.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/kernels/graph.h>
#include <meshgrad/nn/mesh_graph_net.h>
#include <meshgrad/train/run/optimizer.h>

#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

using namespace meshgrad;

namespace {

struct TrainingBatch {
  GraphBatch graph;
  Tensor target, mask;
};

// Nodes 0..3 are the corners, the diagonal joins 0 and 2; every edge both ways.
TrainingBatch square(Runtime& runtime) {
  const std::vector<float> x{0, 1, 1, 0}, y{0, 0, 1, 1};
  const std::vector<int32_t> senders{0, 1, 1, 2, 2, 3, 3, 0, 0, 2}, receivers{1, 0, 2, 1, 3, 2, 0, 3, 2, 0};
  std::vector<int32_t> order;
  EdgeSet edges{"mesh", build_graph(runtime, 4, senders, receivers, &order), {}};
  std::vector<float> offsets;
  for (const int32_t e : order) {
    const auto s = static_cast<size_t>(senders[static_cast<size_t>(e)]);
    const auto r = static_cast<size_t>(receivers[static_cast<size_t>(e)]);
    offsets.insert(offsets.end(), {x[s] - x[r], y[s] - y[r]});
  }
  edges.features = Tensor::from<float>(runtime, offsets, Shape{10, 2}, Tag::data);
  const std::vector<float> target{1, -1, 1, -1};
  const std::vector<uint8_t> mask{1, 1, 1, 0};
  TrainingBatch batch;
  batch.graph.nodes = 4;
  batch.graph.graph_offsets = {0, 4};
  batch.graph.node_features = Tensor::from<float>(runtime, x, Shape{4, 1}, Tag::data);
  batch.graph.edge_sets.push_back(std::move(edges));
  batch.target = Tensor::from<float>(runtime, target, Shape{4, 1}, Tag::data);
  batch.mask = Tensor::from<uint8_t>(runtime, mask, Shape{4}, Tag::data);
  return batch;
}

double train_step(Runtime& runtime, const Model& model, const TrainingBatch& batch, Optimizer& optimizer) {
  Tape tape(runtime);
  const LossSum loss =
      ops::masked_loss(tape, forward(model, tape, batch.graph).front(), batch.target, batch.mask);
  tape.backward(loss.sum, optimizer.note_loss(runtime, loss.sum.value(), loss.weight));
  optimizer.step(runtime);
  return optimizer.state().last_loss;
}

int run() {
  RuntimeOptions options;
  options.threads = 1;
  Runtime runtime(options);
  MeshGraphNetOptions shape;
  shape.width = 16;
  shape.blocks = 2;
  Model model = make_mesh_graph_net(shape, {1, {2}, {"mesh"}, 1});
  model.parameters.allocate(runtime, DType::f32, 1);
  Optimizer optimizer(runtime, model.parameters, OptimizerConfig{}, 0.0, {.peak = 1e-3});
  const TrainingBatch batch = square(runtime);
  double first = 0, last = 0;
  for (int step = 0; step < 3; ++step) {
    last = train_step(runtime, model, batch, optimizer);
    if (step == 0) first = last;
    std::printf("step %d: loss %.6f\n", step, last);
  }
  return last < first ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
