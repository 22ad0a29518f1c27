// SPDX-License-Identifier: Apache-2.0
// From a mesh to pixels.
#pragma once
#include <meshgrad/train/data/mesh_edges.h>
#include <meshgrad/train/tools/program/field_image.h>
#include <meshgrad/train/tools/program/point_field.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace meshgrad {

/// The triangles of a surface cell, or the tetrahedra of a volume cell: corners of the cell, three by three
/// or four by four. The tetrahedra of a hexahedron share its diagonal 0-6.
std::span<const int> simplices_of(CellKind kind);

constexpr bool is_volume(CellKind kind) {
  return kind == CellKind::tetrahedron || kind == CellKind::hexahedron;
}

/// Calls visit(std::span<const int32_t>) with the three or four nodes of each simplex of the mesh's cells.
template <class Visit>
void for_each_simplex(const MeshView& mesh, Visit visit) {
  const std::span<const int> simplices = simplices_of(mesh.cell_kind);
  const std::size_t size = is_volume(mesh.cell_kind) ? 4 : 3;
  const auto width = static_cast<std::size_t>(nodes_per_cell(mesh.cell_kind));
  // Checked before; the file they are in may have changed since.
  const auto last = static_cast<uint32_t>(mesh.nodes - 1);
  for (std::size_t cell = 0; width > 0 && cell + width <= mesh.cells.size(); cell += width) {
    for (std::size_t first = 0; first < simplices.size(); first += size) {
      std::array<int32_t, 4> nodes{};
      for (std::size_t i = 0; i < size; ++i) {
        const int32_t node = mesh.cells[cell + static_cast<std::size_t>(simplices[first + i])];
        nodes[i] = static_cast<int32_t>(std::min(static_cast<uint32_t>(node), last));
      }
      visit(std::span<const int32_t>(nodes).first(size));
    }
  }
}

/// Which axes of the mesh are drawn right and up, and which is the direction of view.
struct Projection {
  std::array<int, 3> axes{0, 1, -1};  ///< right, up, towards the viewer; the last is -1 in two dimensions
  double left = 0, bottom = 0;        ///< lower corner of the mesh in the drawn axes
  double spread_x = 1, spread_y = 1;  ///< extents, positive
  std::optional<double> cut;          ///< volume cells are drawn where this plane of axes[2] cuts them
};

/// Two dimensions: x right, y up. Three: the longest axis right, the next up; a mesh of tetrahedra or
/// hexahedra is cut in the middle of the shortest axis.
Projection project(const MeshView& mesh);

/// The values [nodes] on `width` x `height` pixels that cover the mesh's extents, from `low` to `high` of the
/// colour map. Triangles and quads are drawn with linear interpolation, the nearest on top; volume cells as
/// their section with the plane `cut` (a hexahedron as six tetrahedra); a mesh without cells as dots.
FieldImage raster_field(const MeshView& mesh, const Projection& projection, std::span<const float> values,
                        double low, double high, int width, int height);

}  // namespace meshgrad
