// SPDX-License-Identifier: Apache-2.0
// Graph: the connectivity of one edge set, sorted so that every scatter-add is a sum over a contiguous
// segment (compressed sparse rows, once by receiver and once by sender).
#pragma once
#include <meshgrad/engine/tensor.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Directed edges in ascending order of receiver. All index tensors are i32 and live on one device. Forward
/// sums over receiver segments, backward over sender segments; neither needs atomics, and the order of every
/// sum is fixed by the data. `owned_nodes <= nodes`: receivers are always owned nodes; the nodes after them
/// are halo nodes, which only send (one mesh distributed over ranks).
///
/// Of a bipartite graph, from nodes of one set to nodes of another, `nodes` counts those that may send and
/// `owned_nodes` those that may receive: either may be more. It is a matrix [owned_nodes, nodes]; concat and
/// segment_sum take it.
struct Graph {
  int64_t nodes = 0;
  int64_t owned_nodes = 0;
  int64_t edges = 0;
  Tensor senders;           ///< [edges]
  Tensor receivers;         ///< [edges], ascending
  Tensor receiver_offsets;  ///< [owned_nodes + 1]: receiver r has the edges offsets[r] .. offsets[r+1] - 1
  Tensor
      sender_offsets;   ///< [nodes + 1]: sender s has entries offsets[s] .. offsets[s+1] - 1 of sender_order
  Tensor sender_order;  ///< [edges]: edge indices, ascending by (sender, edge)
  /// i64 [3]: the real numbers of nodes, owned nodes and edges in device memory. The sizes above are then
  /// capacities, and kernels neither read nor write rows past the real counts. Undefined: every row is real.
  Tensor counts;

  Rows node_rows() const { return {nodes, count(0)}; }
  Rows owned_rows() const { return {owned_nodes, count(1)}; }
  Rows edge_rows() const { return {edges, count(2)}; }

 private:
  const int64_t* count(int which) const {
    return counts.defined() ? counts.data<int64_t>() + which : nullptr;
  }
};

/// Builds a Graph from edges in any order by a stable sort. `order`, if not null, becomes [edges]: for each
/// sorted edge its index in the caller's order, to permute edge features alike. Throws InvalidArgument when
/// an index is outside [0, nodes) or the spans differ in length.
Graph build_graph(Runtime& runtime, int64_t nodes, std::span<const int32_t> senders,
                  std::span<const int32_t> receivers, std::vector<int32_t>* order = nullptr);

/// The same of a bipartite graph: senders in [0, nodes), receivers in [0, owned_nodes).
Graph build_bipartite_graph(Runtime& runtime, int64_t nodes, int64_t owned_nodes,
                            std::span<const int32_t> senders, std::span<const int32_t> receivers,
                            std::vector<int32_t>* order = nullptr);

/// Throws InvalidArgument unless sizes, order and ranges are as documented above. Reads every index, so call
/// it once, for graphs from outside. CPU only.
void check_graph(const Graph& graph);

}  // namespace meshgrad
#pragma GCC visibility pop
