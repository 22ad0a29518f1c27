// SPDX-License-Identifier: Apache-2.0
// Trains a MeshGraphNet on one mesh in memory and predicts with it: docs/cpp.md.
#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/nn/mesh_graph_net.h>
#include <meshgrad/train/learn/run/optimizer.h>

#include <cstdio>
#include <vector>

using namespace meshgrad;

namespace {

/// A square of two triangles: nodes are its corners, edges go both ways and carry the vector between their
/// ends.
GraphBatch square(Runtime& runtime) {
  const std::vector<float> x{0, 1, 1, 0}, y{0, 0, 1, 1};
  const std::vector<int32_t> senders{0, 1, 1, 2, 2, 3, 3, 0, 0, 2}, receivers{1, 0, 2, 1, 3, 2, 0, 3, 2, 0};
  std::vector<float> vectors;
  for (size_t e = 0; e < senders.size(); ++e) {
    vectors.push_back(x[senders[e]] - x[receivers[e]]);
    vectors.push_back(y[senders[e]] - y[receivers[e]]);
  }
  GraphBatch batch{.nodes = 4};
  // Sorts edges and features by receiver.
  batch.edge_sets.push_back(
      make_edge_set<float>(runtime, "mesh", batch.nodes, senders, receivers, vectors, 2));
  batch.node_features = Tensor::from<float>(runtime, x, Shape{4, 1}, Tag::data);
  return batch;
}

int run() {
  Runtime runtime({.threads = 2});
  const GraphBatch batch = square(runtime);
  const std::vector<float> targets{1, -1, 1, -1};
  const std::vector<uint8_t> counted{1, 1, 1, 0};  // the last node does not count
  const Tensor target = Tensor::from<float>(runtime, targets, Shape{4, 1}, Tag::data);
  const Tensor mask = Tensor::from<uint8_t>(runtime, counted, Shape{4}, Tag::data);
  Model model = make_mesh_graph_net(
      {.blocks = 3}, {.node_inputs = 1, .edge_inputs = {2}, .edge_set_names = {"mesh"}, .outputs = 1});
  model.parameters.allocate(runtime, DType::f32, /*seed=*/1);
  Optimizer adam(runtime, model.parameters, OptimizerConfig{}, /*clip_norm=*/1.0, {.peak = 1e-3});
  for (int step = 0; step < 100; ++step) {
    Tape tape(runtime);
    Values values = forward(model, tape, batch);
    LossSum loss = ops::masked_loss(tape, values.front(), target, mask);
    tape.backward(loss.sum, adam.note_loss(runtime, loss.sum.value(), loss.weight));
    adam.step(runtime);
  }
  Tape tape(runtime, Tape::Mode::evaluate);
  const Tensor prediction = to_host(forward(model, tape, batch).front().value(), runtime.stream());
  for (const float value : prediction.values<float>()) std::printf("%.3f\n", value);
  return adam.state().last_loss < 0.01 ? 0 : 1;
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
