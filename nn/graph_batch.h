// SPDX-License-Identifier: Apache-2.0
// GraphBatch: the inputs of a model. Several graphs form one disjoint union. Targets, masks and whatever else
// a learning problem needs belong to its task (train/learn/task/).
#pragma once
#include <meshgrad/kernels/graph.h>
#include <meshgrad/kernels/mlp.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Names of edge sets: the edges of a mesh, and those between nodes that are near each other.
inline constexpr std::string_view kMeshEdges = "mesh", kWorldEdges = "world";

/// Edges of one kind with their features.
struct EdgeSet {
  std::string name;
  Graph graph;
  /// [edges, edge_inputs], normalised, in the graph's order (sorted by receiver); [edges, 0]: none.
  Tensor features;
  /// f32 [edges], in the same order: what each edge weighs in a graph convolution, 1 / sqrt(d_s d_r) with the
  /// numbers d of edges that sender and receiver receive, an edge from each node to itself among them (Kipf,
  /// Welling 2017). Undefined unless ModelSizes::edge_weights asks for them.
  Tensor weights = {};
  /// Whether the nodes that send, and those that receive, are the batch's. Others, as those of a coarser
  /// level, have no place in it: only the graph says how many there are.
  bool from_batch = true, to_batch = true;
};

/// An EdgeSet from edges in any order, and `features` [edges, width] in the same order: both are sorted by
/// receiver together. T is the storage type: float, double, half or bfloat16. A width of 0: no features.
/// Throws InvalidArgument for another number of features, and what build_graph throws.
template <class T>  // the pragma does not reach instantiations
[[gnu::visibility("default")]] EdgeSet make_edge_set(Runtime& runtime, std::string name, int64_t nodes,
                                                     std::span<const int32_t> senders,
                                                     std::span<const int32_t> receivers,
                                                     std::span<const T> features, int64_t width);

struct Halo;  // autograd/halo.h

struct GraphBatch {
  int64_t nodes = 0;  ///< rows of the node tensors
  /// i64 [1]: the real number of nodes in device memory, as Graph::counts has it. Undefined: every row is
  /// real.
  Tensor node_count;
  /// Of a part of a mesh that is split: the nodes above are those that it owns, and its graphs' halo nodes
  /// are exchanged in front of each round of message passing. Null: the mesh is whole.
  std::shared_ptr<const Halo> halo;
  /// i32 [graphs + 1], on the device: graph g has the nodes starts[g] .. starts[g+1] - 1. Where there is room
  /// for more graphs than there are, the others are empty: they start at the real number of nodes. Undefined
  /// unless ModelSizes::graph_starts asks for it.
  Tensor graph_starts;
  /// i64 [nodes]: of each node of a training batch a hash of the run's seed, of the sample, of how often it
  /// was drawn, and of the node's number in its graph, which dropout draws by. Undefined where no model asks
  /// for it; not written for predictions.
  Tensor node_keys;
  Tensor node_features;  ///< [nodes, node_inputs], normalised
  /// Of each of ModelSizes::tables a bipartite graph with an edge for each node, in their order, from the row
  /// of its identifier, as ops::embedding takes it. Receivers and their offsets are undefined.
  std::vector<Graph> identifiers;
  /// One less than an MLP's most inputs: a node MLP takes the nodes beside one aggregate an edge set.
  InlineVector<EdgeSet, kMaxMlpInputs - 1> edge_sets;

  /// Throws InvalidArgument unless the sizes above agree with each other and the tensors' rows. Tensors that
  /// are not defined are left out.
  void check() const;

  Rows node_rows() const { return {nodes, node_count.data_or_null<int64_t>()}; }
  bool has_edges(std::string_view name) const;
  /// The edge set of that name. Throws InvalidArgument when there is none.
  const EdgeSet& edges(std::string_view name) const;
};

/// GraphBatch::graph_starts of graphs of these sizes. Throws InvalidArgument for a negative size, and for
/// 2^31 nodes or more.
Tensor make_graph_starts(Runtime& runtime, std::span<const int64_t> nodes);

/// The edge set of a batch of whole graphs that has only one, between its own nodes. Throws InvalidArgument,
/// which names the model that needs it.
const EdgeSet& only_edge_set(std::string_view model, const GraphBatch& batch);

}  // namespace meshgrad
#pragma GCC visibility pop
