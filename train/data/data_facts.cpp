// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <meshgrad/train/data/data_facts.h>

namespace meshgrad {

DataFacts data_facts(const Dataset& dataset) {
  DataFacts facts;
  for (const SplitInfo& split : dataset.splits()) {
    int64_t frames = 0;
    for (int64_t i = 0; i < split.count; ++i) {
      frames += dataset.frames(split.name, i);
      const auto [nodes, edges] = dataset.mesh_sizes(split.name, i);
      const bool first = facts.trajectories++ == 0;
      facts.nodes_min = first ? nodes : std::min(facts.nodes_min, nodes);
      facts.nodes_max = std::max(facts.nodes_max, nodes);
      facts.nodes_mean += static_cast<double>(nodes);
      facts.edges_min = first ? edges : std::min(facts.edges_min, edges);
      facts.edges_max = std::max(facts.edges_max, edges);
      facts.edges_mean += static_cast<double>(edges);
    }
    facts.split_frames.push_back(frames);
    facts.frames += frames;
  }
  const auto count = static_cast<double>(std::max<int64_t>(1, facts.trajectories));
  facts.nodes_mean /= count;
  facts.edges_mean /= count;
  facts.meshes = dataset.meshes();
  facts.dim = dataset.dim();
  facts.directed = dataset.directed();
  facts.dt = dataset.dt();
  facts.fields = dataset.fields();
  facts.splits = dataset.splits();
  facts.statistics_split = dataset.statistics_split();
  for (const double nodes : dataset.node_type_counts())
    facts.node_types.push_back(static_cast<int64_t>(nodes));
  return facts;
}

}  // namespace meshgrad
