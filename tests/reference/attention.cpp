// SPDX-License-Identifier: Apache-2.0
#include "reference/attention.h"

#include <algorithm>
#include <cmath>

namespace meshgrad::reference {
namespace {

struct Edge {
  int64_t sender, receiver;
  int64_t row;    // of edge_scores; -1: a self edge
  int64_t place;  // among the receiver's edges
};

std::vector<Edge> all_edges(const Attention& a, const Edges& graph) {
  std::vector<Edge> edges;
  std::vector<int64_t> seen(static_cast<size_t>(graph.owned_nodes), 0);
  for (size_t e = 0; e < graph.senders.size(); ++e) {
    const int64_t r = graph.receivers[e];
    edges.push_back({graph.senders[e], r, static_cast<int64_t>(e), seen[static_cast<size_t>(r)]++});
  }
  for (int64_t r = 0; a.self_edges && r < graph.owned_nodes; ++r)
    edges.push_back({r, r, -1, seen[static_cast<size_t>(r)]});
  return edges;
}

const Matrix& keys_of(const Attention& a) { return a.keys.given() ? a.keys : a.values; }

double leaky(const Attention& a, double x) { return x > 0.0 ? x : a.slope * x; }
double leaky_slope(const Attention& a, double x) { return x > 0.0 ? 1.0 : a.slope; }

double dot(const Matrix& x, int64_t i, const Matrix& y, int64_t j, int64_t first, int64_t count) {
  double sum = 0.0;
  for (int64_t c = first; c < first + count; ++c) sum += x.at(i, c) * y.at(j, c);
  return sum;
}

/// The score before leaky of gat.
double sum_of_terms(const Attention& a, const Edge& e, int64_t h) {
  const int64_t dim = a.values.cols / a.heads, first = h * dim;
  const double extra = a.edge_scores.given() && e.row >= 0 ? a.edge_scores.at(e.row, h) : 0.0;
  if (a.score == AttentionScore::gat)
    return a.sender_scores.at(e.sender, h) + a.receiver_scores.at(e.receiver, h) + extra;
  if (a.score == AttentionScore::dot) {
    return dot(a.queries, e.receiver, keys_of(a), e.sender, first, dim) /
               std::sqrt(static_cast<double>(dim)) +
           extra;
  }
  double sum = 0.0;
  for (int64_t c = first; c < first + dim; ++c)
    sum += a.weight.at(0, c) * leaky(a, keys_of(a).at(e.sender, c) + a.queries.at(e.receiver, c));
  return sum;
}
double score_of(const Attention& a, const Edge& e, int64_t h) {
  const double sum = sum_of_terms(a, e, h);
  return a.score == AttentionScore::gat ? leaky(a, sum) : sum;
}

Matrix log_sums_of(const Attention& a, const std::vector<Edge>& edges, int64_t receivers) {
  Matrix largest(receivers, a.heads, -INFINITY), sums(receivers, a.heads);
  for (const Edge& e : edges) {
    for (int64_t h = 0; h < a.heads; ++h)
      largest.at(e.receiver, h) = std::max(largest.at(e.receiver, h), score_of(a, e, h));
  }
  for (const Edge& e : edges) {
    for (int64_t h = 0; h < a.heads; ++h)
      sums.at(e.receiver, h) += std::exp(score_of(a, e, h) - largest.at(e.receiver, h));
  }
  for (size_t i = 0; i < sums.v.size(); ++i)
    sums.v[i] = sums.v[i] > 0.0 ? largest.v[i] + std::log(sums.v[i]) : 0.0;
  return sums;
}

/// Adds what a score's gradient is by keys, queries and the weight.
void add_key_gradients(const Attention& a, const Edge& e, int64_t h, double d_score, AttentionGradients& g) {
  const int64_t dim = a.values.cols / a.heads;
  Matrix& d_keys = a.keys.given() ? g.d_keys : g.d_values;
  for (int64_t c = h * dim; c < (h + 1) * dim; ++c) {
    const double k = keys_of(a).at(e.sender, c), q = a.queries.at(e.receiver, c);
    if (a.score == AttentionScore::dot) {
      d_keys.at(e.sender, c) += d_score * q / std::sqrt(static_cast<double>(dim));
      g.d_queries.at(e.receiver, c) += d_score * k / std::sqrt(static_cast<double>(dim));
    } else {
      const double d_z = d_score * a.weight.at(0, c) * leaky_slope(a, k + q);
      d_keys.at(e.sender, c) += d_z;
      g.d_queries.at(e.receiver, c) += d_z;
      g.d_weight.at(0, c) += d_score * leaky(a, k + q);
    }
  }
}

Matrix zeros_like(const Matrix& x) { return Matrix(x.rows, x.cols); }

}  // namespace

AttentionResult attention(const Attention& a, const Edges& graph) {
  const std::vector<Edge> edges = all_edges(a, graph);
  const int64_t dim = a.values.cols / a.heads;
  AttentionResult result{Matrix(graph.owned_nodes, a.values.cols), log_sums_of(a, edges, graph.owned_nodes)};
  for (const Edge& e : edges) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const double alpha = std::exp(score_of(a, e, h) - result.log_sums.at(e.receiver, h)) *
                           a.keep(e.receiver, e.place * a.heads + h);
      for (int64_t c = h * dim; c < (h + 1) * dim; ++c)
        result.out.at(e.receiver, c) += alpha * a.values.at(e.sender, c);
    }
  }
  return result;
}

AttentionGradients attention_backward(const Attention& a, const Edges& graph, const Matrix& d_out) {
  const std::vector<Edge> edges = all_edges(a, graph);
  const int64_t dim = a.values.cols / a.heads;
  const Matrix log_sums = log_sums_of(a, edges, graph.owned_nodes);
  const auto alpha = [&](const Edge& e, int64_t h) {
    return std::exp(score_of(a, e, h) - log_sums.at(e.receiver, h));
  };
  const auto kept = [&](const Edge& e, int64_t h) { return a.keep(e.receiver, e.place * a.heads + h); };
  const auto t = [&](const Edge& e, int64_t h) {
    return dot(d_out, e.receiver, a.values, e.sender, h * dim, dim) * kept(e, h);
  };
  Matrix mean(graph.owned_nodes, a.heads);  // of t, with weights alpha
  for (const Edge& e : edges) {
    for (int64_t h = 0; h < a.heads; ++h) mean.at(e.receiver, h) += alpha(e, h) * t(e, h);
  }
  AttentionGradients g{zeros_like(a.values),     zeros_like(a.sender_scores), zeros_like(a.receiver_scores),
                       zeros_like(a.keys),       zeros_like(a.queries),       zeros_like(a.weight),
                       zeros_like(a.edge_scores)};
  for (const Edge& e : edges) {
    for (int64_t h = 0; h < a.heads; ++h) {
      for (int64_t c = h * dim; c < (h + 1) * dim; ++c)
        g.d_values.at(e.sender, c) += alpha(e, h) * kept(e, h) * d_out.at(e.receiver, c);
      double d_score = alpha(e, h) * (t(e, h) - mean.at(e.receiver, h));
      if (a.score == AttentionScore::gat) {
        d_score *= leaky_slope(a, sum_of_terms(a, e, h));
        g.d_sender_scores.at(e.sender, h) += d_score;
        g.d_receiver_scores.at(e.receiver, h) += d_score;
      } else {
        add_key_gradients(a, e, h, d_score, g);
      }
      if (a.edge_scores.given() && e.row >= 0) g.d_edge_scores.at(e.row, h) += d_score;
    }
  }
  return g;
}

Matrix head_scores(const Matrix& x, const Matrix& weight, int64_t heads) {
  Matrix scores(x.rows, heads);
  const int64_t dim = x.cols / heads;
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t c = 0; c < x.cols; ++c) scores.at(i, c / dim) += x.at(i, c) * weight.at(0, c);
  }
  return scores;
}

HeadScoreGradients head_scores_backward(const Matrix& x, const Matrix& weight, const Matrix& d_scores) {
  HeadScoreGradients g{Matrix(x.rows, x.cols), Matrix(1, x.cols)};
  const int64_t dim = x.cols / d_scores.cols;
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t c = 0; c < x.cols; ++c) {
      g.d_x.at(i, c) = d_scores.at(i, c / dim) * weight.at(0, c);
      g.d_weight.at(0, c) += d_scores.at(i, c / dim) * x.at(i, c);
    }
  }
  return g;
}

}  // namespace meshgrad::reference
