// SPDX-License-Identifier: Apache-2.0
// The inputs of a model for one part of a mesh, cut out of those of the whole.
#pragma once
#include <meshgrad/nn/graph_batch.h>
#include <meshgrad/nn/partition/part.h>

namespace meshgrad {

/// The edges of a batch's sets, as partitions take them. The batch lies on the host and outlives the result.
std::vector<SortedEdges> sorted_edges(const GraphBatch& batch);

/// Copies rows of a tensor on the host to the first rows of another there, of the same width and dtype.
void copy_rows(const Tensor& from, std::span<const int32_t> rows, const Tensor& to);

/// The other way for a part's result: rows of its owned nodes, on the host, to their places among those of
/// the whole mesh.
void place_rows(const Tensor& owned, const Part& part, const Tensor& whole);

/// The part's batch on the runtime's device, from that of the whole mesh on the host: features of the owned
/// nodes and of the part's edges, and the halo.
GraphBatch part_batch(Runtime& runtime, const GraphBatch& whole, const Part& part,
                      std::shared_ptr<HaloExchange> exchange);

}  // namespace meshgrad
