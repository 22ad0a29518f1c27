// SPDX-License-Identifier: Apache-2.0
// Reference implementations of segment_sum, graph_pool and message_passing. Edges are in any order; sums run
// over all of them, without offsets or an order that could be wrong.
#pragma once
#include <meshgrad/kernels/graph_pool.h>

#include "reference/mlp.h"

namespace meshgrad::reference {

/// Row i of the result is row index[i] of x.
Matrix gather(const Matrix& x, const std::vector<int32_t>& index);

/// Row s of the result is the sum of the rows i of x with index[i] == s: the transpose of gather.
Matrix scatter_add(const Matrix& x, const std::vector<int32_t>& index, int64_t rows);

/// Graph g has the rows starts[g] .. starts[g+1] - 1 of x.
struct GraphPoolResult {
  Matrix out;
  std::vector<int32_t> index;  ///< of max: [graphs, width]
};
GraphPoolResult graph_pool(GraphPool pool, const Matrix& x, const std::vector<int32_t>& starts);
/// The gradient by x.
Matrix graph_pool_backward(GraphPool pool, const Matrix& x, const std::vector<int32_t>& starts,
                           const Matrix& d_out);

struct Edges {
  int64_t nodes = 0;
  int64_t owned_nodes = 0;
  std::vector<int32_t> senders, receivers;
};

struct EdgeUpdate {
  Mlp mlp;  ///< one first weight: that of the edge features
  bool residual = true;
  bool aggregate_after_residual = false;
};

struct EdgeUpdateResult {
  MlpResult mlp;
  Matrix edges_out, aggregate;
};
EdgeUpdateResult edge_update(const EdgeUpdate& update, const Edges& graph, const Matrix& sender_terms,
                             const Matrix& receiver_terms, const Matrix& edges);

struct EdgeUpdateGradients {
  Matrix d_edges, d_sender_terms, d_receiver_terms, d_edge_weight;
  MlpGradients mlp;
  Matrix d_nodes, d_sender_weight, d_receiver_weight;  ///< only where NodeTerms were given
};
/// d_edges_out that is not given is zero.
EdgeUpdateGradients edge_update_backward(const EdgeUpdate& update, const Edges& graph,
                                         const Matrix& sender_terms, const Matrix& receiver_terms,
                                         const Matrix& edges, const Matrix& d_edges_out,
                                         const Matrix& d_aggregate);

/// Where the terms come from: nodes times a weight each, receivers being the first nodes.
struct NodeTerms {
  Matrix nodes, sender_weight, receiver_weight;
};
EdgeUpdateResult edge_update(const EdgeUpdate& update, const Edges& graph, const NodeTerms& terms,
                             const Matrix& edges);
EdgeUpdateGradients edge_update_backward(const EdgeUpdate& update, const Edges& graph, const NodeTerms& terms,
                                         const Matrix& edges, const Matrix& d_edges_out,
                                         const Matrix& d_aggregate);

}  // namespace meshgrad::reference
