// SPDX-License-Identifier: Apache-2.0
// Reference implementation of attention (kernels/attention.h): edge by edge, with every alpha written down.
#pragma once
#include <functional>

#include <meshgrad/kernels/graph_choices.h>

#include "reference/message_passing.h"

namespace meshgrad::reference {

struct Attention {
  AttentionScore score = AttentionScore::gat;
  int64_t heads = 1;
  bool self_edges = false;
  double slope = 0.2;
  Matrix values;
  Matrix sender_scores, receiver_scores;  // gat
  Matrix keys, queries, weight;           // gatv2, dot; keys that are not given are the values
  Matrix edge_scores;                     // may be not given
  /// What alpha of (receiver, column) is multiplied by: 0 or 1 / (1 - rate).
  std::function<double(int64_t receiver, int64_t column)> keep = [](int64_t, int64_t) { return 1.0; };
};

struct AttentionResult {
  Matrix out, log_sums;
};
AttentionResult attention(const Attention& a, const Edges& graph);

/// Those that do not belong to the score stay empty.
struct AttentionGradients {
  Matrix d_values, d_sender_scores, d_receiver_scores, d_keys, d_queries, d_weight, d_edge_scores;
};
AttentionGradients attention_backward(const Attention& a, const Edges& graph, const Matrix& d_out);

/// scores[n, h] = sum over d of x[n, h, d] weight[h, d].
Matrix head_scores(const Matrix& x, const Matrix& weight, int64_t heads);
struct HeadScoreGradients {
  Matrix d_x, d_weight;
};
HeadScoreGradients head_scores_backward(const Matrix& x, const Matrix& weight, const Matrix& d_scores);

}  // namespace meshgrad::reference
