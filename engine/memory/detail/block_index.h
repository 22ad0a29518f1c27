// SPDX-License-Identifier: Apache-2.0
// Blocks ordered by range and address, and searched by size: a treap (Seidel and Aragon 1996) in which every
// node stores the largest weight of its subtree. Intrusive: the nodes belong to the caller, and nothing is
// allocated.
#pragma once
#include <algorithm>
#include <cstdint>

namespace meshgrad {

class BlockIndex {
 public:
  struct Node {
    int64_t range = 0;  ///< number of its address range; those of a lower number come first
    int64_t address = 0;
    int64_t bytes = 0;
    int64_t weight = 0;  ///< the key of searches: usually the size
   private:
    friend class BlockIndex;
    int64_t heaviest_ = 0;  // largest weight of the subtree
    Node* left_ = nullptr;
    Node* right_ = nullptr;
    Node* parent_ = nullptr;
    uint32_t priority_ = 0;
  };

  bool empty() const { return root_ == nullptr; }
  /// The largest weight; 0 when empty.
  int64_t heaviest() const { return root_ == nullptr ? 0 : root_->heaviest_; }

  void insert(Node* node);
  void erase(Node* node);
  /// Call after changing node->weight.
  void reweigh(Node* node);
  /// The first (or last) node whose weight is at least `weight`; nullptr without one.
  Node* lowest(int64_t weight) const;
  Node* highest(int64_t weight) const;
  /// The last node of the range, or of an earlier one, whose address is at most `address`; nullptr without
  /// one.
  Node* at_or_below(int64_t address, int64_t range = 0) const;

 private:
  static bool is_before(const Node& node, int64_t range, int64_t address) {
    return node.range != range ? node.range < range : node.address < address;
  }
  static int64_t heaviest_of(const Node* node) { return node == nullptr ? 0 : node->heaviest_; }
  static void refresh(Node* node) {
    node->heaviest_ = std::max({node->weight, heaviest_of(node->left_), heaviest_of(node->right_)});
  }
  void replace(Node* parent, const Node* child, Node* with);
  void rotate_up(Node* node);

  Node* root_ = nullptr;
  uint32_t random_ = 0x9E3779B9u;  // state of xorshift32, with a fixed seed: every run builds the same tree
};

}  // namespace meshgrad
