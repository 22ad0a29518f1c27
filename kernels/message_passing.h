// SPDX-License-Identifier: Apache-2.0
// message_passing: the edge half of a MeshGraphNets block, fused: gather, MLP with its first layer split by
// linearity, norm, residual and the sum over each receiver's edges, in one pass over the edges.
//
//   S = h W_s,  R = h W_r                             per node
//   z_1 = S[sender] + R[receiver] + e W_e + b_1       per edge
//   y = norm(mlp(z_1)),  e' = e + y
//   aggregate[r] = sum of y over the edges of receiver r, in edge order
//
// Source: Pfaff, Fortunato, Sanchez-Gonzalez, Battaglia, "Learning mesh-based simulation with graph networks"
// (2021), section 3.2. dtypes as in linear.h; results are bit-identical for any number of threads.
#pragma once
#include <meshgrad/kernels/graph.h>
#include <meshgrad/kernels/mlp.h>
#include <meshgrad/kernels/work.h>

#include <functional>

namespace meshgrad {

/// The node terms of the first layer: the nodes, and the row ranges of the first weight that multiply them.
struct NodeTerms {
  Tensor nodes;            ///< h: [nodes, node_width]
  Tensor sender_weight;    ///< W_s: [node_width, hidden]
  Tensor receiver_weight;  ///< W_r: [node_width, hidden]
};

/// An exchange of the rows after the owned nodes' while an edge update runs. The first `interior` receivers
/// have edges only from owned nodes, which are computed during the exchange. On the CPU, results have the
/// bits of an update without an exchange; not on GPUs, where the order of sums depends on the partition.
struct GhostExchange {
  int64_t interior = 0;
  int64_t interior_edges = 0;  ///< that these receive; read only on a GPU, as the next two
  Tensor border_receivers;     ///< of the other edges, less `interior`: i32 [edges - interior_edges]
  Tensor border_offsets;       ///< of these receivers, from 0 on: i32 [owned_nodes - interior + 1]
  /// Called once. Forward: the ghosts' rows of `nodes` are valid once it returns. Backward: the ghosts' rows
  /// of d_nodes, which must be defined, are final when it is called.
  std::function<void()> call;
};

struct EdgeUpdateForward {
  const Graph* graph = nullptr;  ///< of one set of nodes: not a bipartite one
  NodeTerms terms;
  MlpInput edges;  ///< e: [edges, in] and W_e; in = 0: z_1 has no term of the edges
  MlpWeights weights;
  bool residual = true;  ///< e' = e + y; false: e' = y
  /// Aggregates e' instead of y (PhysicsNeMo's convention).
  bool aggregate_after_residual = false;
  Tensor edges_out;  ///< e': [edges, out]; may be undefined when e' is not needed (the last block)
  Tensor aggregate;  ///< [owned_nodes, out]; 0 for a receiver without edges
  MlpSaved saved;
  /// Null: all rows are valid. On a GPU the call is made while kernels are queued, and Graph::counts must be
  /// undefined.
  const GhostExchange* ghosts = nullptr;
  /// S and R if mlp_forward has made them of terms.nodes; null or undefined: they are computed here.
  const NodeTermsAhead* node_terms = nullptr;
};

/// The gradients of edge_update_forward, from those of its two outputs. The other arguments are forward's.
struct EdgeUpdateBackward {
  const Graph* graph = nullptr;
  NodeTerms terms;
  MlpInput edges;
  MlpWeights weights;
  bool residual = true;
  bool aggregate_after_residual = false;
  MlpSaved saved;
  Tensor d_edges_out;  ///< [edges, out]; undefined: zero (e' was not used)
  Tensor d_aggregate;  ///< [owned_nodes, out]
  /// [edges, in]: written, including the residual's gradient. May alias d_edges_out, and may be undefined.
  Tensor d_edges;
  Tensor d_nodes;                             ///< [nodes, node_width]; may be undefined
  bool accumulate_d_nodes = false;            ///< d_nodes += instead of d_nodes =
  Tensor d_sender_weight, d_receiver_weight;  ///< [node_width, hidden], added to; may be undefined
  Tensor d_edge_weight;                       ///< [in, hidden], added to; may be undefined
  MlpWeightGradients d_weights;
  const GhostExchange* ghosts = nullptr;  ///< as forward's
};

Work work_of(const EdgeUpdateForward& args);
Work work_of(const EdgeUpdateBackward& args);

struct MessagePassingKernels {
  bool (*saves_hidden)(const EdgeUpdateForward&);
  void (*edge_forward)(const EdgeUpdateForward&, Runtime&, const Stream&);
  void (*edge_backward)(const EdgeUpdateBackward&, Runtime&, const Stream&);
};

namespace kernels {
/// As for mlp (mlp.h).
bool saves_hidden(const EdgeUpdateForward& args);
void edge_update_forward(const EdgeUpdateForward& args, Runtime& runtime, const Stream& stream);
void edge_update_backward(const EdgeUpdateBackward& args, Runtime& runtime, const Stream& stream);
}  // namespace kernels

}  // namespace meshgrad
