// SPDX-License-Identifier: Apache-2.0
// Forward and backward of a whole model on the simulated device, as training runs them.
#pragma once
#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/nn/mesh_graph_net.h>

#include <functional>

#include "device.h"
#include "model_case.h"
#include "support.h"

namespace meshgrad::test {

struct ModelRun {
  std::vector<simt::LaunchReport> launches;
  int64_t activations = 0;  ///< bytes, at the end of forward
  Tensor gradients;         ///< of all parameters, on the host
};

/// Four inputs a node, three an edge and two outputs are set here.
inline ModelRun run_model(ModelCase options, DType dtype, const std::function<Graph(Runtime&)>& make_graph) {
  Runtime runtime = make_runtime(1, {DeviceKind::cuda, 0});
  RandomMatrices random(99);
  options.node_inputs = 4;
  options.edge_inputs = {3};
  options.edge_set_names = {"mesh"};
  options.outputs = 2;
  const Model model = make_model(options, runtime, dtype, 1);
  const auto values = [&](int64_t rows, int64_t width, DType stored) {
    return to_tensor(runtime, stored_as(stored, random.normal(rows, width)), stored);
  };
  LossBatch batch;
  EdgeSet edges;
  edges.graph = make_graph(runtime);
  edges.features = values(edges.graph.edges, 3, dtype);
  batch.graph.nodes = edges.graph.nodes;
  batch.graph.node_features = values(batch.graph.nodes, 4, dtype);
  batch.target = values(batch.graph.nodes, 2, accumulator_of(dtype));
  const std::vector<uint8_t> mask(static_cast<size_t>(batch.graph.nodes), 1);
  batch.mask = Tensor::from<uint8_t>(runtime, mask, Shape{batch.graph.nodes}, Tag::data);
  batch.graph.edge_sets.push_back(std::move(edges));
  const double one[] = {1.0};
  const Tensor seed = Tensor::from<double>(runtime, one, Shape{1}, Tag::workspace);
  runtime.stream().synchronize();
  simt::take_reports();
  Tape tape(runtime);
  const LossSum loss = ops::masked_loss(tape, predict(model, tape, batch.graph), batch.target, batch.mask);
  ModelRun run;
  run.activations =
      runtime.allocator().stats().by_tag[static_cast<size_t>(Tag::activations)].allocated.current;
  tape.backward(loss.sum, seed);
  runtime.stream().synchronize();
  run.launches = simt::take_reports();
  run.gradients = to_host(model.parameters.gradients(), runtime.stream());
  return run;
}

}  // namespace meshgrad::test
