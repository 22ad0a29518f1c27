// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "support.h"

namespace meshgrad::test {
namespace {

std::vector<int32_t> values_of(const Tensor& tensor) {
  const auto values = tensor.values<int32_t>();
  return {values.begin(), values.end()};
}

TEST_CASE("graph of three nodes, by hand") {
  Runtime runtime = make_runtime();
  const std::vector<int32_t> senders = {0, 2, 1, 1}, receivers = {1, 0, 0, 1};
  std::vector<int32_t> order;
  const Graph graph = build_graph(runtime, 3, senders, receivers, &order);
  CHECK(graph.nodes == 3);
  CHECK(graph.owned_nodes == 3);
  CHECK(graph.edges == 4);
  CHECK(values_of(graph.senders) == std::vector<int32_t>{2, 1, 0, 1});
  CHECK(values_of(graph.receivers) == std::vector<int32_t>{0, 0, 1, 1});
  CHECK(order == std::vector<int32_t>{1, 2, 0, 3});
  CHECK(values_of(graph.receiver_offsets) == std::vector<int32_t>{0, 2, 4, 4});
  CHECK(values_of(graph.sender_offsets) == std::vector<int32_t>{0, 1, 3, 4});
  CHECK(values_of(graph.sender_order) == std::vector<int32_t>{2, 1, 3, 0});
  CHECK_NOTHROW(check_graph(graph));
}

TEST_CASE("random graphs keep their edges, in the order documented") {
  Runtime runtime = make_runtime();
  uint64_t seed = 1400;
  for (const int64_t nodes : awkward_sizes()) {
    for (const int64_t edges : awkward_sizes()) {
      if (nodes == 0 && edges > 0) continue;
      RandomMatrices random(seed++);
      CAPTURE(nodes);
      CAPTURE(edges);
      CAPTURE(random.seed());
      const std::vector<int32_t> senders = edges > 0 ? random.indices(edges, nodes) : std::vector<int32_t>{};
      const std::vector<int32_t> receivers =
          edges > 0 ? random.indices(edges, nodes) : std::vector<int32_t>{};
      std::vector<int32_t> order;
      const Graph graph = build_graph(runtime, nodes, senders, receivers, &order);
      CHECK_NOTHROW(check_graph(graph));
      const auto sorted_senders = values_of(graph.senders), sorted_receivers = values_of(graph.receivers);
      bool same_edges = true, stable = true;
      for (size_t e = 0; e < order.size(); ++e) {
        const auto from = static_cast<size_t>(order[e]);
        same_edges =
            same_edges && sorted_senders[e] == senders[from] && sorted_receivers[e] == receivers[from];
        stable =
            stable && (e == 0 || sorted_receivers[e - 1] < sorted_receivers[e] || order[e - 1] < order[e]);
      }
      CHECK(same_edges);
      CHECK(stable);
      CHECK(std::set<int32_t>(order.begin(), order.end()).size() == static_cast<size_t>(edges));
      const auto by_sender = values_of(graph.sender_order);
      const bool ascending = std::is_sorted(by_sender.begin(), by_sender.end(), [&](int32_t a, int32_t b) {
        return std::pair(sorted_senders[static_cast<size_t>(a)], a) <
               std::pair(sorted_senders[static_cast<size_t>(b)], b);
      });
      CHECK(ascending);
    }
  }
}

TEST_CASE("build_graph names the edge that points outside") {
  Runtime runtime = make_runtime();
  const auto error = [&](std::vector<int32_t> senders, std::vector<int32_t> receivers) {
    return invalid_argument_text([&] { build_graph(runtime, 5, senders, receivers); });
  };
  CHECK(error({0, 4}, {4, 0}) == "");
  std::string text = error({0, 5}, {4, 0});
  CHECK_MESSAGE((contains(text, "edge 1") && contains(text, "0 .. 4") && contains(text, "5 -> 0")), text);
  text = error({0, 1}, {-1, 0});
  CHECK_MESSAGE((contains(text, "edge 0") && contains(text, "0 -> -1")), text);
  text = error({0, 1}, {0});
  CHECK_MESSAGE((contains(text, "(2)") && contains(text, "got 1")), text);
}

TEST_CASE("check_graph refuses a graph with one thing wrong") {
  Runtime runtime = make_runtime();
  RandomMatrices random(71);
  const reference::Edges edges = random_edges(random, 31, 127);
  const auto error = [&](auto&& change) {
    Graph graph = to_graph(runtime, edges);
    change(graph);
    return invalid_argument_text([&] { check_graph(graph); });
  };
  CHECK(error([](Graph&) {}) == "");
  CHECK(error([](Graph& g) { g.edges = 126; }) != "");
  CHECK(error([](Graph& g) { g.nodes = 30; }) != "");
  CHECK(error([](Graph& g) { g.owned_nodes = 32; }) != "");
  CHECK(error([](Graph& g) { g.senders.values<int32_t>()[17] = 31; }) != "");
  CHECK(error([](Graph& g) { g.senders.values<int32_t>()[17] = -1; }) != "");
  CHECK(error([](Graph& g) { ++g.receivers.values<int32_t>()[60]; }) != "");
  CHECK(error([](Graph& g) { --g.receiver_offsets.values<int32_t>()[31]; }) != "");
  CHECK(error([](Graph& g) { g.receiver_offsets.values<int32_t>()[3] = 127; }) != "");
  CHECK(error([](Graph& g) { ++g.sender_offsets.values<int32_t>()[15]; }) != "");
  CHECK(error([](Graph& g) { g.sender_order.values<int32_t>()[5] = 127; }) != "");
  CHECK(error([](Graph& g) { g.sender_order.values<int32_t>()[5] = g.sender_order.values<int32_t>()[6]; }) !=
        "");
  const std::string text = error(
      [](Graph& g) { std::swap(g.receivers.values<int32_t>()[0], g.receivers.values<int32_t>()[126]); });
  CHECK_MESSAGE((contains(text, "graph: edge 0") && contains(text, "receiver")), text);
}

TEST_CASE("random_edges has what its users count on") {
  RandomMatrices random(72);
  const reference::Edges edges = random_edges(random, 61, 400);
  CHECK(edges.receivers.size() == 400);
  CHECK(std::is_sorted(edges.receivers.begin(), edges.receivers.end()));
  CHECK(std::count(edges.receivers.begin(), edges.receivers.end(), 30) >= 50);
  CHECK(std::count(edges.receivers.begin(), edges.receivers.end(), 60) == 0);
  CHECK(std::count(edges.senders.begin(), edges.senders.end(), 60) == 0);
  int loops = 0;
  for (size_t e = 0; e < 400; ++e) loops += edges.senders[e] == edges.receivers[e] ? 1 : 0;
  CHECK(loops > 0);
}

}  // namespace
}  // namespace meshgrad::test
