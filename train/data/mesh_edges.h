// SPDX-License-Identifier: Apache-2.0
// From cells, or from given connections, to the sorted edge lists that training works on.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <meshgrad/train/data/field_info.h>

namespace meshgrad {

int nodes_per_cell(CellKind kind);  ///< 0, 3, 4, 4, 8

/// What cells of so many nodes are in a mesh of `dim` dimensions: 4 nodes are a quad in 2-D and a tetrahedron
/// in 3-D. Throws DataError with `where` for a number that no kind has.
CellKind cell_kind_of(int64_t nodes_in_cell, int dim, std::string_view where);

/// Directed edges sorted by (receiver, sender), and the same edges in the order of their senders. Unless they
/// were made otherwise, they are unique, without loops, and each connection is there both ways.
struct MeshEdges {
  std::vector<int32_t> senders;           ///< [edges]
  std::vector<int32_t> receivers;         ///< [edges], ascending
  std::vector<int32_t> receiver_offsets;  ///< [nodes + 1] into senders and receivers
  std::vector<int32_t> sender_offsets;    ///< [nodes + 1] into sender_order
  std::vector<int32_t> sender_order;      ///< [edges]: edge numbers by sender, then by number
  /// [nodes]: the least number among the images of a node in a periodic domain; empty: each is its own.
  std::vector<int32_t> points = {};
};

/// The edges of the cells: the sides of triangles and quads, the 6 edges of a tetrahedron, the 12 of a
/// hexahedron (nodes 0-3 around the bottom, 4-7 above them, as in VTK). `cells` is [cells, nodes_per_cell].
/// Throws DataError naming `where` and the cell when a node number is outside [0, nodes), and when no edge is
/// left.
MeshEdges edges_from_cells(std::span<const int32_t> cells, CellKind kind, int64_t nodes,
                           std::string_view where);

/// Edges from connections (first[i], second[i]), given once or both ways; made symmetric, loops are dropped.
/// Throws DataError as above.
MeshEdges edges_from_pairs(std::span<const int32_t> first, std::span<const int32_t> second, int64_t nodes,
                           std::string_view where);

/// Edges first[i] to second[i] as they are given, loops and parallel edges too; perhaps none.
struct DirectedEdges {
  MeshEdges edges;               ///< sorted by (receiver, sender), then by i
  std::vector<int32_t> columns;  ///< [edges]: the i of each
};
/// Throws DataError naming `where` when a node number is outside [0, nodes).
DirectedEdges directed_edges(std::span<const int32_t> first, std::span<const int32_t> second, int64_t nodes,
                             std::string_view where);

/// Edges that are sorted already: the senders of receiver n are [receiver_offsets[n], [n + 1]), ascending.
/// Unlike others they may go one way only.
MeshEdges edges_of_receivers(std::vector<int32_t> senders, std::vector<int32_t> receiver_offsets);

/// For each directed edge the column of `pairs` [2, columns] (senders, receivers) that means it: its own, or
/// that of its other direction where only one is listed. Columns that are loops are left out. Throws
/// DataError naming `where` when a pair is no edge, is listed twice in one direction, or an edge is not
/// listed.
std::vector<int32_t> columns_of_edges(const MeshEdges& edges, std::span<const int32_t> pairs,
                                      std::string_view where);

}  // namespace meshgrad
