// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/halo.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/nn/graph_batch.h>

#include <algorithm>
#include <utility>

namespace meshgrad {
namespace {

void need_rows(const std::string& where, const Tensor& tensor, int64_t rows, std::string_view of) {
  if (!tensor.defined() || tensor.rows() == rows) return;
  throw invalid_argument("batch: " + where, std::to_string(rows) + " rows, one for each " + std::string(of),
                         std::to_string(tensor.rows()));
}

std::string text_of(int64_t nodes, int64_t ghosts) {
  return std::to_string(nodes) + " nodes" +
         (ghosts > 0 ? " and " + std::to_string(ghosts) + " ghosts" : std::string());
}

}  // namespace

void GraphBatch::check() const {
  need_rows("node_features", node_features, nodes, "of batch.nodes");
  bool padded = false;
  if (halo != nullptr && halo->owned != nodes) {
    throw invalid_argument("batch: halo", std::to_string(nodes) + " owned nodes (batch.nodes)",
                           std::to_string(halo->owned));
  }
  const int64_t ghosts = halo != nullptr ? halo->ghosts : 0;
  for (const EdgeSet& set : edge_sets) {
    if (set.graph.owned_nodes != nodes || set.graph.nodes != nodes + ghosts) {
      throw invalid_argument("batch: graph of edge set " + set.name,
                             text_of(nodes, ghosts) + " (batch.nodes)",
                             text_of(set.graph.owned_nodes, set.graph.nodes - set.graph.owned_nodes));
    }
    need_rows("features of edge set " + set.name, set.features, set.graph.edges, "edge");
    padded = padded || set.graph.counts.defined();
  }
  if (graph_offsets.empty()) return;
  const bool ends = padded ? graph_offsets.back() <= nodes : graph_offsets.back() == nodes;
  if (graph_offsets.front() != 0 || !ends || !std::is_sorted(graph_offsets.begin(), graph_offsets.end())) {
    throw invalid_argument(
        "batch: graph_offsets", "ascending offsets from 0 to " + std::to_string(nodes),
        std::to_string(graph_offsets.front()) + " to " + std::to_string(graph_offsets.back()));
  }
}

template <class T>
EdgeSet make_edge_set(Runtime& runtime, std::string name, int64_t nodes, std::span<const int32_t> senders,
                      std::span<const int32_t> receivers, std::span<const T> features, int64_t width) {
  std::vector<int32_t> order;
  EdgeSet set{std::move(name), build_graph(runtime, nodes, senders, receivers, &order), {}};
  if (width < 1 || static_cast<size_t>(width) * order.size() != features.size()) {
    throw invalid_argument("make_edge_set: features of " + set.name,
                           std::to_string(order.size()) + " edges times " + std::to_string(width) + " values",
                           std::to_string(features.size()));
  }
  std::vector<T> sorted;
  sorted.reserve(features.size());
  for (const int32_t edge : order) {
    const auto row =
        features.subspan(static_cast<size_t>(edge) * static_cast<size_t>(width), static_cast<size_t>(width));
    sorted.insert(sorted.end(), row.begin(), row.end());
  }
  set.features = Tensor::from<T>(runtime, sorted, Shape{set.graph.edges, width}, Tag::data, "edge features");
  return set;
}

template EdgeSet make_edge_set(Runtime&, std::string, int64_t, std::span<const int32_t>,
                               std::span<const int32_t>, std::span<const float>, int64_t);
template EdgeSet make_edge_set(Runtime&, std::string, int64_t, std::span<const int32_t>,
                               std::span<const int32_t>, std::span<const double>, int64_t);
template EdgeSet make_edge_set(Runtime&, std::string, int64_t, std::span<const int32_t>,
                               std::span<const int32_t>, std::span<const half>, int64_t);
template EdgeSet make_edge_set(Runtime&, std::string, int64_t, std::span<const int32_t>,
                               std::span<const int32_t>, std::span<const bfloat16>, int64_t);

}  // namespace meshgrad
