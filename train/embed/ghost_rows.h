// SPDX-License-Identifier: Apache-2.0
// A mesh that a solver has partitioned over ranks: each has its own nodes, and then its ghost nodes.
#pragma once
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/train/embed/arrays.h>
#include <meshgrad/train/learn/task/mesh_parts.h>

#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace meshgrad {

/// The ghosts of a mesh in parts, whose lists are on the host. Throws InvalidArgument for lists of different
/// lengths and more ghosts than nodes.
GivenPart given_part(const MeshArrays& mesh, int dim);

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

}  // namespace meshgrad
