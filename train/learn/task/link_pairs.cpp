// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/random.h>
#include <meshgrad/train/learn/task/link_pairs.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace meshgrad {
namespace {

/// Pair `index` of all pairs: (0, 1), (0, 2), (1, 2), (0, 3), ...
NodePair pair_at(uint64_t index) {
  const auto before = [](uint64_t b) { return b * (b - 1) / 2; };  // pairs of nodes below b
  auto b = static_cast<uint64_t>((1.0 + std::sqrt(1.0 + 8.0 * static_cast<double>(index))) / 2.0);
  while (before(b) > index) --b;
  while (before(b + 1) <= index) ++b;
  return {static_cast<int32_t>(index - before(b)), static_cast<int32_t>(b)};
}

int64_t all_pairs(int64_t nodes) { return nodes * (nodes - 1) / 2; }

}  // namespace

std::vector<NodePair> linked_pairs(const MeshView& mesh) {
  std::vector<NodePair> pairs;
  for (size_t e = 0; e < mesh.senders.size(); ++e) {
    const int32_t a = mesh.senders[e], b = mesh.receivers[e];
    if (a != b) pairs.push_back({std::min(a, b), std::max(a, b)});
  }
  std::ranges::sort(pairs);
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  return pairs;
}

std::vector<NodePair> with_own_pairs(int64_t nodes, std::vector<NodePair> pairs) {
  for (int32_t i = 0; i < nodes; ++i) pairs.push_back({i, i});
  std::ranges::sort(pairs);
  return pairs;
}

std::vector<NodePair> other_pairs(int64_t nodes, const std::vector<NodePair>& linked, int64_t count,
                                  uint64_t seed, uint64_t round) {
  const auto all = static_cast<uint64_t>(all_pairs(nodes));
  const auto links = std::ranges::count_if(linked, [](const NodePair& pair) { return pair.a != pair.b; });
  const int64_t wanted = std::min<int64_t>(count, all_pairs(nodes) - links);
  std::vector<NodePair> pairs;
  for (uint64_t i = 0; std::ssize(pairs) < wanted; ++i) {
    const NodePair pair = pair_at(shuffled(seed, round, i, all));
    if (!std::ranges::binary_search(linked, pair)) pairs.push_back(pair);
  }
  std::ranges::sort(pairs);
  return pairs;
}

PairSample drawn_pairs(int64_t nodes, const std::vector<NodePair>& linked, int64_t count, uint64_t seed,
                       uint64_t round) {
  PairSample sample{.linked = {}, .others = other_pairs(nodes, linked, count, seed, round)};
  const uint64_t of_links = seed ^ hash_of("linked pairs");
  for (int64_t i = 0; i < std::min(count, std::ssize(linked)); ++i)
    sample.linked.push_back(linked[shuffled(of_links, round, static_cast<uint64_t>(i), linked.size())]);
  std::ranges::sort(sample.linked);
  return sample;
}

LinkSplit split_links(int64_t nodes, const std::vector<NodePair>& linked, double valid_share,
                      double test_share, uint64_t seed) {
  const auto count = static_cast<double>(linked.size());
  const auto tests = static_cast<size_t>(count * test_share),
             valids = static_cast<size_t>(count * valid_share);
  LinkSplit split;
  for (size_t i = 0; i < linked.size(); ++i) {
    PairSample& part = i < tests ? split.test : i < tests + valids ? split.valid : split.train;
    part.linked.push_back(linked[shuffled(seed, 0, i, linked.size())]);
  }
  // Drawn together, so that no pair is in both parts.
  std::vector<NodePair> others;
  const auto all = static_cast<uint64_t>(all_pairs(nodes));
  const auto free = static_cast<size_t>(all) - linked.size();
  for (uint64_t i = 0; others.size() < std::min(tests + valids, free); ++i) {
    const NodePair pair = pair_at(shuffled(seed, 1, i, all));
    if (!std::ranges::binary_search(linked, pair)) others.push_back(pair);
  }
  const auto middle = others.begin() + static_cast<std::ptrdiff_t>(std::min(tests, others.size()));
  split.test.others.assign(others.begin(), middle);
  split.valid.others.assign(middle, others.end());
  for (PairSample* part : {&split.train, &split.valid, &split.test}) {
    std::ranges::sort(part->linked);
    std::ranges::sort(part->others);
  }
  return split;
}

LinkGraph::LinkGraph(const MeshView& mesh, const std::vector<NodePair>& pairs)
    : offsets_(static_cast<size_t>(mesh.nodes) + 1), view_(mesh) {
  for (const NodePair& pair : pairs) {
    ++offsets_[static_cast<size_t>(pair.a) + 1];
    if (pair.a != pair.b) ++offsets_[static_cast<size_t>(pair.b) + 1];
  }
  std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
  const auto edges = static_cast<size_t>(offsets_.back());
  senders_.resize(edges);
  receivers_.resize(edges);
  sender_order_.resize(edges);
  std::vector<int32_t> next(offsets_.begin(), offsets_.end() - 1);
  const auto add = [&](int32_t sender, int32_t receiver) {
    const int32_t edge = next[static_cast<size_t>(receiver)]++;
    senders_[static_cast<size_t>(edge)] = sender;
    receivers_[static_cast<size_t>(edge)] = receiver;
  };
  for (const NodePair& pair : pairs) {
    add(pair.a, pair.b);
    if (pair.a != pair.b) add(pair.b, pair.a);
  }
  // As many edges leave a node as arrive.
  next.assign(offsets_.begin(), offsets_.end() - 1);
  for (size_t e = 0; e < edges; ++e)
    sender_order_[static_cast<size_t>(next[static_cast<size_t>(senders_[e])]++)] = static_cast<int32_t>(e);
  view_.edges = static_cast<int64_t>(edges);
  view_.senders = senders_;
  view_.receivers = receivers_;
  view_.receiver_offsets = view_.sender_offsets = offsets_;
  view_.sender_order = sender_order_;
}

}  // namespace meshgrad
