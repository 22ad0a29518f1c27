// SPDX-License-Identifier: Apache-2.0
// attention: each receiver takes a weighted mean of its senders' values, head by head; the weights are a
// softmax of scores over its edges. Nothing of size [edges, width] is written, forward or backward.
//
// Of edge e = (s, r) and head h, which has D = width / heads columns:
//
// - gat (Velickovic et al. 2018, arXiv 1710.10903): score = leaky(a_s[s, h] + a_r[r, h] (+ b[e, h]))
// - gatv2 (Brody, Alon, Yahav 2022, arXiv 2105.14491): score = sum_d att[h, d] leaky(k[s, h, d] + q[r, h, d])
// - dot (Shi et al. 2021, arXiv 2009.03509): score = sum_d q[r, h, d] k[s, h, d] / sqrt(D) (+ b[e, h])
//
// alpha[e, h] = exp(score - log_sum[r, h]), where log_sum[r, h] is the log of the sum of exp(score) over r's
// edges; out[r] = sum over r's edges of keep alpha[e] v[s] / (1 - rate).
//
// leaky(x) is x where x > 0, else slope x. With `self_edges` each receiver has one more edge, from the node
// of its own number, after the others. A receiver without edges gets 0.
//
// Dropout of alpha (dropout.h): the row is the receiver, the column is (place of e among r's edges) heads +
// h. So a mask depends neither on the batch nor on capacities.
//
// Backward saves log_sums and reads out: with t = d_out[r] . v[s] and c = d_out[r] . out[r], head by head,
//   d_score = alpha (keep t / (1 - rate) - c)
// The first pass, by sender, writes d_score [edges, heads] and sums what senders get; the second, by
// receiver, reads it. Sums run in the order of a receiver's or a sender's edges; a GPU cuts more than 256
// edges into slabs and adds these in order. No atomics: the same bits for any number of threads and any
// capacity.
#pragma once
#include <meshgrad/kernels/activation.h>
#include <meshgrad/kernels/dropout.h>
#include <meshgrad/kernels/graph.h>
#include <meshgrad/kernels/graph_choices.h>
#include <meshgrad/kernels/work.h>

namespace meshgrad {

inline constexpr int64_t kMaxHeadColumns = 1024;
inline constexpr int64_t kMaxAttentionWidth = 4096;  // of all heads

/// What forward reads. Storage dtype, but for the scores and the weight, which are in the accumulation dtype.
struct EdgeAttention {
  const Graph* graph = nullptr;  ///< bipartite, too; with self_edges as many senders as receivers at least
  AttentionScore score = AttentionScore::gat;
  int64_t heads = 1;  ///< 1 .. kMaxHeads
  bool self_edges = false;
  double slope = kLeakySlope;             ///< of leaky, above 0
  Tensor values;                          ///< v: [nodes, width]
  Tensor sender_scores, receiver_scores;  ///< gat: a_s [nodes, heads] and a_r [owned_nodes, heads]
  Tensor keys;                            ///< gatv2, dot: k [nodes, width]; undefined: the values
  Tensor queries;                         ///< gatv2, dot: q [owned_nodes, width]
  Tensor weight;                          ///< gatv2: att [width]
  Tensor edge_scores;                     ///< gat, dot: b [edges, heads], or undefined; 0 of self edges
  DropoutKey dropout = {};                ///< row_keys: [owned_nodes]
};

struct EdgeAttentionForward {
  EdgeAttention inputs;
  Tensor out;       ///< [owned_nodes, width]
  Tensor log_sums;  ///< [owned_nodes, heads], accumulation dtype; undefined: not saved
};

/// Gradients from d_out; inputs, out and log_sums are forward's. Each may be undefined, and is written or
/// added to.
struct EdgeAttentionBackward {
  EdgeAttention inputs;
  Tensor out, log_sums;
  Tensor d_out;     ///< [owned_nodes, width]
  Tensor d_values;  ///< without keys: also what the values get as keys
  bool accumulate_d_values = false;
  Tensor d_sender_scores, d_receiver_scores;
  bool accumulate_d_sender_scores = false, accumulate_d_receiver_scores = false;
  Tensor d_keys, d_queries;
  bool accumulate_d_keys = false, accumulate_d_queries = false;
  Tensor d_weight;  ///< [width], added to
  Tensor d_edge_scores;
  bool accumulate_d_edge_scores = false;
};

/// scores[n, h] = sum over d of x[n, h, d] weight[h, d]: a_s and a_r of gat.
struct HeadScoresForward {
  Rows rows;
  int64_t heads = 1;
  Tensor x;       ///< [rows, width]
  Tensor weight;  ///< [width], accumulation dtype
  Tensor scores;  ///< [rows, heads], accumulation dtype
};
struct HeadScoresBackward {
  Rows rows;
  int64_t heads = 1;
  Tensor x, weight;  ///< as in forward
  Tensor d_scores;   ///< [rows, heads], accumulation dtype
  Tensor d_x;        ///< [rows, width], written or added to; may be undefined
  bool accumulate_d_x = false;
  Tensor d_weight;  ///< [width], added to; may be undefined
};

Work work_of(const EdgeAttentionForward& args);
Work work_of(const EdgeAttentionBackward& args);
Work work_of(const HeadScoresForward& args);
Work work_of(const HeadScoresBackward& args);

struct AttentionKernels {
  void (*edge_attention_forward)(const EdgeAttentionForward&, const Stream&);
  void (*edge_attention_backward)(const EdgeAttentionBackward&, Runtime&, const Stream&);
  void (*head_scores_forward)(const HeadScoresForward&, const Stream&);
  void (*head_scores_backward)(const HeadScoresBackward&, Runtime&, const Stream&);
};

namespace kernels {
void edge_attention_forward(const EdgeAttentionForward& args, const Stream& stream);
void edge_attention_backward(const EdgeAttentionBackward& args, Runtime& runtime, const Stream& stream);
void head_scores_forward(const HeadScoresForward& args, const Stream& stream);
void head_scores_backward(const HeadScoresBackward& args, Runtime& runtime, const Stream& stream);
}  // namespace kernels

}  // namespace meshgrad
