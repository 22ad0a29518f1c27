// SPDX-License-Identifier: Apache-2.0
// An edge update in two parts, so that the first runs during an exchange of ghosts: the edges of interior
// receivers, and those of the others. Each part is an edge update with a graph and tensors of its own, which
// are rows of the whole ones.
#pragma once
#include <meshgrad/kernels/cuda/node_term_tensors.h>
#include <meshgrad/kernels/message_passing.h>

namespace meshgrad::cuda {

/// Rows [begin, end); undefined stays so.
inline Tensor rows_or_none(const Tensor& tensor, int64_t begin, int64_t end) {
  return tensor.defined() ? tensor.row_range(begin, end) : Tensor();
}

/// One of the two: its edges and its receivers among the whole.
struct EdgePart {
  int64_t first_edge = 0, end_edge = 0;
  int64_t first_receiver = 0, end_receiver = 0;
  Graph graph;  ///< senders have the whole's numbers, receivers begin at 0; without the lists by sender

  Tensor edge_rows(const Tensor& whole) const { return rows_or_none(whole, first_edge, end_edge); }
  Tensor receiver_rows(const Tensor& whole) const {
    return rows_or_none(whole, first_receiver, end_receiver);
  }
  MlpSaved edge_rows(MlpSaved saved) const {
    for (Tensor& z : saved.pre_activations) z = edge_rows(z);
    saved.pre_norm = edge_rows(saved.pre_norm);
    return saved;
  }
};

inline EdgePart interior_edges(const Graph& whole, const GhostExchange& ghosts) {
  EdgePart part{.end_edge = ghosts.interior_edges, .end_receiver = ghosts.interior, .graph = {}};
  part.graph.nodes = whole.owned_nodes;
  part.graph.owned_nodes = ghosts.interior;
  part.graph.edges = ghosts.interior_edges;
  part.graph.senders = part.edge_rows(whole.senders);
  part.graph.receivers = part.edge_rows(whole.receivers);
  part.graph.receiver_offsets = whole.receiver_offsets.row_range(0, ghosts.interior + 1);
  return part;
}

inline EdgePart border_edges(const Graph& whole, const GhostExchange& ghosts) {
  EdgePart part{.first_edge = ghosts.interior_edges,
                .end_edge = whole.edges,
                .first_receiver = ghosts.interior,
                .end_receiver = whole.owned_nodes,
                .graph = {}};
  part.graph.nodes = whole.nodes;
  part.graph.owned_nodes = whole.owned_nodes - ghosts.interior;
  part.graph.edges = whole.edges - ghosts.interior_edges;
  part.graph.senders = part.edge_rows(whole.senders);
  part.graph.receivers = ghosts.border_receivers;
  part.graph.receiver_offsets = ghosts.border_offsets;
  return part;
}

/// For the node terms alone: the nodes begin .. end - 1 with the edges that they send; either the owned nodes
/// or the ghosts. `edges` is about their number, by which work is divided among thread blocks.
inline Graph sender_part(const Graph& whole, int64_t begin, int64_t end, int64_t edges) {
  Graph part = whole;
  part.nodes = end - begin;
  part.owned_nodes = begin == 0 ? whole.owned_nodes : 0;
  part.edges = edges;
  part.sender_offsets = rows_or_none(whole.sender_offsets, begin, end + 1);
  return part;
}

/// The terms of the part's receivers; those of senders are the whole's.
inline NodeTermTensors part_of(NodeTermTensors terms, const EdgePart& part) {
  terms.receiver = part.receiver_rows(terms.receiver);
  return terms;
}

/// The part's arguments; `part` outlives them. Terms and gradients of nodes are the whole's.
inline EdgeUpdateForward part_of(EdgeUpdateForward args, const EdgePart& part) {
  args.graph = &part.graph;
  args.edges.x = part.edge_rows(args.edges.x);
  args.edges_out = part.edge_rows(args.edges_out);
  args.aggregate = part.receiver_rows(args.aggregate);
  args.saved = part.edge_rows(args.saved);
  args.ghosts = nullptr;
  return args;
}
inline EdgeUpdateBackward part_of(EdgeUpdateBackward args, const EdgePart& part) {
  args.graph = &part.graph;
  args.edges.x = part.edge_rows(args.edges.x);
  args.d_edges_out = part.edge_rows(args.d_edges_out);
  args.d_aggregate = part.receiver_rows(args.d_aggregate);
  args.d_edges = part.edge_rows(args.d_edges);
  args.saved = part.edge_rows(args.saved);
  args.ghosts = nullptr;
  return args;
}

}  // namespace meshgrad::cuda
