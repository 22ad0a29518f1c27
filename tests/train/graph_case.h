// SPDX-License-Identifier: Apache-2.0
// Graphs whose nodes have classes and a split, and runs that learn them.
#pragma once
#include <meshgrad/engine/random.h>

#include <cmath>

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

/// Rings of 3 to 8 nodes with x of 0 or 1 in one NPZ file: graph g has nodes 0, 1, ... of its own. `total` is
/// the sum of x, `label` whether that is 3 or more.
inline NpzArrays small_graphs(int graphs) {
  std::vector<int32_t> node_offsets{0}, edge_offsets{0}, senders, receivers, label;
  std::vector<float> x, total;
  for (int g = 0; g < graphs; ++g) {
    const int nodes = 3 + static_cast<int>(uniform_below(7, 0, static_cast<uint64_t>(g), 6));
    float sum = 0;
    for (int i = 0; i < nodes; ++i) {
      x.push_back(static_cast<float>(uniform_below(7, 1, x.size(), 2)));
      sum += x.back();
      for (const int step : {1, nodes - 1}) {
        senders.push_back((i + step) % nodes);
        receivers.push_back(i);
      }
    }
    node_offsets.push_back(static_cast<int32_t>(x.size()));
    edge_offsets.push_back(static_cast<int32_t>(senders.size()));
    total.push_back(sum);
    label.push_back(sum >= 3 ? 1 : 0);
  }
  const auto shape = [](size_t rows) { return "(" + std::to_string(rows) + ",)"; };
  const std::string edges = "(2, " + std::to_string(senders.size()) + ")";
  senders.insert(senders.end(), receivers.begin(), receivers.end());
  return {{"node_offsets", npy<int32_t>("<i4", shape(node_offsets.size()), node_offsets)},
          {"edge_offsets", npy<int32_t>("<i4", shape(edge_offsets.size()), edge_offsets)},
          {"edge_index", npy<int32_t>("<i4", edges, senders)},
          {"node:x", npy<float>("<f4", shape(x.size()), x)},
          {"graph:total", npy<float>("<f4", shape(total.size()), total)},
          {"graph:label", npy<int32_t>("<i4", shape(label.size()), label)}};
}

/// small_graphs with identifiers on nodes, and fields on edges, the same both ways.
inline NpzArrays rich_graphs(int graphs) {
  NpzArrays arrays = small_graphs(graphs);
  std::vector<int32_t> id, kind;
  std::vector<float> e, pair;
  for (int g = 0; g < graphs; ++g) {
    const int nodes = 3 + static_cast<int>(uniform_below(7, 0, static_cast<uint64_t>(g), 6));
    for (int node = 0; node < nodes; ++node) {
      id.push_back(static_cast<int32_t>(uniform_below(9, 1, id.size(), 10)));
      kind.push_back(static_cast<int32_t>(uniform_below(9, 2, kind.size(), 4)));
      for (const int step : {1, nodes - 1}) {  // the lower end of an edge gives its number
        const int low = step == 1 ? node : (node + step) % nodes;
        const auto number = static_cast<float>(100 * g + low);
        e.push_back(std::sin(number));
        pair.insert(pair.end(), {std::cos(number), std::sin(2 * number)});
      }
    }
  }
  const auto shape = [](size_t rows) { return "(" + std::to_string(rows) + ",)"; };
  arrays["node:id"] = npy<int32_t>("<i4", shape(id.size()), id);
  arrays["node:kind"] = npy<int32_t>("<i4", shape(kind.size()), kind);
  arrays["edge:e"] = npy<float>("<f4", shape(e.size()), e);
  arrays["edge:pair"] = npy<float>("<f4", "(" + std::to_string(e.size()) + ", 2)", pair);
  return arrays;
}

inline std::filesystem::path pack_graphs(const std::filesystem::path& folder, const NpzArrays& arrays,
                                         bool directed = true) {
  write_npz(folder / "graphs.npz", arrays, false);
  ConvertOptions options;
  options.input = folder / "graphs.npz";
  options.output = folder / "graphs.mgd";
  options.split = {0.6, 0.2, 0.2};
  options.directed = directed;
  convert(options);
  return options.output;
}

inline Config graph_config(const std::filesystem::path& folder, const std::filesystem::path& data,
                           TaskName task) {
  Config config = class_config(folder, data);
  config.task.name = task;
  config.data.targets = {task == TaskName::graph_regression ? "total" : "label"};
  config.train.batch = 8;
  config.train.steps = 60;
  config.train.validate_samples = 0;
  config.model.pool = GraphPool::sum;
  return config;
}

}  // namespace meshgrad::test
