// SPDX-License-Identifier: Apache-2.0
// World edges by a plain loop over all pairs, and a run that has them.
#pragma once
#include <meshgrad/train/data/world_edges.h>
#include <meshgrad/train/embed/mesh_predictor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
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

/// What a prediction says of three rows of nodes of which the second, 1500 nodes, has collapsed into a point;
/// "" when it says nothing.
inline std::string refusal_of_rows(Runtime& runtime, const std::string& checkpoint, int32_t last_nodes) {
  struct Row {
    std::vector<float> positions, stress;
    std::vector<int32_t> first, second;

    explicit Row(int32_t nodes) : stress(static_cast<size_t>(nodes)) {
      for (int32_t node = 0; node < nodes; ++node) {
        for (const float x : {static_cast<float>(node), 0.0F, 0.0F}) positions.push_back(x);
        if (node > 0) first.push_back(node - 1), second.push_back(node);
      }
    }
    MeshArrays arrays() const { return {.positions = positions, .first = first, .second = second}; }
  };
  const std::array<Row, 3> rows{Row(100), Row(1500), Row(last_nodes)};
  MeshPredictor predictor(runtime, checkpoint);
  predictor.set_meshes(std::array{rows[0].arrays(), rows[1].arrays(), rows[2].arrays()});
  const std::vector<float> collapsed(rows[1].positions.size());
  for (size_t mesh = 0; mesh < 3; ++mesh) {
    const auto number = static_cast<int64_t>(mesh);
    predictor.set_field("world_pos", mesh == 1 ? collapsed : rows[mesh].positions, number);
    predictor.set_field("stress", rows[mesh].stress, number);
  }
  return message_of([&] { predictor.predict(); });
}

}  // namespace meshgrad::test
