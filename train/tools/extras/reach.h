// SPDX-License-Identifier: Apache-2.0
// How far what a model has to know lies from the nodes that it predicts, in edges: a message travels one edge
// a block.
#pragma once
#include <meshgrad/train/convert/data_check.h>
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/tools/extras/health.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace meshgrad {

/// Nodes that others have to know of: fewer than half of a mesh, either of one type or the only ones at which
/// an input is not 0.
struct ReachSource {
  std::string name;             ///< of the input, or "nodes of type 2"
  bool input = false;           ///< its values reach no other nodes but by messages
  int64_t least = 0, most = 0;  ///< over meshes: edges to the predicted node that is farthest from them all
  int64_t cut_off = 0;          ///< most of a mesh: predicted nodes that no edges lead to
};

struct MeshReach {
  int64_t edges = 0;  ///< that a message travels: model.blocks * data.hops
  int64_t diameter_least = 0,
          diameter_most = 0;         ///< over meshes: edges between the nodes that are farthest apart, about
  int64_t meshes = 0;                ///< that were looked at
  double hop_edges = 1.0;            ///< times the edges, with the data.hops that the farthest source needs
  std::vector<ReachSource> sources;  ///< the farthest first; without those whose values other inputs repeat
};

/// Of at most 8 trajectories of the training split. An input counts
/// as repeated where another one, on the graph or the same at all nodes of a mesh, has its values. Nothing
/// for a task without meshes.
std::optional<MeshReach> mesh_reach(const Config& config, const Dataset& dataset);

/// "6 edges (blocks x hops); nodes are up to 19 apart, and up to 17 from traction".
std::string reach_text(const MeshReach& reach);

/// Of steady fields, whose solution depends on all of the mesh at once: a warning where an input does not
/// reach all predicted nodes, for want of blocks or of edges, a note where a node type does not. Over time a
/// change comes from near nodes.
std::optional<Finding> reach_finding(const Config& config, const MeshReach& reach);

/// The same of a run directory, for doctor. Unknown where its data are no longer there.
HealthCheck examine_reach(const std::filesystem::path& run);

}  // namespace meshgrad
