// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/detail/block_index.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <map>

#include "allocator_recount.h"

namespace meshgrad {
namespace {

using Node = BlockIndex::Node;

/// The nodes again, in a map, searched one by one.
class Model {
 public:
  std::map<int64_t, Node*> nodes;

  Node* lowest(int64_t weight) const {
    for (const auto& [address, node] : nodes)
      if (node->weight >= weight) return node;
    return nullptr;
  }
  Node* highest(int64_t weight) const {
    for (auto at = nodes.rbegin(); at != nodes.rend(); ++at)
      if (at->second->weight >= weight) return at->second;
    return nullptr;
  }
  Node* at_or_below(int64_t address) const {
    const auto above = nodes.upper_bound(address);
    return above == nodes.begin() ? nullptr : std::prev(above)->second;
  }
  int64_t heaviest() const {
    int64_t weight = 0;
    for (const auto& [address, node] : nodes) weight = std::max(weight, node->weight);
    return weight;
  }
};

Node node(int64_t address, int64_t weight) {
  Node made;
  made.address = address;
  made.bytes = made.weight = weight;
  return made;
}

TEST_CASE("the lowest and the highest that are heavy enough") {
  BlockIndex index;
  CHECK(index.empty());
  CHECK(index.heaviest() == 0);
  CHECK(index.lowest(0) == nullptr);
  CHECK(index.at_or_below(100) == nullptr);
  Node a = node(10, 5), b = node(20, 9), c = node(30, 1), d = node(40, 9), e = node(50, 7);
  for (Node* each : {&c, &a, &e, &b, &d}) index.insert(each);
  CHECK(index.heaviest() == 9);
  CHECK(index.lowest(1) == &a);
  CHECK(index.lowest(6) == &b);
  CHECK(index.highest(6) == &e);
  CHECK(index.highest(8) == &d);
  CHECK(index.highest(9) == &d);
  CHECK(index.lowest(10) == nullptr);
  CHECK(index.highest(10) == nullptr);
  CHECK(index.at_or_below(9) == nullptr);
  CHECK(index.at_or_below(39) == &c);
  CHECK(index.at_or_below(40) == &d);
  d.weight = 2;
  index.reweigh(&d);
  CHECK(index.highest(8) == &b);
  index.erase(&b);
  CHECK(index.heaviest() == 7);
  CHECK(index.lowest(6) == &e);
  for (Node* each : {&c, &a, &e, &d}) index.erase(each);
  CHECK(index.empty());
}

TEST_CASE("random changes of the index match a linear search") {
  test::Draws draws(5);
  std::deque<Node> store(400);
  std::vector<Node*> spare;
  for (Node& each : store) spare.push_back(&each);
  BlockIndex index;
  Model model;
  for (int64_t i = 0; i < test::scaled(50'000); ++i) {
    const double choice = draws.unit();
    // Long runs of growth and of decline, so that the tree is seen large and small.
    const bool growing = i / 700 % 2 == 0;
    if (choice < (growing ? 0.5 : 0.25) && !spare.empty()) {
      const auto address = static_cast<int64_t>(draws.below(100'000));
      if (model.nodes.contains(address)) continue;
      Node* const added = spare.back();
      spare.pop_back();
      *added = node(address, 1 + draws.size(1000));
      index.insert(added);
      model.nodes[address] = added;
    } else if (!model.nodes.empty()) {
      const auto at = std::next(model.nodes.begin(), static_cast<ptrdiff_t>(draws.below(model.nodes.size())));
      if (choice < 0.75) {
        index.erase(at->second);
        spare.push_back(at->second);
        model.nodes.erase(at);
      } else {
        at->second->weight = 1 + draws.size(1000);
        index.reweigh(at->second);
      }
    }
    const int64_t weight = 1 + draws.size(1000), address = static_cast<int64_t>(draws.below(100'000));
    CAPTURE(i);
    REQUIRE(index.heaviest() == model.heaviest());
    REQUIRE(index.lowest(weight) == model.lowest(weight));
    REQUIRE(index.highest(weight) == model.highest(weight));
    REQUIRE(index.at_or_below(address) == model.at_or_below(address));
    REQUIRE(index.empty() == model.nodes.empty());
  }
}

}  // namespace
}  // namespace meshgrad
