// SPDX-License-Identifier: Apache-2.0
// The graph whose nodes are the cells of a mesh, for data of finite volumes: what lives on cells is predicted
// there.
#pragma once
#include <meshgrad/train/data/field_info.h>
#include <meshgrad/train/data/sources/trajectory_source.h>

namespace meshgrad {

/// Whether float fields are on cells, and none on nodes.
bool fields_are_on_cells(const RawTrajectory& mesh);

/// A node at the mean of each cell's corners, an edge between cells that share a side (of surfaces) or a face
/// (of solids). Fields on cells become fields on nodes; float fields on nodes the means of the corners; other
/// fields on nodes or edges are left out, which `warn` is told. A node's type is its cell's, or that of all
/// corners, or else 0. `kind` says what the cells are, unless they are polygons. The mesh stays as
/// source_cells and source_points. Throws DataError where the
/// mesh has no cells, and for corners outside of the mesh.
RawTrajectory graph_on_cells(const RawTrajectory& mesh, CellKind kind, const WarningCallback& warn);

/// Replaces polygons by their sides as edges, and keeps them as source_cells; fields on cells are left out,
/// which `warn` is told.
void polygons_to_edges(RawTrajectory& mesh, const WarningCallback& warn);

}  // namespace meshgrad
