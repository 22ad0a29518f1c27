// SPDX-License-Identifier: Apache-2.0
// BlockHeap: the blocks of one stream's address ranges: used, free, or without memory (holes). Pure
// bookkeeping: it touches no memory and calls no source, so that recorded traces replay through the same
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
  low,   ///< the lowest address that fits, in the oldest range that has one
  high,  ///< at the upper end of the last free block that fits: for short-lived blocks
  slab   ///< in pages reserved for small blocks
};

/// Memory that one call of MemorySource::map() mapped, and one unmap() takes back.
struct Mapping {
  int64_t address = 0;
  int64_t bytes = 0;
  int64_t used = 0;  ///< bytes in used blocks
};

/// Part of a hole that is to be mapped.
struct Growth {
  int64_t address = 0;
  int64_t bytes = 0;
};

/// A piece of a range; blocks tile their range. `previous` and `next` are the neighbours in address, null at
/// the range's ends.
struct Block : BlockIndex::Node {
  enum class State : uint8_t { used, free, hole };  ///< a hole is not mapped
  State state = State::hole;
  int64_t slab = kNoSlab;  ///< address of the slab around it
  Block* previous = nullptr;
  Block* next = nullptr;
  void* owner = nullptr;  ///< of a used block: the caller's data
  int64_t end() const { return address + bytes; }

  static constexpr int64_t kNoSlab = -1;

 private:
  friend class BlockHeap;
  std::map<int64_t, Mapping>::iterator mapping_;  // around its first byte; unset for a hole
  bool indexed_ = false;                          // in an index of free blocks, if need be with weight 0
};

/// Bytes that are free, by what could be done with them.
struct FreeBytes {
  int64_t total = 0;
  int64_t slab = 0;    ///< within slabs
  int64_t split = 0;   ///< in a run of adjacent mappings that is partly used
  int64_t pinned = 0;  ///< in a mapping that is partly used and so cannot be unmapped
};

/// Not thread-safe. Times are O(log n) in the number of free blocks (allocate, free) or of holes
/// (plan_growth).
class BlockHeap {
 public:
  static constexpr int64_t kRounding = 512;           ///< sizes of blocks are multiples of this
  static constexpr int64_t kSlab = int64_t{2} << 20;  ///< size of a slab, which holds small blocks only

  BlockHeap() = default;
  BlockHeap(const BlockHeap&) = delete;
  BlockHeap& operator=(const BlockHeap&) = delete;

  /// Adds a range, all of it a hole. Ranges do not overlap; blocks of two ranges never merge. Memory is taken
  /// from the ranges in the order in which they were added, wherever they lie: a repeated step then finds
  /// the places that it found when it made the ranges.
  void add_range(int64_t address, int64_t bytes);
  /// Removes the range at `address`, which must be one hole.
  void remove_range(int64_t address);

  /// Allocates `bytes` (a multiple of kRounding) of free memory at a multiple of `alignment` (a power of
  /// two); nullptr when nothing fits.
  Block* allocate(int64_t bytes, int64_t alignment, Placement placement);
  /// Allocates [address, address + bytes), outside of slabs; nullptr unless all of it is free.
  Block* allocate_at(int64_t address, int64_t bytes);
  /// Makes two used blocks of one, the first of `bytes`, and returns the second.
  Block* split_used(Block* block, int64_t bytes);
  /// Frees a used block and merges it with free neighbours.
  void free(Block* block);

  /// What to map so that allocate() with the same arguments succeeds: the first hole that is large enough
  /// together with the free block below it, rounded up to `granularity`. bytes = 0 when no hole is large
  /// enough.
  Growth plan_growth(int64_t bytes, int64_t alignment, Placement placement, int64_t granularity) const;
  /// [address, address + bytes), part of a hole, was mapped by one call.
  void map(int64_t address, int64_t bytes);
  /// The mapping at `address`, which must be unused, was unmapped.
  void unmap(int64_t address);

  /// Mappings without used blocks, by address.
  std::vector<Mapping> unused_mappings() const;
  const std::map<int64_t, Mapping>& mappings() const { return mappings_; }

  /// First block of every range, by address. Block::next leads to the others.
  std::vector<const Block*> ranges() const;
  int64_t mapped_bytes() const { return mapped_; }
  const FreeBytes& free_bytes() const { return free_bytes_; }
  int64_t largest_free() const;
  /// Holes below the highest mapping of a range.
  int64_t holes() const { return inner_holes_; }
  int64_t slab_bytes() const { return slabs_; }

 private:
  Block* make(int64_t address, int64_t bytes, Block* previous, Block* next);
  int64_t range_around(int64_t address) const;
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
  void update_hole_after(Block* block);
  void merge_free(Block* block);
  void count_used(const Block& block, int64_t sign);
  Block* find_free(int64_t bytes, int64_t alignment, Placement placement) const;
  Block* carve(Block* block, int64_t address, int64_t bytes);
  Block* make_slab();

  BlockIndex blocks_;                 // free blocks outside of slabs, by their bytes
  BlockIndex small_;                  // free blocks in slabs, by their bytes
  BlockIndex holes_;                  // by their bytes and those of the free block below
  std::map<int64_t, Block*> ranges_;  // first block of each
  std::map<int64_t, Mapping> mappings_;
  std::vector<std::unique_ptr<Block[]>> node_chunks_;
  Block* unused_nodes_ = nullptr;  // linked by next
  FreeBytes free_bytes_;
  int64_t mapped_ = 0;
  int64_t slabs_ = 0;
  int64_t inner_holes_ = 0;
  int64_t ranges_so_far_ = 0;
};

}  // namespace meshgrad
