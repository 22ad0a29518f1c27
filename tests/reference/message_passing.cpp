// SPDX-License-Identifier: Apache-2.0
#include "reference/message_passing.h"

namespace meshgrad::reference {
namespace {

Matrix first_rows(const Matrix& x, int64_t rows) {
  Matrix result(rows, x.cols);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < x.cols; ++j) result.at(i, j) = x.at(i, j);
  }
  return result;
}

}  // namespace

Matrix gather(const Matrix& x, const std::vector<int32_t>& index) {
  Matrix result(static_cast<int64_t>(index.size()), x.cols);
  for (int64_t i = 0; i < result.rows; ++i) {
    for (int64_t j = 0; j < x.cols; ++j) result.at(i, j) = x.at(index[static_cast<size_t>(i)], j);
  }
  return result;
}

Matrix scatter_add(const Matrix& x, const std::vector<int32_t>& index, int64_t rows) {
  Matrix result(rows, x.cols);
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t j = 0; j < x.cols; ++j) result.at(index[static_cast<size_t>(i)], j) += x.at(i, j);
  }
  return result;
}

GraphPoolResult graph_pool(GraphPool pool, const Matrix& x, const std::vector<int32_t>& starts) {
  const auto graphs = static_cast<int64_t>(starts.size()) - 1;
  GraphPoolResult result{Matrix(graphs, x.cols), {}};
  for (int64_t g = 0; g < graphs; ++g) {
    const int32_t begin = starts[static_cast<size_t>(g)], end = starts[static_cast<size_t>(g) + 1];
    for (int64_t c = 0; c < x.cols; ++c) {
      double sum = 0.0;
      int32_t largest = begin < end ? begin : -1;
      for (int32_t i = begin; i < end; ++i) {
        sum += x.at(i, c);
        if (x.at(i, c) > x.at(largest, c)) largest = i;
      }
      if (pool == GraphPool::mean && begin < end) sum /= end - begin;
      if (pool == GraphPool::max) {
        sum = begin < end ? x.at(largest, c) : 0.0;
        result.index.push_back(largest);
      }
      result.out.at(g, c) = sum;
    }
  }
  return result;
}

Matrix graph_pool_backward(GraphPool pool, const Matrix& x, const std::vector<int32_t>& starts,
                           const Matrix& d_out) {
  const std::vector<int32_t> index = graph_pool(pool, x, starts).index;
  Matrix d_x(x.rows, x.cols);
  for (int64_t g = 0; g < d_out.rows; ++g) {
    const int32_t begin = starts[static_cast<size_t>(g)], end = starts[static_cast<size_t>(g) + 1];
    for (int32_t i = begin; i < end; ++i) {
      for (int64_t c = 0; c < x.cols; ++c) {
        const bool lost = pool == GraphPool::max && index[static_cast<size_t>(g * x.cols + c)] != i;
        d_x.at(i, c) = lost ? 0.0 : d_out.at(g, c) / (pool == GraphPool::mean ? end - begin : 1);
      }
    }
  }
  return d_x;
}

EdgeUpdateResult edge_update(const EdgeUpdate& update, const Edges& graph, const Matrix& sender_terms,
                             const Matrix& receiver_terms, const Matrix& edges) {
  const Matrix terms = sum(gather(sender_terms, graph.senders), gather(receiver_terms, graph.receivers));
  EdgeUpdateResult result;
  result.mlp = mlp(update.mlp, {edges}, terms);
  const Matrix& y = result.mlp.out;
  result.edges_out = update.residual ? sum(edges, y) : y;
  result.aggregate =
      scatter_add(update.aggregate_after_residual ? result.edges_out : y, graph.receivers, graph.owned_nodes);
  return result;
}

EdgeUpdateGradients edge_update_backward(const EdgeUpdate& update, const Edges& graph,
                                         const Matrix& sender_terms, const Matrix& receiver_terms,
                                         const Matrix& edges, const Matrix& d_edges_out,
                                         const Matrix& d_aggregate) {
  const Matrix terms = sum(gather(sender_terms, graph.senders), gather(receiver_terms, graph.receivers));
  const Matrix from_aggregate = gather(d_aggregate, graph.receivers);
  Matrix d_out = d_edges_out.given() ? d_edges_out : Matrix(edges.rows, d_aggregate.cols);
  if (update.aggregate_after_residual) d_out = sum(d_out, from_aggregate);
  const Matrix d_y = update.aggregate_after_residual ? d_out : sum(d_out, from_aggregate);

  EdgeUpdateGradients g;
  g.mlp = mlp_backward(update.mlp, {edges}, terms, d_y);
  g.d_edges = update.residual ? sum(g.mlp.d_inputs[0], d_out) : g.mlp.d_inputs[0];
  g.d_edge_weight = g.mlp.d_first_weights[0];
  g.d_sender_terms = scatter_add(g.mlp.d_first_terms, graph.senders, graph.nodes);
  g.d_receiver_terms = scatter_add(g.mlp.d_first_terms, graph.receivers, graph.owned_nodes);
  return g;
}

EdgeUpdateResult edge_update(const EdgeUpdate& update, const Edges& graph, const NodeTerms& terms,
                             const Matrix& edges) {
  const Matrix owned = first_rows(terms.nodes, graph.owned_nodes);
  return edge_update(update, graph, linear(terms.nodes, terms.sender_weight),
                     linear(owned, terms.receiver_weight), edges);
}

EdgeUpdateGradients edge_update_backward(const EdgeUpdate& update, const Edges& graph, const NodeTerms& terms,
                                         const Matrix& edges, const Matrix& d_edges_out,
                                         const Matrix& d_aggregate) {
  const Matrix owned = first_rows(terms.nodes, graph.owned_nodes);
  EdgeUpdateGradients g =
      edge_update_backward(update, graph, linear(terms.nodes, terms.sender_weight),
                           linear(owned, terms.receiver_weight), edges, d_edges_out, d_aggregate);
  const LinearGradients sender = linear_backward(terms.nodes, terms.sender_weight, g.d_sender_terms);
  const LinearGradients receiver = linear_backward(owned, terms.receiver_weight, g.d_receiver_terms);
  g.d_nodes = sender.d_x;
  for (int64_t i = 0; i < graph.owned_nodes; ++i) {
    for (int64_t j = 0; j < g.d_nodes.cols; ++j) g.d_nodes.at(i, j) += receiver.d_x.at(i, j);
  }
  g.d_sender_weight = sender.d_weight;
  g.d_receiver_weight = receiver.d_weight;
  return g;
}

}  // namespace meshgrad::reference
