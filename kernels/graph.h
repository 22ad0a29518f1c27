// SPDX-License-Identifier: Apache-2.0
// Graph: the connectivity of one edge set, sorted so that every scatter-add is a sum over a contiguous
// segment.
#pragma once
#include <meshgrad/engine/tensor.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Directed edges in order of receiver. All index tensors are i32 and live on one device. Message passing
/// reads the receiver segments, its backward the sender segments; neither needs atomics, and the order of
/// every sum is fixed by the data. `owned_nodes <= nodes`: receivers are always owned; the nodes behind them
/// are halo nodes that only send (one mesh over many ranks).
struct Graph {
  int64_t nodes = 0;
  int64_t owned_nodes = 0;
  int64_t edges = 0;
  Tensor senders;           ///< [edges]
  Tensor receivers;         ///< [edges], ascending
  Tensor receiver_offsets;  ///< [owned_nodes + 1]: edges of receiver r are offsets[r] .. offsets[r+1]
  Tensor sender_offsets;    ///< [nodes + 1]
  Tensor sender_order;      ///< [edges]: edge numbers, ascending by (sender, edge)
  /// i64 [3]: nodes, owned nodes and edges in device memory; the sizes above are then capacities, and
  /// whatever lies behind the real counts is neither read nor written. Undefined: every row counts.
  Tensor counts;

  Rows node_rows() const { return {nodes, count(0)}; }
  Rows owned_rows() const { return {owned_nodes, count(1)}; }
  Rows edge_rows() const { return {edges, count(2)}; }

 private:
  const int64_t* count(int which) const {
    return counts.defined() ? counts.data<int64_t>() + which : nullptr;
  }
};

/// Builds a Graph from edges in any order; within a receiver they keep their order. `order` (if given)
/// receives [edges]: the caller's number of each sorted edge, to permute edge features alike. Throws
/// InvalidArgument when an index is outside [0, nodes) or the spans differ in length.
Graph build_graph(Runtime& runtime, int64_t nodes, std::span<const int32_t> senders,
                  std::span<const int32_t> receivers, std::vector<int32_t>* order = nullptr);

/// Throws InvalidArgument unless sizes, order and ranges are as documented; reads every index. For data from
/// outside, once.
void check_graph(const Graph& graph);

}  // namespace meshgrad
#pragma GCC visibility pop
