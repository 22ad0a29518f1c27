// SPDX-License-Identifier: Apache-2.0
// Blocks of simulated memory: split, merged, and found by size or by address.
#pragma once
#include <meshgrad/engine/memory/detail/block_index.h>

#include <deque>
#include <set>
#include <vector>

namespace meshgrad {

/// A part of a segment; `previous` and `next` are its neighbours in the segment, null at the ends.
struct SimulatedBlock : BlockIndex::Node {
  enum class State : uint8_t { used, free, unmapped };
  State state = State::unmapped;
  int pool = 0;  ///< index of the pool that it belongs to
  SimulatedBlock* previous = nullptr;
  SimulatedBlock* next = nullptr;
  int64_t end() const { return address + bytes; }
};

inline bool is(const SimulatedBlock* block, SimulatedBlock::State state) {
  return block != nullptr && block->state == state;
}

/// Owns the blocks.
class SimulatedBlocks {
 public:
  /// A segment: one block without neighbours.
  SimulatedBlock* make(int64_t address, int64_t bytes, int pool);
  void remove(SimulatedBlock* block);
  /// Splits a block after `bytes`; returns the second part, which has the state of the first.
  SimulatedBlock* split(SimulatedBlock* block, int64_t bytes);
  /// Merges `block` with its successor.
  void merge_next(SimulatedBlock* block);

 private:
  std::deque<SimulatedBlock> store_;
  SimulatedBlock* spare_ = nullptr;  // linked by next
};

enum class Fit : uint8_t {
  best,  ///< the least weight, then the lowest address
  first  ///< the lowest address
};

/// Free blocks, ordered by how a policy chooses one.
class FreeBlocks {
 public:
  explicit FreeBlocks(Fit fit) : fit_(fit) {}
  /// `weight` orders the blocks of best fit; at least the block's bytes.
  void insert(SimulatedBlock* block, int64_t weight);
  void erase(SimulatedBlock* block);
  /// The chosen block of at least `bytes`; null when there is none.
  SimulatedBlock* find(int64_t bytes) const;
  std::vector<SimulatedBlock*> all() const;

 private:
  struct Lighter {
    using is_transparent = void;
    bool operator()(const SimulatedBlock* a, const SimulatedBlock* b) const {
      return a->weight != b->weight ? a->weight < b->weight : a->address < b->address;
    }
    bool operator()(const SimulatedBlock* a, int64_t weight) const { return a->weight < weight; }
  };
  Fit fit_;
  std::set<SimulatedBlock*, Lighter> by_size_;  // best fit
  BlockIndex by_address_;                       // first fit
};

}  // namespace meshgrad
