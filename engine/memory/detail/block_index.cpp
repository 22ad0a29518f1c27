// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/detail/block_index.h>

#include <algorithm>

namespace meshgrad {

void BlockIndex::replace(Node* parent, const Node* child, Node* with) {
  if (parent == nullptr) {
    root_ = with;
  } else if (parent->left_ == child) {
    parent->left_ = with;
  } else {
    parent->right_ = with;
  }
  if (with != nullptr) with->parent_ = parent;
}

void BlockIndex::rotate_up(Node* node) {
  Node* const parent = node->parent_;
  replace(parent->parent_, parent, node);
  if (parent->left_ == node) {
    parent->left_ = node->right_;
    if (node->right_ != nullptr) node->right_->parent_ = parent;
    node->right_ = parent;
  } else {
    parent->right_ = node->left_;
    if (node->left_ != nullptr) node->left_->parent_ = parent;
    node->left_ = parent;
  }
  parent->parent_ = node;
  refresh(parent);
  refresh(node);
}

void BlockIndex::insert(Node* node) {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 17;
  random_ ^= random_ << 5;
  node->priority_ = random_;
  node->left_ = node->right_ = nullptr;
  node->heaviest_ = node->weight;
  Node* parent = nullptr;
  for (Node* at = root_; at != nullptr;) {
    parent = at;
    at->heaviest_ = std::max(at->heaviest_, node->weight);
    at = is_before(*node, at->range, at->address) ? at->left_ : at->right_;
  }
  node->parent_ = parent;
  if (parent == nullptr) {
    root_ = node;
  } else if (is_before(*node, parent->range, parent->address)) {
    parent->left_ = node;
  } else {
    parent->right_ = node;
  }
  while (node->parent_ != nullptr && node->parent_->priority_ < node->priority_) rotate_up(node);
}

void BlockIndex::erase(Node* node) {
  while (node->left_ != nullptr && node->right_ != nullptr) {
    rotate_up(node->left_->priority_ > node->right_->priority_ ? node->left_ : node->right_);
  }
  Node* const parent = node->parent_;
  replace(parent, node, node->left_ != nullptr ? node->left_ : node->right_);
  for (Node* at = parent; at != nullptr; at = at->parent_) refresh(at);
}

void BlockIndex::reweigh(Node* node) {
  for (Node* at = node; at != nullptr; at = at->parent_) {
    const int64_t before = at->heaviest_;
    refresh(at);
    if (at->heaviest_ == before) break;
  }
}

BlockIndex::Node* BlockIndex::lowest(int64_t weight) const {
  Node* at = root_;
  if (heaviest_of(at) < weight) return nullptr;
  while (at != nullptr) {
    if (heaviest_of(at->left_) >= weight) {
      at = at->left_;
    } else if (at->weight >= weight) {
      return at;
    } else {
      at = at->right_;
    }
  }
  return nullptr;
}

BlockIndex::Node* BlockIndex::highest(int64_t weight) const {
  Node* at = root_;
  if (heaviest_of(at) < weight) return nullptr;
  while (at != nullptr) {
    if (heaviest_of(at->right_) >= weight) {
      at = at->right_;
    } else if (at->weight >= weight) {
      return at;
    } else {
      at = at->left_;
    }
  }
  return nullptr;
}

BlockIndex::Node* BlockIndex::at_or_below(int64_t address, int64_t range) const {
  Node* found = nullptr;
  for (Node* at = root_; at != nullptr;) {
    if (at->range != range ? at->range < range : at->address <= address) {
      found = at;
      at = at->right_;
    } else {
      at = at->left_;
    }
  }
  return found;
}

}  // namespace meshgrad
