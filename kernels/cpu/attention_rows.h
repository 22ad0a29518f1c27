// SPDX-License-Identifier: Apache-2.0
// The CPU's attention, some nodes at a time: compiled once per instruction set, as row_ops.h.
#pragma once
#include <meshgrad/kernels/attention.h>

namespace meshgrad::cpu {

/// One call's tensors as pointers; null: undefined. attention.h has the formulas.
template <class S>
struct AttentionPointers {
  using T = Accumulator<S>;
  AttentionScore score;
  int64_t heads, dim, width;             // dim: columns of a head
  int64_t sender_count, receiver_count;  // real ones
  bool self_edges;
  T slope, scale;  // scale: 1 / sqrt(dim) of dot
  const int32_t *senders, *receivers, *receiver_offsets, *sender_offsets, *sender_order;
  const S *values, *keys, *queries, *edge_scores;  // keys: never null
  const T *sender_scores, *receiver_scores, *weight;
  DropoutMask dropout;
  S* out;
  T* log_sums;

  // Backward.
  const S* d_out = nullptr;
  T* dots = nullptr;      // c: [receivers, heads]
  T* d_scores = nullptr;  // [edges, heads], then those of self edges: [receivers, heads]
  T* d_self_scores = nullptr;
  S *d_values = nullptr, *d_keys = nullptr, *d_queries = nullptr, *d_edge_scores = nullptr;
  T *d_sender_scores = nullptr, *d_receiver_scores = nullptr;
  bool add_values = false, add_keys = false, add_queries = false, add_edge_scores = false;
  bool add_sender_scores = false, add_receiver_scores = false;
  bool values_are_keys = false;
};

/// Each over nodes [begin, end).
template <class S>
struct AttentionRows {
  using T = Accumulator<S>;
  void (*forward)(const AttentionPointers<S>&, int64_t begin, int64_t end);
  void (*dots)(const AttentionPointers<S>&, int64_t begin, int64_t end);  // c
  void (*senders)(const AttentionPointers<S>&, int64_t begin, int64_t end);
  /// Adds to d_weight [width] unless it is null.
  void (*receivers)(const AttentionPointers<S>&, int64_t begin, int64_t end, T* d_weight);
  /// scores = x . weight, head by head, for `rows` rows.
  void (*head_scores)(int64_t rows, int64_t heads, int64_t dim, const S* x, const T* weight, T* scores);
  /// d_x = [d_x +] d_scores weight unless null, and d_weight += sum of d_scores x unless null.
  void (*head_scores_backward)(int64_t rows, int64_t heads, int64_t dim, const S* x, const T* weight,
                               const T* d_scores, bool accumulate, S* d_x, T* d_weight);
  /// In place of rows of a tile (row_ops.h), x = softmax(scale x); and of d, with s such a result, the
  /// gradient of x: d = scale s (d - sum of s d).
  void (*softmax)(int64_t rows, int64_t width, T scale, T* x, int64_t x_row);
  void (*softmax_backward)(int64_t rows, int64_t width, T scale, const T* s, int64_t s_row, T* d,
                           int64_t d_row);
};

/// The best table for this CPU.
template <class S>
const AttentionRows<S>& attention_rows();
template <>
const AttentionRows<float>& attention_rows<float>();
template <>
const AttentionRows<double>& attention_rows<double>();
template <>
const AttentionRows<half>& attention_rows<half>();
template <>
const AttentionRows<bfloat16>& attention_rows<bfloat16>();

}  // namespace meshgrad::cpu
