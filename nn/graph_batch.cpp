// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/halo.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/nn/graph_batch.h>

#include <algorithm>
#include <limits>
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

void check_nodes(const EdgeSet& set, int64_t nodes, const Halo* halo) {
  const int64_t ghosts = halo != nullptr ? halo->ghosts : 0;
  const Graph& graph = set.graph;
  const std::string where = "batch: graph of edge set " + set.name;
  if (set.from_batch && set.to_batch) {
    if (graph.owned_nodes == nodes && graph.nodes == nodes + ghosts) return;
    throw invalid_argument(where, text_of(nodes, ghosts) + " (batch.nodes)",
                           text_of(graph.owned_nodes, graph.nodes - graph.owned_nodes));
  }
  if (halo != nullptr)
    throw invalid_argument(where, "nodes of the batch, a part of a mesh",
                           "edges from or to nodes that are not its own");
  const auto need = [&](const char* which, bool of_batch, int64_t got) {
    if (of_batch && got != nodes)
      throw invalid_argument(where, std::to_string(nodes) + " nodes " + which + " (batch.nodes)",
                             std::to_string(got));
  };
  need("that send", set.from_batch, graph.nodes);
  need("that receive", set.to_batch, graph.owned_nodes);
}

}  // namespace

bool GraphBatch::has_edges(std::string_view name) const {
  return std::ranges::any_of(edge_sets, [&](const EdgeSet& set) { return set.name == name; });
}

const EdgeSet& GraphBatch::edges(std::string_view name) const {
  std::string names;
  for (const EdgeSet& set : edge_sets) {
    if (set.name == name) return set;
    names.append(names.empty() ? "" : ", ").append(set.name);
  }
  throw invalid_argument("batch: edge sets", "one of the name " + std::string(name),
                         names.empty() ? "none" : names);
}

void GraphBatch::check() const {
  need_rows("node_features", node_features, nodes, "of batch.nodes");
  need_rows("node_count", node_count, 1, "batch");
  need_rows("node_keys", node_keys, nodes, "of batch.nodes");
  if (halo != nullptr && halo->owned != nodes) {
    throw invalid_argument("batch: halo", std::to_string(nodes) + " owned nodes (batch.nodes)",
                           std::to_string(halo->owned));
  }
  for (const EdgeSet& set : edge_sets) {
    check_nodes(set, nodes, halo.get());
    need_rows("features of edge set " + set.name, set.features, set.graph.edges, "edge");
    need_rows("weights of edge set " + set.name, set.weights, set.graph.edges, "edge");
  }
  for (const Graph& graph : identifiers) {
    if (halo != nullptr) throw invalid_argument("batch: identifiers", "whole graphs", "a part of a mesh");
    if (graph.edges != nodes)
      throw invalid_argument("batch: identifiers", std::to_string(nodes) + ", one for each of batch.nodes",
                             std::to_string(graph.edges));
  }
  if (!graph_starts.defined()) return;
  if (graph_starts.dtype() != DType::i32 || graph_starts.shape().rank() != 1 || graph_starts.rows() < 1) {
    throw invalid_argument("batch: graph_starts", "i32 [graphs + 1]",
                           std::string(name_of(graph_starts.dtype())) + " " + graph_starts.shape().text());
  }
  if (halo != nullptr)
    throw invalid_argument("batch: graph_starts", "whole graphs",
                           "a part of a mesh, whose nodes are in the "
                           "order of its halo");
}

Tensor make_graph_starts(Runtime& runtime, std::span<const int64_t> nodes) {
  std::vector<int32_t> starts{0};
  for (size_t i = 0; i < nodes.size(); ++i) {
    const int64_t most = std::numeric_limits<int32_t>::max() - starts.back();
    if (nodes[i] < 0 || nodes[i] > most) {
      throw invalid_argument("graph_starts: nodes of graph " + std::to_string(i),
                             "0 to " + std::to_string(most), std::to_string(nodes[i]));
    }
    starts.push_back(starts.back() + static_cast<int32_t>(nodes[i]));
  }
  return Tensor::from<int32_t>(runtime, starts, Shape{std::ssize(starts)}, Tag::data, "graph starts");
}

template <class T>
EdgeSet make_edge_set(Runtime& runtime, std::string name, int64_t nodes, std::span<const int32_t> senders,
                      std::span<const int32_t> receivers, std::span<const T> features, int64_t width) {
  std::vector<int32_t> order;
  EdgeSet set{std::move(name), build_graph(runtime, nodes, senders, receivers, &order), {}};
  if (width < 0 || static_cast<size_t>(width) * order.size() != features.size()) {
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

const EdgeSet& only_edge_set(std::string_view model, const GraphBatch& batch) {
  const std::string place = std::string(model) + ": batch";
  if (batch.edge_sets.size() != 1)
    throw invalid_argument(place, "one edge set", std::to_string(batch.edge_sets.size()));
  if (batch.halo != nullptr) throw invalid_argument(place, "whole graphs", "a part of a mesh");
  const EdgeSet& edges = batch.edge_sets[0];
  if (!edges.from_batch || !edges.to_batch)
    throw invalid_argument(place, "edges between nodes of the batch",
                           edges.name + (edges.from_batch ? ", which ends" : ", which begins") + " outside");
  return edges;
}

}  // namespace meshgrad
