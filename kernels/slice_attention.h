// SPDX-License-Identifier: Apache-2.0
// slice_attention: the nodes of a graph exchange what they know through a few slices, head by head, at a cost
// that is linear in the nodes. Wu et al., "Transolver: a fast transformer solver for PDEs on general
// geometries" (ICML 2024). Graph by graph of a batch; head h has D = width /
// heads columns, M slices:
//
//   s[n, h, :] = softmax((key[n, h] W + b) / t[h])   soft weights of node n on the slices
//   N[h, m] = sum of s[n, h, m] over the graph's nodes, its size
//   token[h, m] = sum of s[n, h, m] value[n, h] / (N[h, m] + 1e-5)            (slice_tokens)
//   token'[h, i] = sum over slices j of softmax_j(q[h, i] . k[h, j] / sqrt(D)) v[h, j]   (token_attention)
//   out[n, h] = sum over m of s[n, h, m] token'[h, m]                         (slice_spread)
//
// W [D, M] and b are shared by the heads. A temperature t below 0.1 counts as 0.1, above 5 as 5 (so does the
// paper's code for structured meshes), and then has a gradient of 0: it stays where it is. Weights s are
// never written: each pass over the nodes recomputes them, tile by tile. Tokens are rows (graph heads + h)
// slices + m, those of a graph without nodes are 0.
//
// keys, values, out and tokens share one storage dtype (f32, f16 or bf16; f64 on the CPU), as W does; b, t,
// N and the gradients of W, b and t are in its accumulation dtype, in which all sums run.
// Deterministic: a graph's nodes are cut into slabs of 256, which are added in order, so its sums are the
// same bits for any number of threads and in whichever batch; gradients of W, b and t depend on the batch's
// sizes and the device, too. Throws InvalidArgument for a shape or dtype that does not fit, and for sizes
// beyond those below.
#pragma once
#include <meshgrad/kernels/graph_choices.h>
#include <meshgrad/kernels/work.h>

namespace meshgrad {

inline constexpr int64_t kSliceSlab = 256;  // nodes
inline constexpr double kSliceEpsilon = 1e-5;
inline constexpr double kLeastTemperature = 0.1;
inline constexpr double kMostTemperature = 5.0;

/// What the soft weights are made of.
struct SliceWeights {
  int64_t heads = 1;
  Rows nodes;           ///< those of all graphs: starts[graphs]
  Tensor starts;        ///< i32 [graphs + 1], ascending from 0
  Tensor keys;          ///< [nodes, width]
  Tensor weight;        ///< W: [D, M]
  Tensor bias;          ///< b: [M]
  Tensor temperatures;  ///< t: [heads]

  int64_t width() const { return keys.width(); }
  int64_t columns() const { return weight.rows(); }  ///< of a head
  int64_t slices() const { return weight.width(); }
  int64_t graphs() const { return starts.rows() - 1; }
  int64_t tokens() const { return graphs() * heads * slices(); }
};
/// Their gradients; undefined ones are not computed.
struct SliceWeightGradients {
  Tensor d_keys;  ///< [nodes, width], written or added to
  bool accumulate_d_keys = false;
  Tensor d_weight, d_bias, d_temperatures;  ///< added to
};

struct SliceTokensForward {
  SliceWeights weights;
  Tensor values;  ///< [nodes, width]
  Tensor tokens;  ///< [graphs heads M, D]
  Tensor sizes;   ///< N: [graphs heads M]
};
struct SliceTokensBackward {
  SliceWeights weights;
  Tensor values, tokens, sizes;  ///< as in forward
  Tensor d_tokens;
  Tensor d_values;  ///< may be undefined
  bool accumulate_d_values = false;
  SliceWeightGradients gradients;
};

struct SliceSpreadForward {
  SliceWeights weights;
  Tensor tokens;  ///< [graphs heads M, D]
  Tensor out;     ///< [nodes, width]
};
struct SliceSpreadBackward {
  SliceWeights weights;
  Tensor tokens;
  Tensor d_out;     ///< [nodes, width]
  Tensor d_tokens;  ///< may be undefined
  bool accumulate_d_tokens = false;
  SliceWeightGradients gradients;
};

/// Each group of `slices` rows attends to itself alone.
struct TokenAttentionForward {
  int64_t slices = 1;
  Tensor queries, keys, values;  ///< [tokens, D]
  Tensor out;                    ///< [tokens, D]
};
struct TokenAttentionBackward {
  int64_t slices = 1;
  Tensor queries, keys, values, d_out;
  Tensor d_queries, d_keys, d_values;  ///< each may be undefined
  bool accumulate_d_queries = false, accumulate_d_keys = false, accumulate_d_values = false;
};

Work work_of(const SliceTokensForward& args);
Work work_of(const SliceTokensBackward& args);
Work work_of(const SliceSpreadForward& args);
Work work_of(const SliceSpreadBackward& args);
Work work_of(const TokenAttentionForward& args);
Work work_of(const TokenAttentionBackward& args);

struct SliceAttentionKernels {
  void (*slice_tokens_forward)(const SliceTokensForward&, Runtime&, const Stream&);
  void (*slice_tokens_backward)(const SliceTokensBackward&, Runtime&, const Stream&);
  void (*slice_spread_forward)(const SliceSpreadForward&, Runtime&, const Stream&);
  void (*slice_spread_backward)(const SliceSpreadBackward&, Runtime&, const Stream&);
  void (*token_attention_forward)(const TokenAttentionForward&, Runtime&, const Stream&);
  void (*token_attention_backward)(const TokenAttentionBackward&, Runtime&, const Stream&);
};

namespace kernels {
void slice_tokens_forward(const SliceTokensForward& args, Runtime& runtime, const Stream& stream);
void slice_tokens_backward(const SliceTokensBackward& args, Runtime& runtime, const Stream& stream);
void slice_spread_forward(const SliceSpreadForward& args, Runtime& runtime, const Stream& stream);
void slice_spread_backward(const SliceSpreadBackward& args, Runtime& runtime, const Stream& stream);
void token_attention_forward(const TokenAttentionForward& args, Runtime& runtime, const Stream& stream);
void token_attention_backward(const TokenAttentionBackward& args, Runtime& runtime, const Stream& stream);
}  // namespace kernels

}  // namespace meshgrad
