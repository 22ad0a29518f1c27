// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/offsets.h>
#include <meshgrad/kernels/graph.h>

#include <fmt/format.h>

#include <numeric>

namespace meshgrad {
namespace {

/// Counting sort: offsets [keys + 1] and the stable order of `values` by key.
void counting_sort(std::span<const int32_t> values, int64_t keys, std::vector<int32_t>& offsets,
                   std::vector<int32_t>& order) {
  offsets.assign(static_cast<size_t>(keys) + 1, 0);
  for (const int32_t value : values) ++offsets[static_cast<size_t>(value) + 1];
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  std::vector<int32_t> next(offsets.begin(), offsets.end() - 1);
  order.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    order[static_cast<size_t>(next[static_cast<size_t>(values[i])]++)] = static_cast<int32_t>(i);
  }
}

Tensor index_tensor(Runtime& runtime, const std::vector<int32_t>& values, std::string_view name) {
  return Tensor::from<int32_t>(runtime, values, Shape{static_cast<int64_t>(values.size())}, Tag::data, name);
}

void check_offsets(std::span<const int32_t> offsets, int64_t edges, std::string_view name) {
  const std::string fault = find_offset_fault(offsets, edges);
  if (fault.empty()) return;
  throw invalid_argument(fmt::format("graph: {}", name), fmt::format("ascending offsets from 0 to {}", edges),
                         fault);
}

void check_size(const Tensor& numbers, int64_t needed, std::string_view name) {
  if (numbers.elements() == needed) return;
  throw invalid_argument(fmt::format("graph: {}", name), fmt::format("{} numbers", needed),
                         fmt::format("{}", numbers.elements()));
}

}  // namespace

Graph build_graph(Runtime& runtime, int64_t nodes, std::span<const int32_t> senders,
                  std::span<const int32_t> receivers, std::vector<int32_t>* order) {
  return build_bipartite_graph(runtime, nodes, nodes, senders, receivers, order);
}

Graph build_bipartite_graph(Runtime& runtime, int64_t nodes, int64_t owned_nodes,
                            std::span<const int32_t> senders, std::span<const int32_t> receivers,
                            std::vector<int32_t>* order) {
  if (senders.size() != receivers.size()) {
    throw invalid_argument("graph", fmt::format("as many receivers as senders ({})", senders.size()),
                           fmt::format("{}", receivers.size()));
  }
  for (size_t i = 0; i < senders.size(); ++i) {
    if (senders[i] < 0 || senders[i] >= nodes || receivers[i] < 0 || receivers[i] >= owned_nodes) {
      std::string needed = fmt::format("nodes in 0 .. {}", nodes - 1);
      if (owned_nodes != nodes) needed += fmt::format(" to nodes in 0 .. {}", owned_nodes - 1);
      throw invalid_argument(fmt::format("graph: edge {}", i), needed,
                             fmt::format("{} -> {}", senders[i], receivers[i]));
    }
  }
  std::vector<int32_t> receiver_offsets, by_receiver, sender_offsets, sender_order;
  counting_sort(receivers, owned_nodes, receiver_offsets, by_receiver);
  std::vector<int32_t> sorted_senders(senders.size()), sorted_receivers(senders.size());
  for (size_t i = 0; i < by_receiver.size(); ++i) {
    sorted_senders[i] = senders[static_cast<size_t>(by_receiver[i])];
    sorted_receivers[i] = receivers[static_cast<size_t>(by_receiver[i])];
  }
  counting_sort(sorted_senders, nodes, sender_offsets, sender_order);
  Graph graph;
  graph.nodes = nodes;
  graph.owned_nodes = owned_nodes;
  graph.edges = static_cast<int64_t>(senders.size());
  graph.senders = index_tensor(runtime, sorted_senders, "senders");
  graph.receivers = index_tensor(runtime, sorted_receivers, "receivers");
  graph.receiver_offsets = index_tensor(runtime, receiver_offsets, "receiver_offsets");
  graph.sender_offsets = index_tensor(runtime, sender_offsets, "sender_offsets");
  graph.sender_order = index_tensor(runtime, sender_order, "sender_order");
  if (order != nullptr) *order = std::move(by_receiver);
  return graph;
}

void check_graph(const Graph& graph) {
  check_size(graph.senders, graph.edges, "senders");
  check_size(graph.receivers, graph.edges, "receivers");
  check_size(graph.sender_order, graph.edges, "sender_order");
  check_size(graph.receiver_offsets, graph.owned_nodes + 1, "receiver_offsets");
  check_size(graph.sender_offsets, graph.nodes + 1, "sender_offsets");
  const auto senders = graph.senders.values<int32_t>();
  const auto receivers = graph.receivers.values<int32_t>();
  const auto order = graph.sender_order.values<int32_t>();
  const auto receiver_offsets = graph.receiver_offsets.values<int32_t>();
  const auto sender_offsets = graph.sender_offsets.values<int32_t>();
  check_offsets(receiver_offsets, graph.edges, "receiver_offsets");
  check_offsets(sender_offsets, graph.edges, "sender_offsets");
  for (size_t e = 0; e < senders.size(); ++e) {
    const bool inside = senders[e] >= 0 && senders[e] < graph.nodes && receivers[e] >= 0 &&
                        receivers[e] < graph.owned_nodes && order[e] >= 0 && order[e] < graph.edges;
    if (!inside || static_cast<int64_t>(e) < receiver_offsets[static_cast<size_t>(receivers[e])] ||
        static_cast<int64_t>(e) >= receiver_offsets[static_cast<size_t>(receivers[e]) + 1]) {
      throw invalid_argument(
          fmt::format("graph: edge {}", e), "edges in order of receiver, nodes in range",
          fmt::format("{} -> {}, number {} by sender", senders[e], receivers[e], order[e]));
    }
  }
  std::vector<bool> seen(senders.size());
  for (int64_t s = 0; s < graph.nodes; ++s) {
    for (int32_t i = sender_offsets[static_cast<size_t>(s)]; i < sender_offsets[static_cast<size_t>(s) + 1];
         ++i) {
      const auto e = static_cast<size_t>(order[static_cast<size_t>(i)]);
      if (senders[e] != s || seen[e]) {
        throw invalid_argument("graph: sender_order", "each edge once, in order of sender",
                               fmt::format("edge {}", e));
      }
      seen[e] = true;
    }
  }
}

}  // namespace meshgrad
