// SPDX-License-Identifier: Apache-2.0
// A MeshGraphNet with its sizes, and a batch with a target, for tests of models and benchmarks.
#pragma once
#include <meshgrad/nn/mesh_graph_net.h>

#include <optional>
#include <string>
#include <vector>

namespace meshgrad::test {

struct ModelCase : MeshGraphNetOptions {
  int64_t node_inputs = 0;
  std::vector<int64_t> edge_inputs = {3};
  std::vector<std::string> edge_set_names = {"mesh"};
  int64_t outputs = 0;
  int64_t graph_outputs = 0;
  std::optional<GraphPool> pool = {};
  ModelSizes sizes() const {
    return {.node_inputs = node_inputs,
            .edge_inputs = edge_inputs,
            .edge_set_names = edge_set_names,
            .outputs = outputs,
            .graph_outputs = graph_outputs,
            .graph_starts = pool.has_value() || graph_outputs > 0 || slices > 0,
            .pool = pool};
  }
};

inline ModelCase model_case(int64_t node_inputs, int64_t outputs, int64_t width, int64_t blocks) {
  ModelCase made;
  made.node_inputs = node_inputs;
  made.outputs = outputs;
  made.width = width;
  made.blocks = blocks;
  return made;
}

/// Not allocated.
inline Model make_model(const ModelCase& made) { return make_mesh_graph_net(made, made.sizes()); }
inline Model make_model(const ModelCase& made, Runtime& runtime, DType dtype, uint64_t seed) {
  Model model = make_model(made);
  model.parameters.allocate(runtime, dtype, seed);
  return model;
}

struct LossBatch {
  GraphBatch graph;
  Tensor target;             ///< [nodes, outputs], of pooled nodes [graphs, outputs]
  Tensor mask;               ///< u8 [nodes] or [graphs]
  Tensor graph_target = {};  ///< [graphs, graph_outputs], where there are any
};

/// Starts of three graphs that have the nodes of a batch, one of them none.
inline Tensor three_graphs(Runtime& runtime, int64_t nodes) {
  return make_graph_starts(runtime, std::vector<int64_t>{nodes / 3, 0, nodes - nodes / 3});
}

/// The prediction, [nodes, outputs].
inline Variable predict(const Model& model, Tape& tape, const GraphBatch& graph,
                        std::span<const RecomputedStages> recomputed = {}) {
  return forward(model, tape, graph, recomputed).front();
}

}  // namespace meshgrad::test
