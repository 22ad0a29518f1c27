// SPDX-License-Identifier: Apache-2.0
// Batch: several graphs as one disjoint union, with what a training step needs beside them.
#pragma once
#include <meshgrad/kernels/graph.h>

#include <string>
#include <vector>

namespace meshgrad {

/// Edges of one kind ("mesh", "world") with their features.
struct EdgeSet {
  std::string name;
  Graph graph;
  Tensor features;  ///< [edges, edge_inputs], in the graph's order
};

struct Batch {
  int64_t nodes = 0;                   ///< rows of the node tensors; see Graph::counts for the real ones
  std::vector<int64_t> graph_offsets;  ///< graphs + 1: nodes of graph g are offsets[g] .. offsets[g+1]
  Tensor node_features;                ///< [nodes, node_inputs], normalised
  std::vector<EdgeSet> edge_sets;
  Tensor graph_features;          ///< [graphs, ...], or undefined
  Tensor target;                  ///< [nodes, outputs], normalised; undefined in a rollout
  Tensor mask;                    ///< u8 [nodes]: 1 where the loss counts; undefined in a rollout
  std::vector<uint64_t> samples;  ///< sample id of each graph

  Rows node_rows() const { return edge_sets.empty() ? Rows(nodes) : edge_sets.front().graph.node_rows(); }
};

}  // namespace meshgrad
