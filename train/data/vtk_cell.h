// SPDX-License-Identifier: Apache-2.0
// VTK's numbers of cell types. Source: "VTK File Formats" (VTK User's Guide).
#pragma once
#include <cstdint>

namespace meshgrad {

/// VTK's numbers of cell types that are read, or that an error names.
enum class VtkCell : uint8_t {
  vertex = 1,
  poly_vertex = 2,
  line = 3,
  poly_line = 4,
  triangle = 5,
  triangle_strip = 6,
  polygon = 7,
  pixel = 8,
  quad = 9,
  tetrahedron = 10,
  voxel = 11,
  hexahedron = 12,
  wedge = 13,
  pyramid = 14,
  polyhedron = 42,
  lagrange_curve = 68,
  lagrange_triangle = 69,
  lagrange_quad = 70,
  lagrange_tetrahedron = 71,
  lagrange_hexahedron = 72,
  lagrange_wedge = 73,
  lagrange_pyramid = 74,
};

}  // namespace meshgrad
