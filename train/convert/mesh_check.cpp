// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include <meshgrad/train/convert/mesh_check.h>

namespace meshgrad {
namespace {

using Vec3 = std::array<double, 3>;

Vec3 difference(std::span<const float> positions, int32_t from, int32_t to) {
  Vec3 d{};
  for (size_t i = 0; i < 3; ++i) {
    d[i] = static_cast<double>(positions[static_cast<size_t>(to) * 3 + i]) -
           static_cast<double>(positions[static_cast<size_t>(from) * 3 + i]);
  }
  return d;
}

double dot(const Vec3& a, const Vec3& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

// |det(b - a, c - a, d - a)| over the longest of the three cubed: 0 for a flat cell, 0.7 for a regular
// tetrahedron.
double thickness(std::span<const int32_t> cell, std::span<const float> positions) {
  const Vec3 u = difference(positions, cell[0], cell[1]);
  const Vec3 v = difference(positions, cell[0], cell[2]);
  const Vec3 w = difference(positions, cell[0], cell[3]);
  const Vec3 normal{u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]};
  const double longest = std::sqrt(std::max({dot(u, u), dot(v, v), dot(w, w)}));
  return longest > 0 ? std::abs(dot(normal, w)) / (longest * longest * longest) : 0;
}

bool share_sides_as_a_surface(std::span<const int32_t> cells) {
  std::vector<std::pair<int32_t, int32_t>> sides;
  for (size_t start = 0; start + 4 <= cells.size(); start += 4) {
    for (size_t i = 0; i < 4; ++i) sides.push_back(std::minmax(cells[start + i], cells[start + (i + 1) % 4]));
  }
  std::sort(sides.begin(), sides.end());
  for (size_t i = 2; i < sides.size(); ++i) {
    if (sides[i] == sides[i - 2] && sides[i].first != sides[i].second) return false;
  }
  return true;
}

// Counts places of one kind, and keeps the first.
struct Places {
  int64_t count = 0;
  std::string first;
  void add(std::string place) {
    if (count++ == 0) first = std::move(place);
  }
  void describe(std::vector<std::string>& lines, const char* what) const {
    if (count > 0) lines.push_back(fmt::format("{}: {}, first {}", what, count, first));
  }
};

Places coincident_nodes(const RawTrajectory& t) {
  const auto dim = static_cast<size_t>(t.dim);
  const auto at = [&](size_t n) { return std::span(t.positions).subspan(n * dim, dim); };
  std::vector<size_t> order(static_cast<size_t>(t.nodes));
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto x = at(a);
    const auto y = at(b);
    const auto [i, j] = std::mismatch(x.begin(), x.end(), y.begin());
    return i == x.end() ? a < b : *i < *j;
  });
  std::vector<std::pair<size_t, size_t>> pairs;
  for (size_t i = 1; i < order.size(); ++i) {
    const auto x = at(order[i - 1]);
    if (std::equal(x.begin(), x.end(), at(order[i]).begin())) pairs.emplace_back(order[i - 1], order[i]);
  }
  Places places;
  places.count = static_cast<int64_t>(pairs.size());
  if (pairs.empty()) return places;
  const auto [a, b] = *std::min_element(pairs.begin(), pairs.end());
  places.first = fmt::format("nodes {} and {}", a, b);
  return places;
}

Places flat_cells(const RawTrajectory& t, CellKind kind) {
  const bool solid = kind == CellKind::tetrahedron || kind == CellKind::hexahedron;
  const std::ptrdiff_t least = solid ? 4 : 3;
  const auto width = static_cast<size_t>(std::max(t.nodes_per_cell, 1));
  Places places;
  for (size_t start = 0; start + width <= t.cells.size(); start += width) {
    std::vector<int32_t> nodes(t.cells.begin() + static_cast<std::ptrdiff_t>(start),
                               t.cells.begin() + static_cast<std::ptrdiff_t>(start + width));
    std::sort(nodes.begin(), nodes.end());
    if (std::unique(nodes.begin(), nodes.end()) - nodes.begin() >= least) continue;
    places.add(fmt::format("cell {}", start / width));
  }
  return places;
}

}  // namespace

bool are_quads_in_space(std::span<const int32_t> cells, std::span<const float> positions) {
  constexpr double kFlat = 1e-6;
  constexpr double kNearlyFlat = 0.05;
  const auto nodes = static_cast<int64_t>(positions.size() / 3);
  size_t counted = 0, flat = 0, nearly = 0;
  for (size_t start = 0; start + 4 <= cells.size(); start += 4) {
    const auto cell = cells.subspan(start, 4);
    if (std::any_of(cell.begin(), cell.end(), [&](int32_t n) { return n < 0 || n >= nodes; })) continue;
    const double thick = thickness(cell, positions);
    ++counted;
    flat += thick < kFlat ? 1 : 0;
    nearly += thick < kNearlyFlat ? 1 : 0;
  }
  return counted > 0 && (flat == counted || (2 * nearly > counted && share_sides_as_a_surface(cells)));
}

std::vector<std::string> doubtful_places(const RawTrajectory& t, std::span<const int32_t> pairs,
                                         CellKind kind, const MeshEdges& edges) {
  std::vector<std::string> lines;
  if (t.dim > 0) coincident_nodes(t).describe(lines, "nodes at the place of another node");
  Places alone;
  for (size_t n = 0; n < static_cast<size_t>(t.nodes); ++n) {
    if (edges.receiver_offsets[n] == edges.receiver_offsets[n + 1] &&
        edges.sender_offsets[n] == edges.sender_offsets[n + 1])
      alone.add(fmt::format("node {}", n));
  }
  alone.describe(lines, "nodes without an edge");
  if (kind != CellKind::none) flat_cells(t, kind).describe(lines, "cells that repeat a node");
  if (kind != CellKind::none || t.directed) return lines;
  const size_t columns = pairs.size() / 2;
  std::vector<std::pair<std::pair<int32_t, int32_t>, size_t>> listed;
  Places loops;
  for (size_t i = 0; i < columns; ++i) {
    listed.push_back({{pairs[i], pairs[columns + i]}, i});
    if (pairs[i] == pairs[columns + i]) loops.add(fmt::format("column {}", i));
  }
  loops.describe(lines, "edges from a node to itself");
  std::sort(listed.begin(), listed.end());
  std::vector<size_t> again;
  for (size_t i = 1; i < listed.size(); ++i) {
    const auto [a, b] = listed[i].first;
    if (a != b && listed[i].first == listed[i - 1].first) again.push_back(listed[i].second);
  }
  Places twice{static_cast<int64_t>(again.size()), ""};
  if (!again.empty()) twice.first = fmt::format("column {}", *std::min_element(again.begin(), again.end()));
  twice.describe(lines, "edges listed again");
  return lines;
}

}  // namespace meshgrad
