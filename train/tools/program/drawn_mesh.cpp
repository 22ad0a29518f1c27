// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/vtk_cell.h>
#include <meshgrad/train/tools/program/drawn_mesh.h>
#include <meshgrad/train/tools/program/field_raster.h>

namespace meshgrad {
namespace {

/// The tetrahedra of a solid cell: its corners, four by four. Nothing for other cells.
std::span<const int> tetrahedra_of(uint8_t type) {
  static constexpr int kPyramid[] = {0, 1, 2, 4, 0, 2, 3, 4};
  static constexpr int kWedge[] = {0, 1, 2, 5, 0, 1, 5, 4, 0, 4, 5, 3};
  switch (static_cast<VtkCell>(type)) {
    case VtkCell::tetrahedron:
      return simplices_of(CellKind::tetrahedron);
    case VtkCell::pyramid:
      return kPyramid;
    case VtkCell::wedge:
      return kWedge;
    case VtkCell::hexahedron:
      return simplices_of(CellKind::hexahedron);
    default:
      return {};
  }
}

}  // namespace

DrawnMesh::DrawnMesh(const MeshView& mesh) : view_(mesh) {
  if (mesh.source == nullptr) return;
  const SourceMesh& source = *mesh.source;
  const auto dim = static_cast<size_t>(mesh.dim);
  bool solid = false;
  for (const uint8_t type : source.types) solid = solid || !tetrahedra_of(type).empty();
  int32_t begin = 0;
  for (size_t cell = 0; cell < source.ends.size(); ++cell) {
    const int32_t count = source.ends[cell] - begin;
    int32_t first = begin;  // the number of the cell's first corner, if each cell has its own
    if (source.nodes_are_cells()) {
      first = static_cast<int32_t>(nodes_.size());
      nodes_.insert(nodes_.end(), static_cast<size_t>(count), static_cast<int32_t>(cell));
      for (int32_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(source.corners[static_cast<size_t>(begin + i)]) * dim;
        const auto point = source.points.subspan(at, dim);
        positions_.insert(positions_.end(), point.begin(), point.end());
      }
    }
    const auto add = [&](int32_t corner) {
      cells_.push_back(source.nodes_are_cells() ? first + corner
                                                : source.corners[static_cast<size_t>(begin + corner)]);
    };
    for (const int corner : tetrahedra_of(source.types[cell])) add(corner);
    for (int32_t i = 2; i < count && !solid; ++i) {
      for (const int32_t corner : {0, i - 1, i}) add(corner);
    }
    begin = source.ends[cell];
  }
  view_.cell_kind = solid ? CellKind::tetrahedron : CellKind::triangle;
  view_.nodes_per_cell = solid ? 4 : 3;
  view_.cells = cells_;
  if (source.nodes_are_cells()) {
    view_.positions = positions_;
    view_.nodes = static_cast<int64_t>(nodes_.size());
  }
}

std::vector<float> DrawnMesh::values(std::span<const float> of_nodes) const {
  if (nodes_.empty()) return {of_nodes.begin(), of_nodes.end()};
  std::vector<float> values;
  values.reserve(nodes_.size());
  for (const int32_t node : nodes_) values.push_back(of_nodes[static_cast<size_t>(node)]);
  return values;
}

}  // namespace meshgrad
