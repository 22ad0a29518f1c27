// SPDX-License-Identifier: Apache-2.0
// World edges: between nodes that are close in space without an edge of the mesh between them, so that parts
// that touch, or a cloth that folds, exchange messages. Source: Pfaff et al. (2021), section 3.1.
#pragma once
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/data/mesh_edges.h>

#include <span>

namespace meshgrad {

struct WorldEdgeOptions {
  double radius = 0.0;      ///< in the positions' unit; 0: none
  bool other_type = false;  ///< only nodes of different types
};

/// The edges of nodes less than `radius` apart, both ways, without those of `mesh`. `positions` is
/// [nodes, dim], dim 2 or 3; nodes whose positions are not finite have none. A grid of cells as wide as the
/// radius finds them, in time linear in nodes and pairs but for a sort. Deterministic. Throws DataError for
/// 2^31 - 1 edges and more.
MeshEdges world_edges(const MeshView& mesh, std::span<const float> positions, int dim,
                      const WorldEdgeOptions& options);

}  // namespace meshgrad
