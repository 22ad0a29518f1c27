// SPDX-License-Identifier: Apache-2.0
// node_terms: the node half of the split first layer on tensor cores, and its gradient. The first layer of an
// edge MLP is linear in [e, h_sender, h_receiver], so the share of the nodes is computed once per node
// instead of once per edge.
//
//   S = h W_s at every node, R = h W_r at every owned node
//   dS[s] = sum of d_first over the edges that s sends, in sender order
//   d_h (+)= dS W_s^T + dR W_r^T
//
// One launch forward, one backward and that of the sum of slices; 16-bit storage, f32 accumulation, rounded
// once when stored. No atomics: bit-identical from run to run, whatever a node's degree. Rows at or behind
// the graph's real counts are neither read nor written.
#pragma once
#include <meshgrad/kernels/cuda/fused/weight_gradients.h>
#include <meshgrad/kernels/message_passing.h>

namespace meshgrad::cuda {

/// True for f16 or bf16 with node_width = hidden = 64, 128 or 256.
bool node_terms_support(DType dtype, int64_t node_width, int64_t hidden);

/// sender_terms [nodes, hidden], receiver_terms [owned_nodes, hidden]; dtype of terms.nodes. The same launch
/// zeroes `tickets` [n] i32, which the next kernel counts with; may be undefined.
void node_terms_forward(const NodeTerms& terms, const Graph& graph, const Tensor& sender_terms,
                        const Tensor& receiver_terms, const Tensor& tickets, const Stream& stream);

struct NodeTermsBackward {
  const Graph* graph = nullptr;
  Tensor sender_weight, receiver_weight;  ///< [node_width, hidden], 16-bit; unused without d_nodes
  Tensor nodes;                           ///< h: [nodes, node_width]; unused without d_sender_weight
  Tensor d_first;                         ///< [edges, hidden]: d_z_1 of each edge, in receiver order
  Tensor d_receiver_terms;                ///< [owned_nodes, hidden]; unused without d_nodes
  Tensor d_sender_terms;                  ///< [nodes, hidden], written; 0 for a node that sends nothing
  Tensor d_nodes;                         ///< [nodes, node_width]; may be undefined
  bool accumulate = false;                ///< d_nodes += instead of d_nodes =
  Tensor d_sender_weight;                 ///< [node_width, hidden] f32, accumulated into; may be undefined
};
/// The same launch computes the weight gradients and column sums of the whole edge update as
/// weight_gradients() does. d_receiver_terms is an input here, so the receiver weight's gradient is one of
/// `jobs`; the sender weight's needs d_sender_terms, which this launch computes, and is not.
void node_terms_backward(const NodeTermsBackward& args, std::span<const WeightGradientJob> jobs,
                         std::span<const ColumnSumJob> sums, Runtime& runtime, const Stream& stream);

}  // namespace meshgrad::cuda
