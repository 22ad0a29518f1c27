// SPDX-License-Identifier: Apache-2.0
// From a mesh to pixels.
#pragma once
#include <meshgrad/train/tools/program/field_image.h>
#include <meshgrad/train/tools/program/point_field.h>

#include <array>
#include <optional>
#include <span>

namespace meshgrad {

/// The triangles of a surface cell, or the tetrahedra of a volume cell: corners of the cell, three by three
/// or four by four. The tetrahedra of a hexahedron share its diagonal 0-6.
std::span<const int> simplices_of(CellKind kind);

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
