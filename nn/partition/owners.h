// SPDX-License-Identifier: Apache-2.0
// Owners: which rank owns each node of a mesh that is split over ranks. A partition is a list with a rank for
// each node; every way of making one depends only on its arguments, so that each rank can make the same.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace meshgrad {

/// The edges of one set, sorted by receiver: receiver r has the edges offsets[r] .. offsets[r+1] - 1.
struct SortedEdges {
  std::span<const int32_t> senders;           ///< [edges]
  std::span<const int32_t> receiver_offsets;  ///< [nodes + 1]
  std::string_view name = {};                 ///< of the set
};

/// The work of each node: 1, and 1 for each edge that it receives. [nodes]
std::vector<int32_t> node_weights(std::span<const SortedEdges> edge_sets, int64_t nodes);

/// Recursive coordinate bisection: cuts across the longest side of the nodes' bounding box, so that weights
/// are in proportion to the parts on either side, and again on both sides. In O(nodes log parts). Source:
/// Berger and Bokhari, "A partitioning strategy for nonuniform problems on multiprocessors" (1987).
/// `positions` is [nodes, dim]. Throws InvalidArgument for spans of other lengths, negative weights,
/// positions that are not finite, and parts below 1.
std::vector<int32_t> bisect_coordinates(std::span<const float> positions, int dim,
                                        std::span<const int32_t> weights, int64_t parts);

/// Whether METIS was there when meshgrad was built.
bool metis_available();
/// Multilevel k-way partitioning by METIS: the fewest cut connections, with weights balanced. Each connection
/// counts once, whatever its direction and however many edge sets have it. Source: Karypis and Kumar, "A fast
/// and high quality multilevel scheme for partitioning irregular graphs" (1998). METIS seeds and uses
/// std::rand: calls take turns, but an application that calls std::rand meanwhile may get other parts. Throws
/// InvalidArgument for weights of another length and for parts below 1, ConfigError without METIS,
/// InternalError when METIS fails.
std::vector<int32_t> metis_owners(std::span<const SortedEdges> edge_sets, std::span<const int32_t> weights,
                                  int64_t parts);

/// Throws InvalidArgument unless there is a rank in 0 .. parts - 1 for each of `nodes`: for partitions from
/// outside.
void check_owners(std::span<const int32_t> owners, int64_t nodes, int64_t parts);

}  // namespace meshgrad
