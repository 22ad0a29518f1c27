// SPDX-License-Identifier: Apache-2.0
// What a mesh's cells mean where their size does not say it, and places of a mesh that are legal but
// doubtful.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <meshgrad/train/convert/sources/trajectory_source.h>
#include <meshgrad/train/data/mesh_edges.h>

namespace meshgrad {

/// Whether cells [cells, 4] of a mesh in 3-D are the quads of a surface, not tetrahedra: all are flat, or
/// most are nearly flat (the volume of their four nodes is below 0.05 of their longest side cubed) and at
/// most two share a side. Node numbers outside of the mesh count for neither.
bool are_quads_in_space(std::span<const int32_t> cells, std::span<const float> positions);

/// One line for each kind of doubtful place, with its number and the first: nodes at the place of another, or
/// without an edge; cells that repeat a node (a triangle among quads, [a, b, c, c], is none); edges that are
/// in `pairs` [2, columns] twice or join a node to itself, unless they are directed.
std::vector<std::string> doubtful_places(const RawTrajectory& trajectory, std::span<const int32_t> pairs,
                                         CellKind kind, const MeshEdges& edges);

}  // namespace meshgrad
