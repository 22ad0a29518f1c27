// SPDX-License-Identifier: Apache-2.0
// Part: what one rank holds of a mesh that is split over ranks. A rank owns nodes, and every edge whose
// receiver it owns, so no edge is computed twice. Senders that it does not own are its ghost nodes: copies of
// rows that their owners send before each round of message passing.
#pragma once
#include <meshgrad/autograd/halo.h>
#include <meshgrad/kernels/graph.h>
#include <meshgrad/nn/partition/owners.h>

namespace meshgrad {

/// The edges of one set, in the part's own numbers. They are sorted by receiver, and those of one receiver
/// are in the order of the whole mesh, so that sums have the whole mesh's bits.
struct PartEdges {
  std::string name;
  std::vector<int32_t> rows;  ///< of the whole mesh's edges: [edges]
  std::vector<int32_t> senders, receivers;
  std::vector<int32_t> receiver_offsets;  ///< [owned + 1]
  std::vector<int32_t> sender_offsets;    ///< [owned + ghosts + 1]
  std::vector<int32_t> sender_order;      ///< [edges]
  int64_t interior = 0;                   ///< the edges of interior nodes, which come first

  int64_t edges() const { return static_cast<int64_t>(rows.size()); }
};

struct Part {
  int32_t rank = 0;
  int64_t owned = 0;
  /// The first nodes are interior: they receive from no ghost, and no neighbour needs them.
  int64_t interior = 0;
  /// Rows of the whole mesh's nodes: the owned ones, interior before the others and ascending within both,
  /// then the ghosts by owner and row.
  std::vector<int32_t> nodes;
  std::vector<Neighbour> neighbours;  ///< ascending by rank
  /// Owned nodes, in the part's numbers, that neighbours need: neighbour after neighbour, each list in the
  /// order of that neighbour's ghosts.
  std::vector<int32_t> sent;
  std::vector<PartEdges> edge_sets;

  bool has_edges(std::string_view name) const;
  /// The edge set of that name. Throws InternalError when there is none.
  const PartEdges& edges(std::string_view name) const;
  int64_t ghosts() const { return static_cast<int64_t>(nodes.size()) - owned; }
};

/// The part of `rank`: in time linear in nodes and edges, sorting only what crosses its border. Each rank can
/// make its own: two ranks agree on what they exchange without a message. Throws InvalidArgument for owners
/// that do not fit (check_owners) and for edges whose offsets or senders do not fit the nodes.
///
/// Where no rank knows the whole mesh, `owners` and edges are those of the nodes that this rank knows: its
/// own, the ghosts, and every edge from or to its own. `numbers` [nodes] then say which number each node has
/// at its owner; rows are exchanged in the order of these. check_borders() finds lists that disagree.
Part make_part(std::span<const int32_t> owners, int32_t rank, int64_t parts,
               std::span<const SortedEdges> edge_sets, std::span<const int64_t> numbers = {});

/// Bytes that a rank sends, and those that it receives, per block, forward and backward together, if its
/// nodes' rows have this width: 2 x (sent + ghosts) rows. Of all parts together that is 4 x ghosts, as every
/// row that is sent is received.
int64_t exchanged_bytes(const Part& part, int64_t width, DType dtype);

/// The edges of a set as a Graph on the runtime's device.
Graph part_graph(Runtime& runtime, const Part& part, size_t edge_set);

/// What the part exchanges, with its indices on the runtime's device.
Halo part_halo(Runtime& runtime, const Part& part, std::shared_ptr<HaloExchange> exchange);

}  // namespace meshgrad
