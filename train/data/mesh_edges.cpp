// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/mesh_edges.h>

namespace meshgrad {
namespace {

using Side = std::pair<int, int>;

constexpr std::array<Side, 3> kTriangleSides{{{0, 1}, {1, 2}, {2, 0}}};
constexpr std::array<Side, 4> kQuadSides{{{0, 1}, {1, 2}, {2, 3}, {3, 0}}};
constexpr std::array<Side, 6> kTetrahedronSides{{{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}}};
constexpr std::array<Side, 12> kHexahedronSides{
    {{0, 1}, {1, 2}, {2, 3}, {3, 0}, {4, 5}, {5, 6}, {6, 7}, {7, 4}, {0, 4}, {1, 5}, {2, 6}, {3, 7}}};

std::span<const Side> sides_of(CellKind kind) {
  switch (kind) {
    case CellKind::triangle:
      return kTriangleSides;
    case CellKind::quad:
      return kQuadSides;
    case CellKind::tetrahedron:
      return kTetrahedronSides;
    case CellKind::hexahedron:
      return kHexahedronSides;
    case CellKind::none:
      break;
  }
  return {};
}

// (receiver, sender) in one number, so that one integer sort gives the order.
void push_both_ways(std::vector<uint64_t>& keys, int32_t a, int32_t b) {
  if (a == b) return;
  keys.push_back((static_cast<uint64_t>(a) << 32U) | static_cast<uint32_t>(b));
  keys.push_back((static_cast<uint64_t>(b) << 32U) | static_cast<uint32_t>(a));
}

std::vector<int32_t> offsets_of(std::span<const int32_t> ends, int64_t nodes) {
  std::vector<int32_t> offsets(static_cast<size_t>(nodes) + 1, 0);
  for (const int32_t node : ends) ++offsets[static_cast<size_t>(node) + 1];
  for (size_t n = 0; n < static_cast<size_t>(nodes); ++n) offsets[n + 1] += offsets[n];
  return offsets;
}

void check_count(size_t edges, std::string_view where) {
  if (edges <= static_cast<size_t>(std::numeric_limits<int32_t>::max())) return;
  throw data_error(where, "at most 2147483647 edges", fmt::format("{}", edges), "cut the mesh into parts");
}

MeshEdges edges_of(std::vector<uint64_t> keys, int64_t nodes, std::string_view where) {
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  if (keys.empty()) {
    throw data_error(where, "a mesh with at least one edge", "no edge",
                     "give cells with at least two different nodes, or the edges");
  }
  check_count(keys.size(), where);
  std::vector<int32_t> senders, receivers;
  senders.reserve(keys.size());
  receivers.reserve(keys.size());
  for (const uint64_t key : keys) {
    receivers.push_back(static_cast<int32_t>(key >> 32U));
    senders.push_back(static_cast<int32_t>(key & 0xffffffffU));
  }
  return edges_of_receivers(std::move(senders), offsets_of(receivers, nodes));
}

void check_node(int64_t node, int64_t nodes, size_t number, const char* kind, std::string_view where) {
  if (node >= 0 && node < nodes) return;
  const bool padded = node < 0 && std::string_view(kind) == "cell";
  throw data_error(
      where, fmt::format("node numbers in 0..{}", nodes - 1), fmt::format("{} in {} {}", node, kind, number),
      padded ? "mixed cells: repeat the last node in place of -1, as in [a, b, c, c] for a triangle"
             : "node numbers count from 0 and must be below the number of positions");
}

void check_pairs(std::span<const int32_t> first, std::span<const int32_t> second, int64_t nodes,
                 std::string_view where) {
  if (first.size() != second.size()) {
    throw data_error(where, "as many senders as receivers",
                     fmt::format("{} and {}", first.size(), second.size()), "give edges as [2, edges]");
  }
  check_count(first.size(), where);
  for (size_t i = 0; i < first.size(); ++i) {
    check_node(first[i], nodes, i, "edge", where);
    check_node(second[i], nodes, i, "edge", where);
  }
}

// The number of the edge from a sender to a receiver; -1 when there is none.
int32_t find_edge(const MeshEdges& edges, int32_t sender, int32_t receiver) {
  const auto nodes = static_cast<int64_t>(edges.receiver_offsets.size()) - 1;
  if (sender < 0 || receiver < 0 || receiver >= nodes) return -1;
  const auto at = edges.receiver_offsets.begin() + receiver;
  const auto first = edges.senders.begin() + at[0];
  const auto last = edges.senders.begin() + at[1];
  const auto found = std::lower_bound(first, last, sender);
  return found == last || *found != sender ? -1 : static_cast<int32_t>(found - edges.senders.begin());
}

}  // namespace

int nodes_per_cell(CellKind kind) {
  switch (kind) {
    case CellKind::triangle:
      return 3;
    case CellKind::quad:
    case CellKind::tetrahedron:
      return 4;
    case CellKind::hexahedron:
      return 8;
    case CellKind::none:
      break;
  }
  return 0;
}

CellKind cell_kind_of(int64_t nodes_in_cell, int dim, std::string_view where) {
  if (nodes_in_cell == 3) return CellKind::triangle;
  if (nodes_in_cell == 4) return dim == 2 ? CellKind::quad : CellKind::tetrahedron;
  if (nodes_in_cell == 8 && dim == 3) return CellKind::hexahedron;
  throw data_error(where, "cells of 3 nodes, 4 nodes, or (in 3-D) 8 nodes",
                   fmt::format("{} nodes a cell in {}-D", nodes_in_cell, dim),
                   "cut the cells into triangles or tetrahedra, or give the edges instead");
}

MeshEdges edges_of_receivers(std::vector<int32_t> senders, std::vector<int32_t> receiver_offsets) {
  const auto nodes = static_cast<int64_t>(receiver_offsets.size()) - 1;
  MeshEdges edges{.senders = std::move(senders), .receiver_offsets = std::move(receiver_offsets)};
  edges.receivers.resize(edges.senders.size());
  for (size_t node = 0; node < static_cast<size_t>(nodes); ++node) {
    std::fill(edges.receivers.begin() + edges.receiver_offsets[node],
              edges.receivers.begin() + edges.receiver_offsets[node + 1], static_cast<int32_t>(node));
  }
  edges.sender_offsets = offsets_of(edges.senders, nodes);
  edges.sender_order.resize(edges.senders.size());
  std::vector<int32_t> next(edges.sender_offsets.begin(), edges.sender_offsets.end() - 1);
  for (size_t edge = 0; edge < edges.senders.size(); ++edge) {
    const auto sender = static_cast<size_t>(edges.senders[edge]);
    edges.sender_order[static_cast<size_t>(next[sender]++)] = static_cast<int32_t>(edge);
  }
  return edges;
}

MeshEdges edges_from_cells(std::span<const int32_t> cells, CellKind kind, int64_t nodes,
                           std::string_view where) {
  const auto width = static_cast<size_t>(nodes_per_cell(kind));
  if (width == 0 || cells.size() % width != 0) {
    throw data_error(where, fmt::format("whole cells of {} nodes", width),
                     fmt::format("{} numbers", cells.size()), "check the shape of the cells");
  }
  for (size_t i = 0; i < cells.size(); ++i) check_node(cells[i], nodes, i / width, "cell", where);
  const std::span<const Side> sides = sides_of(kind);
  std::vector<uint64_t> keys;
  keys.reserve(cells.size() / width * sides.size() * 2);
  for (size_t start = 0; start < cells.size(); start += width) {
    for (const auto& [a, b] : sides) {
      push_both_ways(keys, cells[start + static_cast<size_t>(a)], cells[start + static_cast<size_t>(b)]);
    }
  }
  return edges_of(std::move(keys), nodes, where);
}

MeshEdges edges_from_pairs(std::span<const int32_t> first, std::span<const int32_t> second, int64_t nodes,
                           std::string_view where) {
  check_pairs(first, second, nodes, where);
  std::vector<uint64_t> keys;
  keys.reserve(first.size() * 2);
  for (size_t i = 0; i < first.size(); ++i) push_both_ways(keys, first[i], second[i]);
  return edges_of(std::move(keys), nodes, where);
}

DirectedEdges directed_edges(std::span<const int32_t> first, std::span<const int32_t> second, int64_t nodes,
                             std::string_view where) {
  check_pairs(first, second, nodes, where);
  DirectedEdges result;
  result.columns.resize(first.size());
  std::iota(result.columns.begin(), result.columns.end(), 0);
  std::ranges::stable_sort(result.columns, {}, [&](int32_t column) {
    const auto at = static_cast<size_t>(column);
    return std::pair(second[at], first[at]);
  });
  std::vector<int32_t> senders;
  senders.reserve(first.size());
  for (const int32_t column : result.columns) senders.push_back(first[static_cast<size_t>(column)]);
  result.edges = edges_of_receivers(std::move(senders), offsets_of(second, nodes));
  return result;
}

std::vector<int32_t> columns_of_edges(const MeshEdges& edges, std::span<const int32_t> pairs,
                                      std::string_view where) {
  const size_t columns = pairs.size() / 2;
  std::vector<int32_t> listed(edges.senders.size(), -1);
  for (size_t i = 0; i < columns; ++i) {
    const int32_t sender = pairs[i];
    const int32_t receiver = pairs[columns + i];
    if (sender == receiver) continue;
    const int32_t edge = find_edge(edges, sender, receiver);
    if (edge < 0 || listed[static_cast<size_t>(edge)] >= 0) {
      throw data_error(where, "each edge of the mesh, at most once in each direction",
                       fmt::format("{} to {} in column {}{}", sender, receiver, i, edge < 0 ? "" : " again"),
                       "list the edges that the rows of edge fields belong to");
    }
    listed[static_cast<size_t>(edge)] = static_cast<int32_t>(i);
  }
  std::vector<int32_t> found = listed;
  for (size_t edge = 0; edge < found.size(); ++edge) {
    if (found[edge] >= 0) continue;
    const int32_t other = find_edge(edges, edges.receivers[edge], edges.senders[edge]);
    found[edge] = listed[static_cast<size_t>(other)];
    if (found[edge] >= 0) continue;
    throw data_error(where, "each edge of the mesh",
                     fmt::format("none from {} to {}", edges.senders[edge], edges.receivers[edge]),
                     "list all sides of the cells, in one direction or both");
  }
  return found;
}

}  // namespace meshgrad
