// SPDX-License-Identifier: Apache-2.0
// What the caching allocator counts, and the snapshot that it can be checked against.
#include <meshgrad/engine/memory/detail/caching_allocator_heap.h>

#include <algorithm>

namespace meshgrad {

/// Whatever counts a block: all, its pool, its heap, its tag.
std::array<MemoryCounters*, 4> CachingAllocator::counters_of(Heap& heap, Tag tag, bool small) {
  return {&stats_, small ? &stats_.small : &stats_.large, &heap.counters,
          &stats_.by_tag[static_cast<size_t>(tag)]};
}

/// A block was handed out (sign 1) or let go of (-1).
void CachingAllocator::count_live(const Block& block, const Live& live, int64_t sign) {
  const int64_t peak = stats_.allocated.peak;
  for (MemoryCounters* counters : counters_of(*live.heap, live.tag, is_small(block))) {
    counters->requested.add(sign * live.requested);
    counters->allocated.add(sign * block.bytes);
  }
  stats_.live_allocations += sign;
  if (stats_.allocated.peak > peak) note_tags_at_peak();
}

void CachingAllocator::note_tags_at_peak() {
  for (size_t tag = 0; tag < stats_.by_tag.size(); ++tag)
    stats_.tags_at_peak[tag] = stats_.by_tag[tag].allocated.current;
}

void CachingAllocator::count_active(Heap& heap, Tag tag, bool small, int64_t bytes) {
  for (MemoryCounters* counters : counters_of(heap, tag, small)) counters->active.add(bytes);
}

/// Brings the counters of mapped and free memory up to what the heap has now.
void CachingAllocator::count_free(Heap& heap) {
  const FreeBytes& free = heap.blocks.free_bytes();
  FreeBytes& known = heap.counted;
  const int64_t reserved = heap.blocks.mapped_bytes() - heap.counted_reserved;
  const int64_t slabs = heap.blocks.slab_bytes() - heap.counted_slabs;
  if (reserved != 0 || slabs != 0) {
    stats_.reserved.add(reserved);
    heap.counters.reserved.add(reserved);
    stats_.small.reserved.add(slabs);
    stats_.large.reserved.add(reserved - slabs);
    heap.counted_reserved += reserved;
    heap.counted_slabs += slabs;
  }
  const int64_t split = free.split - known.split, split_slab = free.slab - known.slab;
  stats_.inactive_split.add(split);
  heap.counters.inactive_split.add(split);
  stats_.small.inactive_split.add(split_slab);
  stats_.large.inactive_split.add(split - split_slab);
  stats_.pinned.add(free.pinned - known.pinned);
  known = free;
}

MemoryStats CachingAllocator::stats_locked() const {
  MemoryStats stats = stats_;
  stats.capacity = limit_;
  for (const auto& heap : heaps_) {
    stats.by_stream.push_back({heap->stream.id(), heap->counters});
    stats.largest_free = std::max(stats.largest_free, heap->blocks.largest_free());
    stats.holes += heap->blocks.holes();
  }
  return stats;
}

MemoryStats CachingAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_locked();
}

MemorySnapshot CachingAllocator::snapshot() const {
  const std::lock_guard lock(mutex_);
  return snapshot_locked();
}

MemoryRecord CachingAllocator::record() {
  const std::lock_guard lock(mutex_);
  MemoryRecord record = shortage_ ? std::move(*shortage_) : MemoryRecord{snapshot_locked(), history_locked()};
  shortage_.reset();
  return record;
}

MemorySnapshot CachingAllocator::snapshot_locked() const {
  MemorySnapshot snapshot{stats_locked(), {}, {}};
  for (const auto& heap : heaps_) {
    append_segments(snapshot, *heap);
    for (const auto& [address, fence] : heap->fences.all())
      snapshot.pending.push_back({address, fence.end - address, heap->stream.id(), fence.small, fence.tag});
  }
  return snapshot;
}

/// A segment for each run of mapped blocks.
void CachingAllocator::append_segments(MemorySnapshot& snapshot, const Heap& heap) const {
  auto mapping = heap.blocks.mappings().begin();
  for (const Block* block : heap.blocks.ranges()) {
    const int64_t range = block->address;
    MemorySnapshot::Segment* segment = nullptr;
    for (; block != nullptr; block = block->next) {
      if (block->state == Block::State::hole) {
        segment = nullptr;
        continue;
      }
      if (segment == nullptr)
        segment = &snapshot.segments.emplace_back(
            MemorySnapshot::Segment{block->address, 0, heap.stream.id(), range});
      segment->bytes += block->bytes;
      segment->blocks.push_back(describe(heap, *block));
      for (; mapping != heap.blocks.mappings().end() && mapping->first < block->end(); ++mapping)
        segment->mappings.push_back(mapping->first);
    }
  }
}

MemorySnapshot::Block CachingAllocator::describe(const Heap& heap, const Block& block) const {
  MemorySnapshot::Block entry{
      .address = block.address, .bytes = block.bytes, .small = is_small(block), .stream = heap.stream.id()};
  if (block.state == Block::State::used) {
    const auto& live = *static_cast<const Live*>(block.owner);
    entry.state = MemorySnapshot::State::used;
    entry.requested = live.requested;
    entry.stream = live.home->stream.id();
    entry.tag = live.tag;
    entry.name = names_[live.name];
  }
  return entry;
}

MemoryHistory CachingAllocator::history() const {
  const std::lock_guard lock(mutex_);
  return history_locked();
}

MemoryHistory CachingAllocator::history_locked() const {
  MemoryHistory history = recorder_.history();
  history.names = names_.all();
  return history;
}

void CachingAllocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  const auto reset = [](MemoryCounters& counters) {
    for (MemoryCounter* counter : {&counters.requested, &counters.allocated, &counters.active,
                                   &counters.reserved, &counters.inactive_split})
      counter->peak = counter->current;
  };
  reset(stats_);
  note_tags_at_peak();
  reset(stats_.small);
  reset(stats_.large);
  for (MemoryCounters& counters : stats_.by_tag) reset(counters);
  for (const auto& heap : heaps_) reset(heap->counters);
  stats_.pinned.peak = stats_.pinned.current;
}

void CachingAllocator::note(MemoryEvent::Kind kind, const Block& block, const Live& live) {
  if (!recorder_.records()) return;
  recorder_.record({kind, live.tag, live.home->stream.id(), live.name, block.address, live.requested,
                    MemoryRecorder::now()});
}

void CachingAllocator::note(MemoryEvent::Kind kind, const Heap& heap, int64_t address, int64_t bytes) {
  if (!recorder_.records()) return;
  recorder_.record({kind, Tag::host, heap.stream.id(), 0, address, bytes, MemoryRecorder::now()});
}

}  // namespace meshgrad
