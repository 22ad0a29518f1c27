// SPDX-License-Identifier: Apache-2.0
// Places blocks in ranges of addresses: what is in use, what is free, what has no memory behind it. Pure
// arithmetic: no memory is touched and no source called, so that recorded traces replay through the same
// code.
#pragma once
#include <meshgrad/engine/memory/detail/block_index.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace meshgrad {

/// Where in the heap a block should go.
enum class Placement : uint8_t {
  low,   ///< the lowest address that fits
  high,  ///< the highest address that fits, at its upper end: for what will soon be gone
  slab   ///< with other small blocks, in pages set apart for them
};

/// What one call of a source put behind a range of addresses, and takes back by another.
struct Mapping {
  int64_t address = 0;
  int64_t bytes = 0;
  int64_t used = 0;  ///< bytes of it in used blocks
};

/// A hole, or part of one, to be mapped.
struct Growth {
  int64_t address = 0;
  int64_t bytes = 0;
};

/// One piece of a range; pieces tile it. `previous` and `next` are neighbours in address, null at the ends.
struct Block : BlockIndex::Node {
  enum class State : uint8_t { used, free, hole };  ///< a hole has no memory behind it
  State state = State::hole;
  int64_t slab = kNoSlab;  ///< address of the slab that it is a part of
  Block* previous = nullptr;
  Block* next = nullptr;
  void* owner = nullptr;  ///< of a used block: whatever the caller keeps about it
  int64_t end() const { return address + bytes; }

  static constexpr int64_t kNoSlab = -1;

 private:
  friend class BlockHeap;
  std::map<int64_t, Mapping>::iterator mapping_;  // that of its first byte; not of a hole
  bool indexed_ = false;                          // in an index of free blocks, if need be with weight 0
};

/// Bytes that are free, by what could be done with them.
struct FreeBytes {
  int64_t total = 0;
  int64_t slab = 0;    ///< of these: within slabs
  int64_t split = 0;   ///< of these: in a mapped run (neighbouring mappings) in which something is used
  int64_t pinned = 0;  ///< of these: in a mapping that cannot be given back because something in it is used
};

/// Times are O(log n) in the number of free blocks (take, free) or of holes (plan_growth).
class BlockHeap {
 public:
  static constexpr int64_t kRounding = 512;           ///< sizes of blocks are multiples of this
  static constexpr int64_t kSlab = int64_t{2} << 20;  ///< pages set apart for small blocks

  BlockHeap() = default;
  BlockHeap(const BlockHeap&) = delete;
  BlockHeap& operator=(const BlockHeap&) = delete;

  /// A new range, all of it a hole. Ranges do not overlap; blocks of two ranges never merge.
  void add_range(int64_t address, int64_t bytes);
  /// Forgets the range at `address`, which is all a hole.
  void remove_range(int64_t address);

  /// A block of `bytes` (a multiple of kRounding) at a multiple of `alignment` (a power of two) out of free
  /// memory; nullptr when none fits.
  Block* take(int64_t bytes, int64_t alignment, Placement placement);
  /// The block [address, address + bytes), outside of slabs; nullptr unless all of it is free.
  Block* take_at(int64_t address, int64_t bytes);
  /// Makes a used block free and merges it with its neighbours.
  void give_back(Block* block);

  /// What to map so that take() with the same arguments succeeds: the lowest hole that fits together with the
  /// free memory below it, rounded up to `granularity`. bytes = 0 when no hole is large enough.
  Growth plan_growth(int64_t bytes, int64_t alignment, Placement placement, int64_t granularity) const;
  /// [address, address + bytes), part of a hole, has memory behind it now: one mapping.
  void map(int64_t address, int64_t bytes);
  /// The mapping at `address`, of which nothing is used, becomes a hole.
  void unmap(int64_t address);

  /// Mappings of which nothing is used, by address.
  std::vector<Mapping> unused_mappings() const;
  /// Address, size and used bytes of every mapping, by address.
  const std::map<int64_t, Mapping>& mappings() const { return mappings_; }

  /// First block of every range, by address: with Block::next, everything there is.
  std::vector<const Block*> ranges() const;
  int64_t mapped_bytes() const { return mapped_; }
  const FreeBytes& free_bytes() const { return free_; }
  int64_t largest_free() const;
  /// Holes below the highest mapping of a range.
  int64_t holes() const { return inner_holes_; }
  int64_t slab_bytes() const { return slabs_; }

 private:
  Block* make(int64_t address, int64_t bytes, Block* previous, Block* next);
  void destroy(Block* block);
  Block* split(Block* block, int64_t bytes);
  void find_mapping(Block* block);
  Block* split_front(Block* block, int64_t bytes);
  void merge_next(Block* block);
  void merge_previous(Block* block);
  BlockIndex& index_of(const Block& block) { return block.slab == Block::kNoSlab ? blocks_ : small_; }
  void count_free(const Block& block, int64_t sign);
  void resized(Block* block);
  void index_free(Block* block);
  void unindex_free(Block* block);
  void unindex(Block* block);
  void index_hole(Block* hole);
  void unindex_hole(Block* hole);
  void weigh_hole_after(Block* block);
  void merge_free(Block* block);
  void count_used(const Block& block, int64_t sign);
  Block* find_free(int64_t bytes, int64_t alignment, Placement placement) const;
  Block* carve(Block* block, int64_t address, int64_t bytes);
  Block* make_slab();

  BlockIndex blocks_;                 // free blocks outside of slabs, by their bytes
  BlockIndex small_;                  // free blocks within slabs
  BlockIndex holes_;                  // by the bytes that a block could have which ends in the hole
  std::map<int64_t, Block*> ranges_;  // first block of each
  std::map<int64_t, Mapping> mappings_;
  std::vector<std::unique_ptr<Block[]>> store_;
  Block* spare_ = nullptr;  // unused nodes, linked by next
  FreeBytes free_;
  int64_t mapped_ = 0;
  int64_t slabs_ = 0;
  int64_t inner_holes_ = 0;
};

}  // namespace meshgrad
