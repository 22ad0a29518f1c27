// SPDX-License-Identifier: Apache-2.0
// Graphs whose nodes have classes and a split, and runs that learn them.
#pragma once
#include <meshgrad/engine/random.h>

#include "train/npz_arrays.h"
#include "train/small_run.h"

namespace meshgrad::test {

template <class T>
NpzArrays graph_arrays(const std::vector<int32_t>& edges, const std::vector<float>& x,
                       const std::vector<T>& label, const std::vector<uint8_t>& split) {
  const std::string nodes = "(" + std::to_string(split.size()) + ",)";
  const auto mask = [&](uint8_t which) {
    std::vector<uint8_t> values;
    for (const uint8_t s : split) values.push_back(s == which ? 1 : 0);
    return npy<uint8_t>("|b1", nodes, values);
  };
  const std::string width = std::to_string(x.size() / split.size());
  return {{"edges", npy<int32_t>("<i4", "(" + std::to_string(edges.size() / 2) + ", 2)", edges)},
          {"x", npy<float>("<f4", "(" + std::to_string(split.size()) + ", " + width + ")", x)},
          {"label", npy<T>(sizeof(T) == 4 ? "<i4" : "<i8", nodes, label)},
          {"train_mask", mask(1)},
          {"valid_mask", mask(2)},
          {"test_mask", mask(3)}};
}

inline std::filesystem::path pack_graph(const std::filesystem::path& folder, const NpzArrays& arrays) {
  write_npz(folder / "graph.npz", arrays, false);
  ConvertOptions options;
  options.input = folder / "graph.npz";
  options.output = folder / "graph.mgd";
  options.split = {1.0};
  options.directed = true;
  convert(options);
  return options.output;
}

inline Config class_config(const std::filesystem::path& folder, const std::filesystem::path& data) {
  Config config = small_config(folder, data);
  config.task.name = TaskName::node_classification;
  config.data.inputs = {"x"};
  config.data.targets = {"label"};
  config.train.noise = 0.0;
  config.train.batch = 1;
  config.train.accumulate = 1;
  config.train.steps = 40;
  config.model.width = 8;
  config.optimizer.lr = 1e-2;
  config.schedule.final_lr = 1e-3;
  return config;
}

/// Two rings of nodes with noisy features; a node's class is its ring, which its neighbours tell.
inline std::filesystem::path pack_rings(const std::filesystem::path& folder, int nodes = 40) {
  std::vector<int32_t> edges, label;
  std::vector<float> x;
  std::vector<uint8_t> split;
  for (int i = 0; i < nodes; ++i) {
    const int ring = i % 2;
    for (const int step : {2, nodes - 2}) {
      edges.push_back(i);
      edges.push_back((i + step) % nodes);
    }
    label.push_back(ring);
    const double noise = normal(5, 0, static_cast<uint64_t>(i));
    x.push_back(static_cast<float>(ring - 0.5 + 0.5 * noise));
    x.push_back(static_cast<float>(normal(5, 1, static_cast<uint64_t>(i))));
    split.push_back(static_cast<uint8_t>(1 + i / 2 % 3));
  }
  return pack_graph(folder, graph_arrays<int32_t>(edges, x, label, split));
}

}  // namespace meshgrad::test
