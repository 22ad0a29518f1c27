// SPDX-License-Identifier: Apache-2.0
// GraphBatch: the inputs of a model. Several graphs form one disjoint union. Targets, masks and whatever else
// a learning problem needs belong to its task (train/task/).
#pragma once
#include <meshgrad/kernels/graph.h>
#include <meshgrad/kernels/mlp.h>

#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Edges of one kind ("mesh", "world") with their features.
struct EdgeSet {
  std::string name;
  Graph graph;
  Tensor features;  ///< [edges, edge_inputs], normalised, in the graph's order (sorted by receiver)
};

struct GraphBatch {
  int64_t nodes = 0;                   ///< rows of the node tensors; Graph::counts has the real number
  std::vector<int64_t> graph_offsets;  ///< graphs + 1: nodes of graph g are offsets[g] .. offsets[g+1] - 1
  Tensor node_features;                ///< [nodes, node_inputs], normalised
  /// One less than an MLP's most inputs: a node MLP takes the nodes beside one aggregate an edge set.
  InlineVector<EdgeSet, kMaxMlpInputs - 1> edge_sets;

  Rows node_rows() const { return edge_sets.empty() ? Rows(nodes) : edge_sets.front().graph.node_rows(); }
};

}  // namespace meshgrad
#pragma GCC visibility pop
