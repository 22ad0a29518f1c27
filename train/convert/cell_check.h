// SPDX-License-Identifier: Apache-2.0
// Cells of a packed mesh that are legal but doubtful.
#pragma once
#include <cstdint>

#include <meshgrad/train/data/dataset.h>

namespace meshgrad {

/// Cells of one kind of doubt, and the first of them.
struct DoubtfulCells {
  int64_t count = 0;
  int64_t first = 0;
};

/// Cells with the same nodes as an earlier cell, in any order.
DoubtfulCells repeated_cells(const MeshView& mesh);

/// Cells whose signed area (2-D) or volume (3-D) has the sign that fewer cells have. Of a hexahedron, the
/// volume that its first node and that node's three neighbours span. Cells without a volume count for neither
/// sign. None for surfaces in 3-D, which have no side that is right.
DoubtfulCells inverted_cells(const MeshView& mesh);

}  // namespace meshgrad
