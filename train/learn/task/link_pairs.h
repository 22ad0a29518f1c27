// SPDX-License-Identifier: Apache-2.0
// Pairs of nodes that are linked and pairs that are not: how the links of one graph are split, how pairs are
// drawn, and the graph that a model reads where some links are kept from it. All of it is a function of its
// arguments alone.
#pragma once
#include <meshgrad/train/data/dataset.h>

#include <compare>
#include <vector>

namespace meshgrad {

/// The smaller number first.
struct NodePair {
  int32_t a = 0, b = 0;
  auto operator<=>(const NodePair&) const = default;
};

/// The pairs of different nodes with an edge, one way or both, each once, in order.
std::vector<NodePair> linked_pairs(const MeshView& mesh);
/// Pairs that are in order, and with them each node's with itself.
std::vector<NodePair> with_own_pairs(int64_t nodes, std::vector<NodePair> pairs);

/// Pairs of a graph, or of a part of its links.
struct PairSample {
  std::vector<NodePair> linked, others;
};

/// `count` pairs of different nodes that are not among `linked`, which is in order; all of them where there
/// are fewer.
std::vector<NodePair> other_pairs(int64_t nodes, const std::vector<NodePair>& linked, int64_t count,
                                  uint64_t seed, uint64_t round);
/// At most `count` different pairs of each kind.
PairSample drawn_pairs(int64_t nodes, const std::vector<NodePair>& linked, int64_t count, uint64_t seed,
                       uint64_t round);

/// The links of one graph: the shares of validation and test are rounded down, each with as many other pairs;
/// all other links are for training. Every part is in order.
struct LinkSplit {
  PairSample train, valid, test;
};
LinkSplit split_links(int64_t nodes, const std::vector<NodePair>& linked, double valid_share,
                      double test_share, uint64_t seed);

/// The edges of pairs, both ways, a node's pair with itself once, sorted by receiver, as MeshView has them.
class LinkGraph {
 public:
  LinkGraph(const MeshView& mesh, const std::vector<NodePair>& pairs);
  LinkGraph(const LinkGraph&) = delete;
  LinkGraph& operator=(const LinkGraph&) = delete;
  /// The mesh with these edges.
  const MeshView& view() const { return view_; }

 private:
  std::vector<int32_t> senders_, receivers_, offsets_, sender_order_;
  MeshView view_;
};

}  // namespace meshgrad
