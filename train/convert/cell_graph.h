// SPDX-License-Identifier: Apache-2.0
// The graph whose nodes are the cells of a mesh, for data of finite volumes: what lives on cells is predicted
// there.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include <meshgrad/train/convert/sources/trajectory_source.h>
#include <meshgrad/train/data/field_info.h>

namespace meshgrad {

/// Whether float fields are on cells, and none on nodes.
bool fields_are_on_cells(const RawTrajectory& mesh);

/// A node at the mean of each cell's corners, an edge between cells that share a side (of surfaces) or a face
/// (of solids). Fields on cells become fields on nodes; float fields on nodes the means of the corners; other
/// fields on nodes or edges are left out, which `warn` is told. A node's type is its cell's, or that of all
/// corners, or else 0. `kind` says what `cells` are; cells by their faces need none. Of surfaces and linear
/// solids the mesh stays as source_cells and source_points. Throws DataError where the mesh has no cells, for
/// corners outside of the mesh, and for polygons of one point.
RawTrajectory graph_on_cells(const RawTrajectory& mesh, CellKind kind, const WarningCallback& warn);

/// RawTrajectory::source_points in f32, less the mesh's origin.
std::vector<float> points_of_source(const RawTrajectory& mesh);

/// Adds a cell with the faces of a linear one, or its sides on a surface. Repeated corners are left out, and
/// faces that have too few others.
void add_faces_of(std::span<const int32_t> corners, CellKind kind, FacedCells& cells);

/// Replaces cells that are given by their faces (polygons, polyhedra) by the sides of the faces as edges;
/// polygons stay as source_cells. Fields on cells are left out, which `warn` is told.
void faces_to_edges(RawTrajectory& mesh, const WarningCallback& warn);

}  // namespace meshgrad
