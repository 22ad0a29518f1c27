// SPDX-License-Identifier: Apache-2.0
// A mesh split over ranks: who owns what, and that the parts together are the mesh.
#include <doctest/doctest.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/nn/partition/part.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <numeric>
#include <set>
#include <thread>
#include <utility>

#include "allocator_recount.h"
#include "partition_case.h"
#include "support.h"

using namespace meshgrad;
using namespace meshgrad::test;

namespace {

std::vector<Part> all_parts(const std::vector<int32_t>& owners, int64_t parts,
                            const std::vector<SortedEdges>& sets) {
  std::vector<Part> made;
  for (int32_t rank = 0; rank < parts; ++rank) made.push_back(make_part(owners, rank, parts, sets));
  return made;
}

/// Edges in any order, sorted by receiver.
struct EdgeList {
  std::vector<int32_t> senders, receivers, offsets;
  EdgeList(int64_t nodes, const std::vector<std::pair<int32_t, int32_t>>& pairs) {
    auto sorted = pairs;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.second < b.second; });
    offsets.assign(static_cast<size_t>(nodes) + 1, 0);
    for (const auto& [sender, receiver] : sorted) {
      senders.push_back(sender);
      receivers.push_back(receiver);
      ++offsets[static_cast<size_t>(receiver) + 1];
    }
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  }
  SortedEdges view() const { return {senders, offsets}; }
};

EdgeList random_edges(int64_t nodes, int64_t edges, uint64_t seed, bool hubs) {
  std::vector<std::pair<int32_t, int32_t>> pairs;
  const auto draw = [&](uint64_t purpose, int64_t i) {
    return static_cast<int32_t>(
        uniform_below(seed, purpose, static_cast<uint64_t>(i), static_cast<uint64_t>(nodes)));
  };
  for (int64_t i = 0; i < edges; ++i) {
    // A hub sends to half of the receivers and receives from half of the senders.
    const int32_t sender = hubs && i % 4 == 0 ? 0 : draw(1, i);
    const int32_t receiver = hubs && i % 4 == 1 ? 0 : draw(2, i);
    pairs.emplace_back(sender, receiver);
  }
  return EdgeList(nodes, pairs);
}

/// The part's rows of the whole mesh name the same edges.
void check_edges(const Part& part, const PartEdges& edges, const EdgeList& whole) {
  REQUIRE(edges.senders.size() == edges.rows.size());
  REQUIRE(edges.receivers.size() == edges.rows.size());
  for (size_t e = 0; e < edges.rows.size(); ++e) {
    const auto row = static_cast<size_t>(edges.rows[e]);
    CHECK(part.nodes[static_cast<size_t>(edges.senders[e])] == whole.senders[row]);
    CHECK(part.nodes[static_cast<size_t>(edges.receivers[e])] == whole.receivers[row]);
    if (static_cast<int64_t>(e) < edges.interior) CHECK(edges.senders[e] < part.owned);
    if (static_cast<int64_t>(e) < edges.interior) CHECK(edges.receivers[e] < part.interior);
  }
}

/// What `from` sends to `to`, as rows of the whole mesh; and the ghosts that `to` has of it.
std::vector<int32_t> sent_rows(const Part& from, int32_t to) {
  auto at = from.sent.begin();
  for (const Neighbour& neighbour : from.neighbours) {
    std::vector<int32_t> rows;
    for (int64_t i = 0; i < neighbour.sent; ++i) rows.push_back(from.nodes[static_cast<size_t>(*at++)]);
    if (neighbour.rank == to) return rows;
  }
  return {};
}
std::vector<int32_t> ghost_rows(const Part& of, int32_t from) {
  auto at = of.nodes.begin() + of.owned;
  for (const Neighbour& neighbour : of.neighbours) {
    const std::vector<int32_t> rows(at, at + neighbour.ghosts);
    at += neighbour.ghosts;
    if (neighbour.rank == from) return rows;
  }
  return {};
}

void check_parts(const std::vector<int32_t>& owners, int64_t parts, const std::vector<EdgeList>& lists) {
  std::vector<SortedEdges> sets;
  for (const EdgeList& list : lists) sets.push_back(list.view());
  const std::vector<Part> made = all_parts(owners, parts, sets);
  Runtime runtime = make_runtime(1);
  std::vector<int> node_seen(owners.size(), 0);
  std::vector<std::vector<int>> edge_seen;
  for (const EdgeList& list : lists) edge_seen.emplace_back(list.senders.size(), 0);
  for (const Part& part : made) {
    for (int64_t i = 0; i < part.owned; ++i) {
      const auto row = static_cast<size_t>(part.nodes[static_cast<size_t>(i)]);
      ++node_seen[row];
      CHECK(owners[row] == part.rank);
    }
    std::set<int32_t> needed;
    for (size_t s = 0; s < lists.size(); ++s) {
      check_edges(part, part.edge_sets[s], lists[s]);
      for (const int32_t row : part.edge_sets[s].rows) ++edge_seen[s][static_cast<size_t>(row)];
      for (const int32_t sender : part.edge_sets[s].senders)
        if (sender >= part.owned) needed.insert(sender);
      check_graph(part_graph(runtime, part, s));
    }
    CHECK(static_cast<int64_t>(needed.size()) == part.ghosts());  // each is needed
    for (const Part& other : made) CHECK(sent_rows(part, other.rank) == ghost_rows(other, part.rank));
    for (const int32_t node : part.sent) CHECK(node >= part.interior);
  }
  CHECK(std::all_of(node_seen.begin(), node_seen.end(), [](int times) { return times == 1; }));
  for (const auto& seen : edge_seen)
    CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
}

}  // namespace

TEST_CASE("bisection cuts the longest side in proportion") {
  // Four nodes in a row along x; y is shorter.
  const std::vector<float> row{3, 0, 0, 1, 2, 0, 1, 1};
  const std::vector<int32_t> even{1, 1, 1, 1};
  CHECK(bisect_coordinates(row, 2, even, 1) == std::vector<int32_t>{0, 0, 0, 0});
  CHECK(bisect_coordinates(row, 2, even, 2) == std::vector<int32_t>{1, 0, 1, 0});
  CHECK(bisect_coordinates(row, 2, even, 4) == std::vector<int32_t>{3, 0, 2, 1});
  const std::vector<int32_t> heavy{3, 1, 1, 1};  // the node at x = 3 weighs as much as the others
  CHECK(bisect_coordinates(row, 2, heavy, 2) == std::vector<int32_t>{1, 0, 0, 0});
  // More parts than nodes: some are empty. Nodes in one place: still assigned, by number.
  const std::vector<int32_t> many = bisect_coordinates(row, 2, even, 7);
  CHECK(std::set<int32_t>(many.begin(), many.end()).size() == 4);
  const std::vector<float> same(8, 0.5F);
  CHECK(bisect_coordinates(same, 2, even, 2) == std::vector<int32_t>{0, 0, 1, 1});
  CHECK(bisect_coordinates({}, 2, {}, 3).empty());
}

TEST_CASE("bisection balances work, however many parts") {
  const MeshCase mesh = square_mesh(61);
  const std::vector<SortedEdges> sets{mesh.view()};
  const std::vector<int32_t> weights = node_weights(sets, mesh.nodes);
  const int64_t total = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  CHECK(total == mesh.nodes + static_cast<int64_t>(mesh.senders.size()));
  for (const int64_t parts : {2, 3, 5, 8, 13}) {
    const std::vector<int32_t> owners = bisect_coordinates(mesh.positions, 2, weights, parts);
    std::vector<int64_t> work(static_cast<size_t>(parts), 0);
    for (size_t i = 0; i < owners.size(); ++i) work[static_cast<size_t>(owners[i])] += weights[i];
    CAPTURE(parts);
    // Each of at most 4 cuts is off by half a node's weight.
    CHECK(*std::max_element(work.begin(), work.end()) - total / parts <= 16);
    CHECK(total / parts - *std::min_element(work.begin(), work.end()) <= 16);
  }
}

TEST_CASE("METIS balances work and cuts no more than bisection does") {
  if (!metis_available()) {
    CHECK_THROWS_WITH_AS(metis_owners({}, {}, 2), doctest::Contains("MESHGRAD_METIS"), ConfigError);
    return;
  }
  const MeshCase mesh = square_mesh(61);
  const std::vector<SortedEdges> sets{mesh.view()};
  const std::vector<int32_t> weights = node_weights(sets, mesh.nodes);
  const auto ghosts = [&](const std::vector<int32_t>& owners) {
    int64_t sum = 0;
    for (const Part& part : all_parts(owners, 4, sets)) sum += part.ghosts();
    return sum;
  };
  const std::vector<int32_t> owners = metis_owners(sets, weights, 4);
  CHECK(owners == metis_owners(sets, weights, 4));
  std::vector<int64_t> work(4, 0);
  for (size_t i = 0; i < owners.size(); ++i) work[static_cast<size_t>(owners[i])] += weights[i];
  const int64_t total = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  CHECK(*std::max_element(work.begin(), work.end()) <= total / 4 * 105 / 100);
  CHECK(ghosts(owners) <= ghosts(bisect_coordinates(mesh.positions, 2, weights, 4)) * 12 / 10);
  // Fewer nodes than parts; a node connected only with itself; one direction only.
  const EdgeList odd(3, {{0, 0}, {0, 1}});
  CHECK(metis_owners(std::vector{odd.view()}, std::vector<int32_t>{1, 1, 1}, 5) ==
        std::vector<int32_t>{0, 1, 2});
  check_parts(metis_owners(std::vector{odd.view()}, std::vector<int32_t>{1, 1, 1}, 2), 2, {odd});
}

TEST_CASE("METIS gives the same parts to threads that ask at once") {
  if (!metis_available()) return;
  const EdgeList edges = random_edges(3000, 12000, 5, false);
  const std::vector<SortedEdges> sets{edges.view()};
  const std::vector<int32_t> weights(3000, 1);
  const std::vector<int32_t> alone = metis_owners(sets, weights, 3);
  std::vector<std::vector<int32_t>> together(4);
  std::vector<std::thread> threads;
  for (std::vector<int32_t>& owners : together)
    threads.emplace_back([&] { owners = metis_owners(sets, weights, 3); });
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<int32_t>& owners : together) CHECK(owners == alone);
}

TEST_CASE("parts by hand: a path of four nodes on two ranks") {
  // 0 - 1 | 2 - 3, both directions, sorted by receiver: 1>0, 0>1 2>1, 1>2 3>2, 2>3.
  const EdgeList path(4, {{1, 0}, {0, 1}, {2, 1}, {1, 2}, {3, 2}, {2, 3}});
  const std::vector<int32_t> owners{0, 0, 1, 1};
  const std::vector<SortedEdges> sets{path.view()};
  const Part part = make_part(owners, 1, 2, sets);
  CHECK(part.owned == 2);
  CHECK(part.interior == 1);
  CHECK(part.nodes == std::vector<int32_t>{3, 2, 1});  // interior, border, ghost
  CHECK(part.sent == std::vector<int32_t>{1});
  CHECK(part.neighbours == std::vector<Neighbour>{{0, 1, 1}});
  const PartEdges& edges = part.edge_sets.front();
  CHECK(edges.rows == std::vector<int32_t>{5, 3, 4});
  CHECK(edges.senders == std::vector<int32_t>{1, 2, 0});
  CHECK(edges.receivers == std::vector<int32_t>{0, 1, 1});
  CHECK(edges.interior == 1);
  CHECK(exchanged_bytes(part, 128, DType::f32) == 2 * 2 * 128 * 4);
}

TEST_CASE("parts together are the mesh") {
  for (const uint64_t seed : {1, 2, 3}) {
    for (const int64_t parts : {1, 2, 3, 8}) {
      const int64_t nodes = 90;
      std::vector<int32_t> owners;
      for (int64_t i = 0; i < nodes; ++i) {
        // Rank 1 of many owns nothing.
        const auto rank = static_cast<int32_t>(
            uniform_below(seed, 9, static_cast<uint64_t>(i), static_cast<uint64_t>(parts)));
        owners.push_back(parts > 2 && rank == 1 ? 0 : rank);
      }
      CAPTURE(parts);
      check_parts(owners, parts, {random_edges(nodes, 300, seed, false)});
      check_parts(owners, parts,
                  {random_edges(nodes, 200, seed, true), random_edges(nodes, 50, seed + 5, false),
                   EdgeList(nodes, {})});
      check_parts(owners, parts, {random_edges(nodes, 40, seed, false)});  // many nodes alone
    }
  }
  check_parts({}, 4, {EdgeList(0, {})});
}

TEST_CASE("what does not fit is refused") {
  const EdgeList path(2, {{1, 0}, {0, 1}});
  const std::vector<SortedEdges> sets{path.view()};
  CHECK_THROWS_WITH_AS(make_part(std::vector<int32_t>{0, 2}, 0, 2, sets), doctest::Contains("node 1"),
                       InvalidArgument);
  CHECK_THROWS_AS(make_part(std::vector<int32_t>{0, 1}, 2, 2, sets), InvalidArgument);
  CHECK_THROWS_AS(make_part(std::vector<int32_t>{0, 1, 0}, 0, 2, sets), InvalidArgument);
  CHECK_THROWS_AS(check_owners({}, 0, 0), InvalidArgument);
  CHECK_THROWS_AS(check_owners({}, 1, 1), InvalidArgument);
  const std::vector<int32_t> far{7, 0};
  const std::vector<SortedEdges> outside{{far, path.offsets}};
  CHECK_THROWS_AS(make_part(std::vector<int32_t>{0, 1}, 0, 2, outside), InvalidArgument);
  const std::vector<float> at{0.0F, NAN};
  CHECK_THROWS_AS(bisect_coordinates(at, 1, std::vector<int32_t>{1, 1}, 2), InvalidArgument);
  CHECK_THROWS_AS(bisect_coordinates(at, 2, std::vector<int32_t>{1, 1}, 2), InvalidArgument);
  CHECK_THROWS_AS(bisect_coordinates(std::vector<float>{0, 1}, 1, std::vector<int32_t>{1, -1}, 2),
                  InvalidArgument);
}

TEST_CASE("a mesh of a million nodes is cut into 4 parts in 3 s") {
  const int64_t scale = kSanitizer ? 10 : 1;  // then only that it works
  // Of the CPU: on one thread these are seconds, which other programs do not lengthen.
  const auto seconds = [](int64_t side) {
    const MeshCase mesh = square_mesh(side);
    const std::vector<SortedEdges> sets{mesh.view()};
    const std::clock_t begin = std::clock();
    const std::vector<int32_t> weights = node_weights(sets, mesh.nodes);
    const std::vector<int32_t> owners = bisect_coordinates(mesh.positions, 2, weights, 4);
    const std::vector<Part> parts = all_parts(owners, 4, sets);
    CHECK(parts.size() == 4);
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  const double small = seconds(316 / scale), large = seconds(1000 / scale);
  MESSAGE("set-up of all 4 parts by bisection: " << small << " s for 100k nodes, " << large << " s for 1M");
  CHECK(large < 3.0);
  if (!kSanitizer) CHECK(large / 1e6 < 3.0 * small / (316.0 * 316.0));
}
