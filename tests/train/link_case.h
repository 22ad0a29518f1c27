// SPDX-License-Identifier: Apache-2.0
// Graphs with links inside of groups of nodes, which their features tell, and runs that reconstruct them.
#pragma once
#include "train/graph_case.h"

namespace meshgrad::test {

/// One graph; node i belongs to group i modulo `groups`.
inline std::filesystem::path pack_groups(const std::filesystem::path& folder, int nodes = 60,
                                         int groups = 4) {
  std::vector<int32_t> edges, label;
  std::vector<float> x;
  std::vector<uint8_t> split;
  for (int i = 0; i < nodes; ++i) {
    for (int j = 0; j < i; ++j) {
      if (i % groups != j % groups ||
          uniform_below(9, static_cast<uint64_t>(i), static_cast<uint64_t>(j), 2) == 0)
        continue;
      edges.insert(edges.end(), {i, j, j, i});
    }
    for (int c = 0; c < groups; ++c)
      x.push_back(static_cast<float>((i % groups == c ? 1.0 : 0.0) +
                                     0.3 * normal(9, static_cast<uint64_t>(i), static_cast<uint64_t>(c))));
    label.push_back(0);
    split.push_back(static_cast<uint8_t>(1 + i % 3));
  }
  return pack_graph(folder, graph_arrays<int32_t>(edges, x, label, split));
}

inline Config link_config(const std::filesystem::path& folder, const std::filesystem::path& data) {
  Config config = class_config(folder, data);
  config.task.name = TaskName::link_reconstruction;
  config.data.targets.clear();
  config.model.name = ModelName::vgae;
  config.model.width = 8;
  config.model.blocks = 1;
  config.model.hidden_layers = 1;
  config.model.vgae.latent = 4;
  config.normalize.mode = NormalizeMode::none;
  config.train.steps = 80;
  config.optimizer.lr = 2e-2;
  config.schedule.final_lr = 2e-3;
  return config;
}

/// Rings of 3 to 8 nodes without directions.
inline Config many_links_config(const std::filesystem::path& folder, NpzArrays arrays) {
  write_npz(folder / "graphs.npz", arrays, false);
  ConvertOptions options;
  options.input = folder / "graphs.npz";
  options.output = folder / "graphs.mgd";
  options.split = {0.6, 0.2, 0.2};
  options.directed = false;
  convert(options);
  Config config = link_config(folder, options.output);
  config.train.batch = 4;
  config.train.steps = 30;
  config.train.validate_samples = 0;
  return config;
}

}  // namespace meshgrad::test
