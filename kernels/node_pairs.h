// SPDX-License-Identifier: Apache-2.0
// NodePairs: which pairs of a batch's nodes are linked, and what each weighs in a loss.
#pragma once
#include <meshgrad/engine/tensor.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Pairs of nodes of one graph, a node with itself among them. The list has each pair at both of its nodes, a
/// node with itself once, and with all_pairs no pair twice: the host sees to that where it makes the batch.
struct NodePairs {
  Tensor graph_starts;     ///< i32 [graphs + 1]: graph g has the nodes starts[g] .. starts[g+1] - 1
  Tensor offsets;          ///< i32 [nodes + 1]: node i has the entries offsets[i] .. offsets[i+1] - 1
  Tensor others;           ///< i32 [entries]: the other node, of the same graph
  Tensor linked = {};      ///< u8 [entries]: whether the pair is linked; undefined: all are
  Tensor weights;          ///< f32 [graphs, 2]: of an entry that is linked, and of one that is not
  bool all_pairs = false;  ///< pairs of a graph's nodes that the list does not have count, too: not linked
};

}  // namespace meshgrad
#pragma GCC visibility pop
