// SPDX-License-Identifier: Apache-2.0
// GraphBatch: the inputs of a model. Several graphs form one disjoint union. Targets, masks and whatever else
// a learning problem needs belong to its task (train/learn/task/).
#pragma once
#include <meshgrad/kernels/graph.h>
#include <meshgrad/kernels/mlp.h>

#include <memory>
#include <span>
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

/// An EdgeSet from edges in any order, and `features` [edges, width] in the same order: both are sorted by
/// receiver together. T is the storage type: float, double, half or bfloat16. Throws InvalidArgument for
/// another number of features, and what build_graph throws.
template <class T>  // the pragma does not reach instantiations
[[gnu::visibility("default")]] EdgeSet make_edge_set(Runtime& runtime, std::string name, int64_t nodes,
                                                     std::span<const int32_t> senders,
                                                     std::span<const int32_t> receivers,
                                                     std::span<const T> features, int64_t width);

struct Halo;  // autograd/halo.h

struct GraphBatch {
  int64_t nodes = 0;  ///< rows of the node tensors; Graph::counts has the real number
  /// Of a part of a mesh that is split: the nodes above are those that it owns, and its graphs' halo nodes
  /// are exchanged in front of each round of message passing. Null: the mesh is whole.
  std::shared_ptr<const Halo> halo;
  /// [graphs + 1]: nodes of graph g are offsets[g] .. offsets[g+1] - 1. Empty: one graph.
  std::vector<int64_t> graph_offsets;
  Tensor node_features;  ///< [nodes, node_inputs], normalised
  /// One less than an MLP's most inputs: a node MLP takes the nodes beside one aggregate an edge set.
  InlineVector<EdgeSet, kMaxMlpInputs - 1> edge_sets;

  /// Throws InvalidArgument unless the sizes above agree with each other and the tensors' rows. Tensors that
  /// are not defined are left out.
  void check() const;

  Rows node_rows() const { return edge_sets.empty() ? Rows(nodes) : edge_sets.front().graph.owned_rows(); }
};

}  // namespace meshgrad
#pragma GCC visibility pop
