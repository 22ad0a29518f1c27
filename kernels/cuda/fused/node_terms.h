// SPDX-License-Identifier: Apache-2.0
// node_terms: the node half of a split first layer on tensor cores, and its gradient.
//
//   S = h W_s at every node, R = h W_r at every owned node
//   dS[s] = sum of d_first over the edges that s sends, in sender order
//   d_h (+)= dS W_s^T + dR W_r^T
//
// One launch each way; 16-bit storage, f32 sums, rounded once when written. No atomics: bit-identical from
// run to run, whatever a node's degree. Rows at or behind the graph's real counts are neither read nor
// written.
#pragma once
#include <meshgrad/kernels/cuda/fused/weight_gradients.h>
#include <meshgrad/kernels/message_passing.h>

namespace meshgrad::cuda {

/// True for f16 or bf16 with node_width = hidden = 64, 128 or 256.
bool node_terms_cover(DType dtype, int64_t node_width, int64_t hidden);

/// sender_terms [nodes, hidden], receiver_terms [owned_nodes, hidden]; dtype of terms.nodes.
void node_terms_forward(const NodeTerms& terms, const Graph& graph, const Tensor& sender_terms,
                        const Tensor& receiver_terms, Runtime& runtime, const Stream& stream);

struct NodeTermsBackward {
  const Graph* graph = nullptr;
  Tensor sender_weight, receiver_weight;  ///< [node_width, hidden], 16-bit; unused without d_nodes
  Tensor nodes;                           ///< h: [nodes, node_width]; unused without d_sender_weight
  Tensor d_first;                         ///< [edges, hidden]: dz_1 of each edge, in receiver order
  Tensor d_receiver_terms;                ///< [owned_nodes, hidden]; unused without d_nodes
  Tensor d_sender_terms;                  ///< [nodes, hidden], written: a node that sends nothing gets 0
  Tensor d_nodes;                         ///< [nodes, node_width]; may be undefined
  bool accumulate = false;                ///< d_nodes += instead of d_nodes =
  Tensor d_sender_weight;                 ///< [node_width, hidden] f32, accumulated into; may be undefined
};
/// In the same launch, the weight gradients and column sums of the whole edge update, as weight_gradients()
/// does them; d_receiver_terms is complete, so the receiver weight's gradient is one of the jobs.
void node_terms_backward(const NodeTermsBackward& args, std::span<const WeightGradientJob> jobs,
                         std::span<const ColumnSumJob> sums, Runtime& runtime, const Stream& stream);

}  // namespace meshgrad::cuda
