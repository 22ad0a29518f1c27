// SPDX-License-Identifier: Apache-2.0
// Private types of CachingAllocator, for its source files.
#pragma once
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/memory/detail/block_heap.h>
#include <meshgrad/engine/memory/detail/placement_policy.h>
#include <meshgrad/engine/memory/history.h>
#include <meshgrad/engine/memory/step_plan.h>
#include <meshgrad/engine/memory/stream_fences.h>

namespace meshgrad {

/// The memory of one stream.
struct CachingAllocator::Heap {
  explicit Heap(const Stream& owner) : stream(owner) {}
  Stream stream;
  BlockHeap blocks;
  PlacementPolicy policy;
  StreamFences fences;
  MemoryCounters counters;
  std::map<int64_t, int64_t> ranges;  // address and bytes of each reservation
  FreeBytes counted;                  // the part of `blocks` that the counters include
  int64_t counted_reserved = 0, counted_slabs = 0;
};

/// Data about a block in use.
struct CachingAllocator::LiveBlock {
  Heap* heap = nullptr;  // that holds the block
  Heap* home = nullptr;  // of the stream it was allocated for; differs from `heap` for a borrowed block
  int64_t requested = 0;
  Tag tag = Tag::host;
  uint32_t name = 0;
  PlacementPolicy::Ticket ticket;
  int64_t step = 0, entry = -1;     // in the StepPlan of the step that recorded it
  std::vector<const Stream*> uses;  // see record_use()
};

struct CachingAllocator::Request {
  const Stream* stream = nullptr;
  Heap* home = nullptr;  // of the stream
  int64_t requested = 0;
  int64_t bytes = 0;  // rounded
  int64_t alignment = 0;
  Tag tag = Tag::host;
  uint32_t name = 0;
  Placement placement = Placement::low;
  PlacementPolicy::Ticket ticket{};
  int64_t address = -1;  // planned; -1: none
  int64_t entry = -1;    // of the plan that records it; -1: none
};

/// The current step: it is being recorded, or follows its plan.
struct CachingAllocator::Step {
  StepPlan& plan;
  Heap& heap;
  int64_t number = 0;
  int64_t base = -1;  // address of the region; -1: the step is being recorded, or differs from its plan
  size_t next = 0;    // index of the next entry
  /// Records the request, or sets its planned address.
  void place(Request& request);
};

/// A block and the heap that holds it.
struct CachingAllocator::Found {
  Heap* heap = nullptr;
  Block* block = nullptr;
};

/// Whether a block lies in a slab.
inline bool is_small(const Block& block) { return block.slab != Block::kNoSlab; }

inline char* pointer_of(int64_t address) { return reinterpret_cast<char*>(address); }

}  // namespace meshgrad
