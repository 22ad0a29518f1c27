// SPDX-License-Identifier: Apache-2.0
// Cells of different types, as a source has them: triangles among quads, wedges among hexahedra, polygons.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <meshgrad/train/data/field_info.h>
#include <meshgrad/train/data/vtk_cell.h>

namespace meshgrad {

/// Cells of any number of corners, one after another.
struct CellList {
  std::vector<int32_t> corners;
  std::vector<int32_t> ends;   ///< [cells]: where a cell's corners end
  std::vector<uint8_t> types;  ///< [cells]: numbers of VtkCell

  void add(VtkCell type, std::span<const int32_t> nodes);
};

/// The cells of [cells, nodes_per_cell(kind)] without the corners that stand twice: a quad [a, b, c, c] is a
/// triangle; hexahedra are tetrahedra, pyramids and wedges where they repeat corners as vtk_trajectory.h
/// says.
CellList cells_of(std::span<const int32_t> cells, CellKind kind);
/// Adds a polygon; its last corner may stand several times.
void add_polygon(CellList& list, std::span<const int32_t> corners);

/// The first cell without the corners that its type needs, or corner that is not below `points`, as errors
/// name it; empty where there is none. Offsets are checked first.
std::string find_cell_fault(std::span<const int32_t> corners, std::span<const int32_t> ends,
                            std::span<const uint8_t> types, int64_t points);

}  // namespace meshgrad
