// SPDX-License-Identifier: Apache-2.0
// A mesh as pictures show it: with the cells of its source, cut into triangles or tetrahedra.
#pragma once
#include <meshgrad/train/data/dataset.h>

#include <cstdint>
#include <span>
#include <vector>

namespace meshgrad {

/// A mesh with a source as one of triangles or tetrahedra; any other as it is. A node of the drawn mesh shows
/// the value of one node of the mesh: of a graph on cells, that of the cell it is a corner of, so that a cell
/// has one colour. Polygons are cut from their first corner, as convex ones may be.
class DrawnMesh {
 public:
  explicit DrawnMesh(const MeshView& mesh);
  DrawnMesh(const DrawnMesh&) = delete;
  DrawnMesh& operator=(const DrawnMesh&) = delete;

  /// Valid as long as this object and the mesh.
  const MeshView& view() const { return view_; }
  /// From a value of each node of the mesh, to one of each node of view().
  std::vector<float> values(std::span<const float> of_nodes) const;
  /// The node of the mesh whose value a node of view() shows.
  int32_t node_of(int32_t drawn) const { return nodes_.empty() ? drawn : nodes_[static_cast<size_t>(drawn)]; }

 private:
  MeshView view_;
  std::vector<float> positions_;
  std::vector<int32_t> cells_;
  std::vector<int32_t> nodes_;  // of the mesh, whose value a node of view_ shows; empty: the same node
};

}  // namespace meshgrad
