// SPDX-License-Identifier: Apache-2.0
// Meshes and fields that a program holds in memory, for a Dataset over them.
#pragma once
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/data/mesh_edges.h>

#include <deque>
#include <span>
#include <vector>

namespace meshgrad {

/// A mesh whose `view` borrows positions and node types, refers to `edges`, and has no cells.
struct MemoryMesh {
  MeshEdges edges;
  MeshView view;
};

/// Fields on one mesh, [frames, rows, components] each, borrowed and in the order of the data's fields. May
/// be empty until they are read.
struct MemoryTrajectory {
  int64_t mesh = 0;
  int64_t frames = 1;
  std::vector<FieldData> fields;
};

/// Sizes stay what they are while a Dataset reads it; what spans refer to may change between its calls.
struct MemoryData {
  int dim = 0;            ///< 0: graphs without positions
  bool directed = false;  ///< connections that are added are kept as they are
  bool in_parts = false;  ///< meshes that are added are a rank's parts: without connections, too
  double dt = 0;          ///< seconds between frames; 0 when unknown
  int64_t node_types = 1;
  MeshEdgeOptions edge_options = {};  ///< of the meshes that are added from then on
  std::vector<FieldInfo> fields;
  std::vector<SplitInfo> splits;
  std::deque<MemoryMesh> meshes;
  std::vector<MemoryTrajectory> trajectories;  ///< grouped by split

  /// Adds a mesh and returns its number. Throws DataError naming `name` unless positions are [nodes, dim],
  /// there is an edge (or edges are directed, or none is given for a part), and every node number and node
  /// type exists.
  int64_t add_mesh(std::string_view name, std::span<const float> positions,
                   std::span<const int32_t> node_type, CellKind kind, std::span<const int32_t> cells);
  /// Likewise with the connections (first[i], second[i]) instead of cells: from first to second where edges
  /// are directed.
  int64_t add_mesh(std::string_view name, std::span<const float> positions,
                   std::span<const int32_t> node_type, std::span<const int32_t> first,
                   std::span<const int32_t> second);

 private:
  int64_t add(std::string_view name, std::span<const float> positions, std::span<const int32_t> node_type,
              MeshEdges edges);
};

}  // namespace meshgrad
