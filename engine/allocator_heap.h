// SPDX-License-Identifier: Apache-2.0
// What the parts of the caching allocator share among themselves.
#pragma once
#include <meshgrad/engine/allocator.h>
#include <meshgrad/engine/block_heap.h>
#include <meshgrad/engine/placement_policy.h>
#include <meshgrad/engine/stream_fences.h>

namespace meshgrad {

/// One stream's memory.
struct CachingAllocator::Heap {
  explicit Heap(const Stream& owner) : stream(owner) {}
  Stream stream;
  BlockHeap blocks;
  PlacementPolicy policy;
  StreamFences fences;
  MemoryCounters counters;
  std::map<int64_t, int64_t> ranges;  // address and bytes of what was reserved
  FreeBytes counted;                  // what the counters know of `blocks`
  int64_t counted_reserved = 0, counted_slabs = 0;
};

/// What is kept about a block in use.
struct CachingAllocator::Live {
  Heap* heap = nullptr;  // where it lies
  Heap* home = nullptr;  // of the stream that it was allocated for; another one when it was borrowed
  int64_t requested = 0;
  Tag tag = Tag::host;
  uint32_t name = 0;
  PlacementPolicy::Ticket ticket;
  std::vector<const Stream*> uses;  // record_use()
};

struct CachingAllocator::Request {
  const Stream* stream = nullptr;
  Heap* home = nullptr;  // of that stream
  int64_t requested = 0;
  int64_t bytes = 0;  // rounded
  int64_t alignment = 0;
  Tag tag = Tag::host;
  uint32_t name = 0;
  Placement placement = Placement::low;
  PlacementPolicy::Ticket ticket{};
};

/// A block and the heap that it was found in.
struct CachingAllocator::Found {
  Heap* heap = nullptr;
  Block* block = nullptr;
};

/// Whether a block counts as small: it lies in a slab.
inline bool is_small(const Block& block) { return block.slab != Block::kNoSlab; }

inline char* pointer_of(int64_t address) { return reinterpret_cast<char*>(address); }

}  // namespace meshgrad
