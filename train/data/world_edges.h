// SPDX-License-Identifier: Apache-2.0
// World edges: between nodes that are close in space without an edge of the mesh between them, so that parts
// that touch, or a cloth that folds, exchange messages. Source: Pfaff et al. (2021), section 3.1.
#pragma once
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/data/mesh_edges.h>

#include <optional>
#include <span>

namespace meshgrad {

struct WorldEdgeOptions {
  double radius = 0.0;      ///< in the positions' unit; 0: none
  bool other_type = false;  ///< only nodes of different types
};

/// More of them, on average over the meshes that are predicted together, are refused everywhere: a radius in
/// another unit, or positions that have collapsed.
inline constexpr int64_t kMostWorldEdgesPerNode = 1000;

/// The edges of nodes less than `radius` apart, both ways, without those of `mesh`; nothing where there are
/// more than `most`, which is below 2^31, or where nodes are so crowded that finding none would take too long
/// (world_grid.h). `positions` is [nodes, dim], dim 2 or 3; nodes whose positions are not finite have none.
/// With mesh.period distances are to the nearest image, and of the images of one point (mesh.points) a node
/// is joined to one, the nearest as they lie, and to none of its own. A grid of cells as wide as the radius
/// finds them, in time linear in nodes and pairs but for a sort. Deterministic.
std::optional<MeshEdges> world_edges(const MeshView& mesh, std::span<const float> positions, int dim,
                                     const WorldEdgeOptions& options, int64_t most);

/// Their number, without storing them; counts no further than kMostWorldEdgesPerNode for each node, which is
/// also the answer where nodes are crowded.
/// `compared` unless null gets the number of pairs whose distance was computed.
int64_t count_world_edges(const MeshView& mesh, std::span<const float> positions, int dim,
                          const WorldEdgeOptions& options, int64_t* compared = nullptr);

}  // namespace meshgrad
