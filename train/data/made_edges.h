// SPDX-License-Identifier: Apache-2.0
// Edges that a run makes of a mesh's own: across the borders of a periodic domain, and between nodes several
// edges apart.
#pragma once
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/data/mesh_edges.h>

#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace meshgrad {

/// The shortest of the differences d + n * period; d itself where the period is 0.
inline double nearest_image(double d, double period) {
  return period > 0.0 ? d - period * std::nearbyint(d / period) : d;
}

/// The edges of a mesh under `options`, which are not those of the file, sorted as those are.
///
/// Periods: nodes whose positions differ by whole periods, to a thousandth of the mesh's shortest edge, are
/// images of one point. Each has the neighbours of all its images, one image of each neighbour: the nearest.
/// So a mesh whose cells end at the borders has the edges it would have if the borders were glued, and
/// relative positions (nearest_image) of the same length. Of a mesh whose cells connect across the borders
/// the edges stay.
///
/// Hops: an edge joins nodes that are at most `hops` edges apart. Deterministic. Throws ConfigError for
/// a mesh that is longer than a period, that nothing joins across it, or whose edges span half of it; and for
/// 2^31 edges and more.
MeshEdges made_edges(const MeshView& mesh, const MeshEdgeOptions& options);

/// The meshes of a file with edges that were made, kept as long as they take less than 1 GiB; then made
/// again. Thread-safe.
class MadeEdges {
 public:
  explicit MadeEdges(MeshEdgeOptions options) : options_(options) {}
  const MeshEdgeOptions& options() const { return options_; }
  /// Puts them in the place of the mesh's own.
  void replace(MeshView& mesh) const;
  /// Their number, remembered; `mesh` gives the MeshView where it is not known.
  template <class MeshOf>
  int64_t count(int64_t index, MeshOf&& mesh_of) const {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = counts_.find(index); found != counts_.end()) return found->second;
    }
    MeshView mesh = mesh_of();
    replace(mesh);
    return mesh.edges;
  }

 private:
  MeshEdgeOptions options_;
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::shared_ptr<const MeshEdges>> kept_;  // by mesh
  mutable std::map<int64_t, int64_t> counts_;
  mutable size_t bytes_ = 0;
};

/// [lines, 2]: each connection of the data once (directed edges each), for pictures and files: no loops, no
/// edges that were made, and none across a periodic border.
std::vector<int32_t> drawn_edges(const MeshView& mesh);

/// Gives a mesh other edges, which outlive it.
void set_edges(MeshView& mesh, const MeshEdges& edges);

}  // namespace meshgrad
