// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <meshgrad/train/convert/cell_check.h>

namespace meshgrad {
namespace {

std::span<const int32_t> nodes_of_cell(const MeshView& mesh, int64_t cell) {
  const auto width = static_cast<size_t>(mesh.nodes_per_cell);
  return mesh.cells.subspan(static_cast<size_t>(cell) * width, width);
}

/// From node `from` to node `to`; the third component is 0 in 2-D.
std::array<double, 3> side(const MeshView& mesh, int32_t from, int32_t to) {
  std::array<double, 3> d{};
  const auto dim = static_cast<size_t>(mesh.dim);
  for (size_t i = 0; i < dim; ++i) {
    d[i] = static_cast<double>(mesh.positions[static_cast<size_t>(to) * dim + i]) -
           static_cast<double>(mesh.positions[static_cast<size_t>(from) * dim + i]);
  }
  return d;
}

/// Twice the area of a triangle or quad (the cross product of a quad's diagonals), six times the volume of a
/// tetrahedron or of a hexahedron's first corner.
double signed_size(const MeshView& mesh, std::span<const int32_t> cell) {
  if (mesh.dim == 2) {
    const bool quad = mesh.cell_kind == CellKind::quad;
    const auto a = side(mesh, cell[0], cell[quad ? 2 : 1]);
    const auto b = quad ? side(mesh, cell[1], cell[3]) : side(mesh, cell[0], cell[2]);
    return a[0] * b[1] - a[1] * b[0];
  }
  const bool hexahedron = mesh.cell_kind == CellKind::hexahedron;
  const auto u = side(mesh, cell[0], cell[1]);
  const auto v = side(mesh, cell[0], cell[hexahedron ? 3 : 2]);
  const auto w = side(mesh, cell[0], cell[hexahedron ? 4 : 3]);
  return (u[1] * v[2] - u[2] * v[1]) * w[0] + (u[2] * v[0] - u[0] * v[2]) * w[1] +
         (u[0] * v[1] - u[1] * v[0]) * w[2];
}

}  // namespace

DoubtfulCells repeated_cells(const MeshView& mesh) {
  const int64_t count = mesh.cell_count();
  std::vector<int32_t> sorted(mesh.cells.begin(), mesh.cells.end());
  const auto width = static_cast<std::ptrdiff_t>(mesh.nodes_per_cell);
  const auto at = [&](int64_t cell) { return sorted.begin() + static_cast<std::ptrdiff_t>(cell) * width; };
  std::vector<int64_t> order(static_cast<size_t>(count));
  for (int64_t cell = 0; cell < count; ++cell) {
    std::sort(at(cell), at(cell) + width);
    order[static_cast<size_t>(cell)] = cell;
  }
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const auto [i, j] = std::mismatch(at(a), at(a) + width, at(b));
    return i == at(a) + width ? a < b : *i < *j;
  });
  DoubtfulCells found{.first = count};
  for (size_t i = 1; i < order.size(); ++i) {
    if (!std::equal(at(order[i]), at(order[i]) + width, at(order[i - 1]))) continue;
    ++found.count;
    found.first = std::min(found.first, order[i]);
  }
  return found;
}

DoubtfulCells inverted_cells(const MeshView& mesh) {
  const bool solid = mesh.cell_kind == CellKind::tetrahedron || mesh.cell_kind == CellKind::hexahedron;
  const int64_t count = mesh.cell_count();
  DoubtfulCells positive{0, count}, negative{0, count};
  if (count == 0 || (mesh.dim == 3 && !solid)) return {};
  for (int64_t cell = 0; cell < count; ++cell) {
    const double size = signed_size(mesh, nodes_of_cell(mesh, cell));
    if (size == 0) continue;
    DoubtfulCells& side_of = size > 0 ? positive : negative;
    ++side_of.count;
    side_of.first = std::min(side_of.first, cell);
  }
  return positive.count < negative.count ? positive : negative;
}

}  // namespace meshgrad
