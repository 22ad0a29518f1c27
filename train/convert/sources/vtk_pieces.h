// SPDX-License-Identifier: Apache-2.0
// Grids of parallel programs: layers of ghosts, and the pieces that make one grid. Source:
// vtkDataSetAttributes (VTK 9), which gives the bits of vtkGhostType.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include <meshgrad/train/convert/sources/vtk_grid.h>

namespace meshgrad {

/// The grid without the cells that another process has too, or that are refined or hidden, by their array
/// vtkGhostType (or vtkGhostLevels), and without the points of only these. A point that another process has
/// (by the array of points) becomes the one at the same place, and so do the points of a cell that has a
/// ghost; cells with a hidden point go. The sizes and numbers of `grid` must be valid (linear_grid checks
/// them). Throws DataError naming the file where two cells that stay have the same points.
VtkGrid without_ghosts(VtkGrid grid, const std::string& name);

/// One grid of the pieces of a parallel one: a point at the place of one of an earlier piece is that point.
/// Throws DataError naming the file for pieces with other arrays, and where two such points have floats that
/// differ by more than 1e-6 of the array's largest: then they are two points, and not known to be one.
VtkGrid join_pieces(std::vector<VtkGrid> pieces, const std::string& name);

/// Where the cells of `mesh` are in `grid`, which may list them in another order; nothing where `grid` has
/// other cells or another number of points. Two cells are the same if they have the same points.
std::optional<std::vector<int64_t>> find_cells(const VtkGrid& mesh, const VtkGrid& grid);

/// Rows of an array, in this order.
VtkArray rows_of_array(const VtkArray& array, const std::vector<int64_t>& rows);

}  // namespace meshgrad
