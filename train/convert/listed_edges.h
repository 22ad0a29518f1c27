// SPDX-License-Identifier: Apache-2.0
// From the edges or cells that a file lists to the edges that are packed, and their fields in that order.
#pragma once
#include <meshgrad/train/convert/sources/trajectory_source.h>
#include <meshgrad/train/data/mesh_edges.h>

#include <optional>
#include <string>
#include <vector>

namespace meshgrad {

/// Sets `directed`, and throws DataError where it cannot be: edges of cells join both ways. Without a choice,
/// edges are made symmetric and loops dropped; of a graph without positions, whose list may mean either, that
/// is an error unless both readings give the same edges.
void choose_direction(RawTrajectory& trajectory, std::optional<bool> directed);

/// What a graph without positions was read as, how many nodes each split of its nodes has, and how many edges
/// with fields are listed in one direction; nothing of others.
std::vector<std::string> graph_notes(const RawTrajectory& trajectory);

/// The edges to pack, and fields on edges brought into their order: from a row a listed edge to a row a
/// packed edge.
MeshEdges take_edges(RawTrajectory& trajectory, CellKind kind);

}  // namespace meshgrad
