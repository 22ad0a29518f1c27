// SPDX-License-Identifier: Apache-2.0
// Edge features of positions: the displacement along each edge, sender minus receiver, and its length.
#pragma once
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/data/world_edges.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace meshgrad {

/// The error of a mesh whose packed file was changed while it was in use. Meshes are checked when they are
/// first read; other edges must not lead out of bounds.
DataError changed_mesh(const MeshView& mesh);

/// kMostWorldEdgesPerNode for each node, and fewer than 2^31.
int64_t most_world_edges(int64_t nodes);
/// The error of more.
struct TooManyWorldEdges : ConfigError {
  explicit TooManyWorldEdges(const ConfigError& error) : ConfigError(error) {}
};
/// `frame` says where, as frame_name does.
TooManyWorldEdges too_many_world_edges(std::string_view frame);
/// "frame 3 of train.tfrecord: record 0"; "mesh 1" of meshes that a solver has given.
std::string frame_name(const TrajectoryView& trajectory, int64_t frame);

/// Writes dim + 1 columns of each edge's row, which has `width`: `rows` points to the first one's. Positions
/// are [nodes, dim]. Throws DataError for an edge that leads out of the mesh.
template <class T>
void write_displacements(const MeshView& mesh, std::span<const float> positions, int dim, int64_t width,
                         T* rows);

/// [nodes, dim]: the field of current positions at a frame; without one (null) the positions at rest.
std::span<const float> positions_at(const TrajectoryView& trajectory, const FieldInfo* field, int64_t frame);

/// Mean and standard deviation of these columns, of positions as positions_at has them: over at most 32
/// trajectories of the split that statistics are of, and 8 frames of each, both evenly spread. With `world` a
/// radius, of world edges in place of the mesh's; throws too_many_world_edges.
FieldStatistics displacement_stats(const Dataset& dataset, const FieldInfo* field,
                                   const WorldEdgeOptions& world = {});

/// World edges for each node of a mesh, of each of these frames, ascending.
std::vector<double> world_edges_per_node(const Dataset& dataset, const FieldInfo* field,
                                         const WorldEdgeOptions& world);

}  // namespace meshgrad
