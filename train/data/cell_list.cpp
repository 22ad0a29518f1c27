// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include <meshgrad/train/data/cell_list.h>
#include <meshgrad/train/data/mesh_edges.h>

namespace meshgrad {
namespace {

using Corners = std::span<const int32_t>;

void add_solid(CellList& list, Corners c) {
  const bool apex = c[4] == c[5] && c[5] == c[6] && c[6] == c[7];
  if (apex && c[2] == c[3]) {
    list.add(VtkCell::tetrahedron, std::array{c[0], c[1], c[2], c[4]});
  } else if (apex) {
    list.add(VtkCell::pyramid, c.first(5));
  } else if (c[2] == c[3] && c[6] == c[7]) {
    list.add(VtkCell::wedge, std::array{c[0], c[1], c[2], c[4], c[5], c[6]});
  } else {
    list.add(VtkCell::hexahedron, c);
  }
}

/// Whether a cell of this type may have so many corners.
bool fits(uint8_t type, int64_t corners) {
  switch (static_cast<VtkCell>(type)) {
    case VtkCell::vertex:
      return corners == 1;
    case VtkCell::line:
      return corners == 2;
    case VtkCell::triangle:
      return corners == 3;
    case VtkCell::quad:
    case VtkCell::tetrahedron:
      return corners == 4;
    case VtkCell::pyramid:
      return corners == 5;
    case VtkCell::wedge:
      return corners == 6;
    case VtkCell::hexahedron:
      return corners == 8;
    case VtkCell::polygon:
      return corners > 4;
    default:
      return false;
  }
}

}  // namespace

void CellList::add(VtkCell type, Corners nodes) {
  corners.insert(corners.end(), nodes.begin(), nodes.end());
  ends.push_back(static_cast<int32_t>(corners.size()));
  types.push_back(static_cast<uint8_t>(type));
}

CellList cells_of(Corners cells, CellKind kind) {
  CellList list;
  const auto width = static_cast<size_t>(nodes_per_cell(kind));
  for (size_t start = 0; width > 0 && start + width <= cells.size(); start += width) {
    const Corners c = cells.subspan(start, width);
    if (kind == CellKind::tetrahedron) {
      list.add(VtkCell::tetrahedron, c);
    } else if (kind == CellKind::hexahedron) {
      add_solid(list, c);
    } else if (kind == CellKind::quad && c[2] == c[3]) {
      list.add(VtkCell::triangle, c.first(3));
    } else {
      list.add(kind == CellKind::quad ? VtkCell::quad : VtkCell::triangle, c);
    }
  }
  return list;
}

void add_polygon(CellList& list, Corners c) {
  while (c.size() > 1 && c.back() == c[c.size() - 2]) c = c.first(c.size() - 1);
  constexpr std::array<VtkCell, 4> kSmall{VtkCell::vertex, VtkCell::line, VtkCell::triangle, VtkCell::quad};
  list.add(c.size() <= kSmall.size() ? kSmall[c.size() - 1] : VtkCell::polygon, c);
}

std::string find_cell_fault(Corners corners, Corners ends, std::span<const uint8_t> types, int64_t points) {
  if (ends.size() != types.size()) return fmt::format("{} cells of {} types", ends.size(), types.size());
  int64_t begin = 0;
  for (size_t cell = 0; cell < ends.size(); ++cell) {
    if (ends[cell] < begin || !fits(types[cell], ends[cell] - begin))
      return fmt::format("cell {} of type {} with {} corners", cell, types[cell], ends[cell] - begin);
    begin = ends[cell];
  }
  if (std::cmp_not_equal(begin, corners.size()))
    return fmt::format("{} corners of cells with {}", corners.size(), begin);
  const auto outside =
      std::ranges::find_if(corners, [&](int32_t corner) { return corner < 0 || corner >= points; });
  return outside == corners.end() ? "" : fmt::format("corner {} at {}", *outside, outside - corners.begin());
}

}  // namespace meshgrad
