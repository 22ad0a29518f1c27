// SPDX-License-Identifier: Apache-2.0
// Batch: several graphs as one disjoint union, with what a training step needs beside them.
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
  Tensor features;  ///< [edges, edge_inputs], in the graph's order
};

/// What training that is unrolled over several steps needs beside the first one: the data where the model's
/// own predictions lead. Without further steps all of it is empty.
struct Unroll {
  struct Step {
    Tensor node_features;  ///< as Batch::node_features
    Tensor target;         ///< as Batch::target
  };
  int64_t further = 0;   ///< steps behind the first
  Tensor node_features;  ///< [further * step_rows(nodes), node_inputs]: step after step
  Tensor target;         ///< likewise
  Tensor source;         ///< i32 [node_inputs]: the output that an input follows, -1: none
  Tensor ratio;  ///< [node_inputs], in the target's dtype: how much of a normalised input one normalised
                 ///< output is
  bool second_change =
      false;  ///< outputs change a velocity; what is off is then the sum of what velocities are off

  /// Rows of a step with those that nobody reads, so that each begins at a multiple of 256 bytes.
  static int64_t step_rows(int64_t nodes) {
    constexpr int64_t kMultiple = 128;  // of 2 bytes
    return (nodes + kMultiple - 1) / kMultiple * kMultiple;
  }
  /// That after `number` others behind the first.
  Step step(int64_t number, int64_t nodes) const {
    const int64_t begin = number * step_rows(nodes);
    return {node_features.row_range(begin, begin + nodes), target.row_range(begin, begin + nodes)};
  }
};

struct Batch {
  int64_t nodes = 0;                   ///< rows of the node tensors; see Graph::counts for the real ones
  std::vector<int64_t> graph_offsets;  ///< graphs + 1: nodes of graph g are offsets[g] .. offsets[g+1]
  Tensor node_features;                ///< [nodes, node_inputs], normalised
  InlineVector<EdgeSet, kMaxMlpInputs - 1> edge_sets;  ///< a node MLP takes the nodes beside them
  Tensor graph_features;                               ///< [graphs, ...], or undefined
  Tensor target;  ///< [nodes, outputs], normalised; undefined in a rollout
  Tensor mask;    ///< u8 [nodes]: 1 where the loss counts; undefined in a rollout
  Unroll unroll;
  std::vector<uint64_t> samples;  ///< sample id of each graph

  Rows node_rows() const { return edge_sets.empty() ? Rows(nodes) : edge_sets.front().graph.node_rows(); }
};

}  // namespace meshgrad
#pragma GCC visibility pop
