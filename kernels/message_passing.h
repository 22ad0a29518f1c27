// SPDX-License-Identifier: Apache-2.0
// message_passing: the edge half of a MeshGraphNets block, fused: gather, MLP with its first layer split by
// linearity, norm, residual and the sum over each receiver's edges, in one pass over the edges.
//
//   z_1 = S[sender] + R[receiver] + e W_e + b_1      (S = h W_s and R = h W_r are computed once a node:
//   linear) y = norm(mlp(z_1)),  e' = e + y,  aggregate[r] = sum of y over the edges of receiver r, in edge
//   order
//
// Source: Pfaff, Fortunato, Sanchez-Gonzalez, Battaglia, "Learning mesh-based simulation with graph networks"
// (2021), section 3.2. Storage and accumulation as in mlp.h; bit-identical for any number of threads.
#pragma once
#include <meshgrad/kernels/graph.h>
#include <meshgrad/kernels/mlp.h>

namespace meshgrad {

struct EdgeUpdateForward {
  const Graph* graph = nullptr;
  Tensor sender_terms;    ///< S: [nodes, hidden]
  Tensor receiver_terms;  ///< R: [owned_nodes, hidden]
  MlpInput edges;         ///< e: [edges, in] and W_e
  MlpWeights weights;
  bool residual = true;  ///< e' = e + y; false: e' = y
  /// Sums e' instead of y (PhysicsNeMo's convention).
  bool aggregate_after_residual = false;
  Tensor edges_out;  ///< e': [edges, out]; may be undefined when nothing reads it (the last block)
  Tensor aggregate;  ///< [owned_nodes, out]; a receiver without edges gets 0
  MlpSaved saved;
};

struct EdgeUpdateBackward {
  const Graph* graph = nullptr;
  Tensor sender_terms;  ///< may be undefined, like receiver_terms, when `saved` is complete
  Tensor receiver_terms;
  MlpInput edges;
  MlpWeights weights;
  bool residual = true;
  bool aggregate_after_residual = false;
  MlpSaved saved;
  Tensor d_edges_out;  ///< [edges, out]; undefined: zero (nothing read e')
  Tensor d_aggregate;  ///< [owned_nodes, out]
  Tensor
      d_edges;  ///< [edges, in]: written, with the residual's share; may alias d_edges_out; may be undefined
  Tensor d_sender_terms;    ///< [nodes, hidden]: written
  Tensor d_receiver_terms;  ///< [owned_nodes, hidden]: written
  Tensor d_edge_weight;     ///< [in, hidden], accumulated into
  MlpWeightGradients d_weights;
};

struct MessagePassingKernels {
  void (*edge_forward)(const EdgeUpdateForward&, Runtime&, const Stream&);
  void (*edge_backward)(const EdgeUpdateBackward&, Runtime&, const Stream&);
};
namespace cpu {
extern const MessagePassingKernels message_passing_kernels;
}

void edge_update_forward(const EdgeUpdateForward& args, Runtime& runtime, const Stream& stream);
void edge_update_backward(const EdgeUpdateBackward& args, Runtime& runtime, const Stream& stream);

}  // namespace meshgrad
