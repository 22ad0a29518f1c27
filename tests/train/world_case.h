// SPDX-License-Identifier: Apache-2.0
// World edges by a plain loop over all pairs, and a run that has them.
#pragma once
#include <meshgrad/train/data/world_edges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "train/moving_data.h"
#include "train/small_run.h"

namespace meshgrad::test {

using Pairs = std::vector<std::pair<int32_t, int32_t>>;  // (receiver, sender), ascending

inline Pairs plain_pairs(const MeshView& mesh, std::span<const float> at, int dim,
                         const WorldEdgeOptions& options) {
  Pairs pairs;
  for (int32_t receiver = 0; receiver < mesh.nodes; ++receiver) {
    for (int32_t sender = 0; sender < mesh.nodes; ++sender) {
      double squares = 0;
      for (int axis = 0; axis < dim; ++axis) {
        const double d = static_cast<double>(at[static_cast<size_t>(sender * dim + axis)]) -
                         static_cast<double>(at[static_cast<size_t>(receiver * dim + axis)]);
        double nearest = std::abs(d);
        const double period = mesh.period[static_cast<size_t>(axis)];
        for (int n = -9; period > 0.0 && n <= 9; ++n) nearest = std::min(nearest, std::abs(d + n * period));
        squares += nearest * nearest;
      }
      bool joined = sender == receiver;
      for (size_t e = 0; e < mesh.senders.size(); ++e)
        joined = joined || (mesh.senders[e] == sender && mesh.receivers[e] == receiver);
      const bool alike =
          mesh.node_type[static_cast<size_t>(sender)] == mesh.node_type[static_cast<size_t>(receiver)];
      if (joined || (options.other_type && alike) || !(squares < options.radius * options.radius)) continue;
      pairs.emplace_back(receiver, sender);
    }
  }
  return pairs;
}

inline Pairs pairs_of(const MeshEdges& edges) {
  Pairs pairs;
  for (size_t e = 0; e < edges.senders.size(); ++e) pairs.emplace_back(edges.receivers[e], edges.senders[e]);
  return pairs;
}

/// Of a plate and the obstacle that the data move.
inline Config world_run(const Moving& data) {
  Config config = small_config(data.scratch.path, data.file);
  config.data.path = data.file.string();
  config.data.inputs = {"stress"};
  config.data.targets = {"world_pos", "stress"};
  config.data.world_position = "world_pos";
  config.data.kinematic_types = {1};
  config.data.predicted_types = {0};
  config.data.world_radius = 0.05;
  config.data.world_pairs = WorldPairs::other_type;
  config.data.world_edges_per_node = 6;
  config.train.noise = 1e-4;
  config.train.steps = 12;
  config.train.accumulate = 1;
  config.train.checkpoint_every = 6;
  return config;
}

}  // namespace meshgrad::test
