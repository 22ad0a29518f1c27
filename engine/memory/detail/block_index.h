// SPDX-License-Identifier: Apache-2.0
// Pieces of memory in order of address, searched by size: a treap (Seidel and Aragon 1996) in which every
// node knows the largest weight below it. The nodes belong to the caller; nothing is allocated.
#pragma once
#include <algorithm>
#include <cstdint>

namespace meshgrad {

class BlockIndex {
 public:
  struct Node {
    int64_t address = 0;
    int64_t bytes = 0;
    int64_t weight = 0;  ///< what searches compare
   private:
    friend class BlockIndex;
    int64_t heaviest_ = 0;  ///< weight of the heaviest node of this subtree
    Node* left_ = nullptr;
    Node* right_ = nullptr;
    Node* parent_ = nullptr;
    uint32_t priority_ = 0;
  };

  bool empty() const { return root_ == nullptr; }
  int64_t heaviest() const { return root_ == nullptr ? 0 : root_->heaviest_; }

  void insert(Node* node);
  void erase(Node* node);
  /// After a change of node->weight.
  void reweigh(Node* node);
  /// The node of lowest address whose weight is at least `weight`; nullptr when there is none.
  Node* lowest(int64_t weight) const;
  Node* highest(int64_t weight) const;
  /// The last node whose address is at most `address`; nullptr when there is none.
  Node* at_or_below(int64_t address) const;

 private:
  static int64_t heaviest_of(const Node* node) { return node == nullptr ? 0 : node->heaviest_; }
  static void refresh(Node* node) {
    node->heaviest_ = std::max({node->weight, heaviest_of(node->left_), heaviest_of(node->right_)});
  }
  void replace(Node* parent, const Node* child, Node* with);
  void rotate_up(Node* node);

  Node* root_ = nullptr;
  uint32_t random_ = 0x9E3779B9u;  // a fixed seed: two runs build the same tree
};

}  // namespace meshgrad
