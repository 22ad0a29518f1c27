// SPDX-License-Identifier: Apache-2.0
// A mesh that a solver has partitioned over ranks: each has its own nodes, and then its ghost nodes.
#pragma once
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/train/embed/arrays.h>
#include <meshgrad/train/learn/task/mesh_parts.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// A rank's part of a mesh that a host application has partitioned. The mesh's arrays are those of the part
/// alone: the nodes that the rank owns, then its ghost nodes, and every edge of an owned node.
struct GivenPart {
  std::vector<int32_t> ghost_owner;   ///< [ghosts]: the rank
  std::vector<int32_t> ghost_number;  ///< [ghosts]: of the node among those of its owner
  int64_t owned(const MeshView& mesh) const { return mesh.nodes - static_cast<int64_t>(ghost_owner.size()); }
};

/// The ghosts of a mesh in parts, whose lists are on the host. Throws InvalidArgument for lists of different
/// lengths and more ghosts than nodes.
GivenPart given_part(const MeshArrays& mesh, int dim);

/// For MeshParts: given[i] is of the mesh with index i. Batches hold this rank's part alone, so their part()
/// and halo() are collective, of this rank's number, and predict() is not for them.
PartMaker given_parts(std::vector<GivenPart> given, Ranks& ranks);
/// Throws DataError on every rank where none has an edge; no rank leaves. Collective.
void check_some_edge(Ranks& ranks, int64_t own_edges);
/// Throws DataError on every rank unless they agree on the nodes at the borders of this mesh. Collective.
void check_borders(const MeshView& mesh, const GivenPart& given, Ranks& ranks);

/// A number for each node of a part that all ranks know it by: own nodes count rank after rank. Collective.
std::vector<int32_t> node_numbers(Ranks& ranks, int64_t owned, const GivenPart& part);

/// Calls `body`, which is no collective call, on each rank. Where it throws on one, the others throw
/// DataError with `place`. A rank that finds the end of another here leaves, and throws RankError.
void on_all_ranks(Ranks& ranks, const std::function<void()>& body, std::string_view place = "mesh in parts");

/// Exchanges rows between nodes and their ghosts on other ranks.
class GhostRows {
 public:
  /// `owned` nodes stand before the ghosts. Throws DataError on all ranks when a ghost's owner or number does
  /// not exist. Collective.
  GhostRows(Ranks& ranks, int64_t owned, const GivenPart& part);
  int64_t owned() const { return owned_; }
  /// Fills the ghosts' rows of `values` [owned + ghosts, width] from their owners'. T: float, double.
  /// Collective.
  template <class T>
  void fill(Ranks& ranks, std::span<T> values, size_t width) const;
  /// The transpose: adds the ghosts' rows to their owners', in the order of the ranks. Collective.
  void add(Ranks& ranks, std::span<double> values, size_t width) const;

 private:
  int64_t owned_;
  std::vector<std::vector<int64_t>> sent_;    // by rank: own nodes that it needs
  std::vector<std::vector<int64_t>> ghosts_;  // by rank: ghost nodes that it owns, in the order of its list
};

/// A warning of the first ghost that is elsewhere than its owner has the node, by more than 1e-5 of the size
/// of this rank's part; empty: none is. Collective.
std::string ghost_place_warning(Ranks& ranks, const GhostRows& rows, const GivenPart& part,
                                const Numbers& positions, int dim);

}  // namespace meshgrad
