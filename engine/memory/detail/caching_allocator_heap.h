// SPDX-License-Identifier: Apache-2.0
// What the parts of the caching allocator share among themselves.
#pragma once
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/memory/detail/block_heap.h>
#include <meshgrad/engine/memory/detail/placement_policy.h>
#include <meshgrad/engine/memory/step_plan.h>
#include <meshgrad/engine/memory/stream_fences.h>

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
  int64_t step = 0, entry = -1;     // in the plan of the step that recorded it
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
  int64_t address = -1;  // where a plan wants it
  int64_t entry = -1;    // under which a plan records it
};

/// A step under way that is recorded, or follows its plan.
struct CachingAllocator::Step {
  StepPlan& plan;
  Heap& heap;
  int64_t number = 0;
  int64_t base = -1;  // address of the region; -1: it is recorded, or has left its plan
  size_t next = 0;    // entry
  void place(Request& request);
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
