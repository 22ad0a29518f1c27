// SPDX-License-Identifier: Apache-2.0
// Which cells of VTK are read, and linear cells of quadratic ones. Numbers of points in a cell: vtkCellType.h
// and the classes of cells in VTK's documentation.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <meshgrad/train/convert/sources/vtk_grid.h>

namespace meshgrad {

struct VtkShape {
  int dim = 0;
  int64_t points = 0;  ///< 0: any number
};

/// The points of a cell.
std::span<const int64_t> points_of(const VtkGrid& grid, int64_t cell);

/// Gives a polyhedron its faces, cell after cell. `stream` has their number, then of each face its number of
/// points and these, to which `shift` is added. Returns whether it was well formed.
bool add_polyhedron(VtkGrid& grid, size_t cell, std::span<const int64_t> stream, int64_t shift);

/// Calls visit(points) for each face in a part of VtkGrid::faces.
template <class Visit>
void for_each_vtk_face(std::span<const int64_t> faces, Visit visit) {
  for (size_t at = 0; at < faces.size(); at += static_cast<size_t>(faces[at]) + 1)
    visit(faces.subspan(at + 1, static_cast<size_t>(faces[at])));
}

/// The faces of a polyhedron, as a part of VtkGrid::faces; empty for other cells.
std::span<const int64_t> faces_of(const VtkGrid& grid, int64_t cell);

/// The type and the components of an array, as errors say them: "floats, 3 components".
std::string describe_array(const VtkArray& array);

/// The shape of a type of linear_grid's cells.
VtkShape linear_shape(uint8_t type);

/// The grid with only linear cells, without ghosts (without_ghosts in vtk_pieces.h). A quadratic cell is cut
/// into linear ones whose corners are all of its nodes, and each of them has its rows of cell arrays; cells
/// that share a face cut it alike. Where floats are on cells and none on points, it keeps its corners
/// instead, and the mid-side nodes, which no cell has any more, are dropped. Throws DataError naming the file
/// for sizes that disagree, point numbers outside of the grid, and cells of other kinds.
VtkGrid linear_grid(VtkGrid grid, const std::string& name);

}  // namespace meshgrad
