// SPDX-License-Identifier: Apache-2.0
// What the caching allocator counts, its snapshot, and its report in words.
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/memory/detail/caching_allocator_heap.h>

#include <fmt/format.h>

#include <algorithm>

namespace meshgrad {

std::string_view name_of(Tag tag) {
  constexpr std::string_view kNames[kTagCount] = {"parameters",    "embed",     "gradients", "optimizer",
                                                  "activations",   "recompute", "workspace", "data",
                                                  "communication", "host"};
  return kNames[static_cast<int>(tag)];
}

std::string_view name_of(MemoryEvent::Kind kind) {
  constexpr std::string_view kNames[] = {"alloc",       "free_requested", "free_completed",
                                         "segment_map", "segment_unmap",  "out_of_memory"};
  return kNames[static_cast<int>(kind)];
}

double MemoryStats::external_fragmentation() const {
  const int64_t free = free_bytes();
  return free > 0 ? 1.0 - static_cast<double>(largest_free) / static_cast<double>(free) : 0.0;
}

/// The counters that include a block: totals, small or large, its heap, its tag.
std::array<MemoryCounters*, 4> CachingAllocator::counters_of(Heap& heap, Tag tag, bool small) {
  return {&stats_, small ? &stats_.small : &stats_.large, &heap.counters,
          &stats_.by_tag[static_cast<size_t>(tag)]};
}

/// Counts a block that was allocated (sign 1) or freed (-1).
void CachingAllocator::count_live(const Block& block, const LiveBlock& live, int64_t sign) {
  const int64_t peak = stats_.allocated.peak;
  for (MemoryCounters* counters : counters_of(*live.heap, live.tag, is_small(block))) {
    counters->requested.add(sign * live.requested);
    counters->allocated.add(sign * block.bytes);
  }
  stats_.live_allocations += sign;
  if (stats_.allocated.peak > peak) save_tags_at_peak();
}

void CachingAllocator::save_tags_at_peak() {
  for (size_t tag = 0; tag < stats_.by_tag.size(); ++tag)
    stats_.tags_at_peak[tag] = stats_.by_tag[tag].allocated.current;
}

void CachingAllocator::count_active(Heap& heap, Tag tag, bool small, int64_t bytes) {
  for (MemoryCounters* counters : counters_of(heap, tag, small)) counters->active.add(bytes);
}

/// Updates the counters of mapped and free memory from the heap.
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
  MemoryRecord record = record_at_shortage_ ? std::move(*record_at_shortage_)
                                            : MemoryRecord{snapshot_locked(), history_locked()};
  record_at_shortage_.reset();
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

/// Appends a segment for each run of mapped blocks.
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
    const auto& live = *static_cast<const LiveBlock*>(block.owner);
    entry.state = MemorySnapshot::State::used;
    entry.requested = live.requested;
    entry.stream = live.home->stream.id();
    entry.tag = live.tag;
    entry.name = (*names_)[live.name];
  }
  return entry;
}

MemoryHistory CachingAllocator::history() const {
  const std::lock_guard lock(mutex_);
  return history_locked();
}

void CachingAllocator::restart_history(int64_t events) {
  const std::lock_guard lock(mutex_);
  recorder_ = std::make_unique<MemoryRecorder>(events);
}

MemoryHistory CachingAllocator::history_locked() const {
  MemoryHistory history = recorder_->history();
  history.names = names_->all();
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
  save_tags_at_peak();
  reset(stats_.small);
  reset(stats_.large);
  for (MemoryCounters& counters : stats_.by_tag) reset(counters);
  for (const auto& heap : heaps_) reset(heap->counters);
  stats_.pinned.peak = stats_.pinned.current;
}

void CachingAllocator::record_event(MemoryEvent::Kind kind, const Block& block, const LiveBlock& live) {
  if (!recorder_->records()) return;
  recorder_->record({kind, live.tag, live.home->stream.id(), live.name, block.address, live.requested,
                     MemoryRecorder::now()});
}

void CachingAllocator::record_event(MemoryEvent::Kind kind, const Heap& heap, int64_t address,
                                    int64_t bytes) {
  if (!recorder_->records()) return;
  recorder_->record({kind, Tag::host, heap.stream.id(), 0, address, bytes, MemoryRecorder::now()});
}

namespace {

constexpr size_t kListedOwners = 5;

std::string totals(const MemoryStats& stats) {
  std::string text = fmt::format(
      "  capacity {:.1f} MiB, reserved {:.1f} MiB, allocated {:.1f} MiB, free {:.1f} MiB within reserved and "
      "{:.1f} MiB beyond\n",
      mebibytes(stats.capacity), mebibytes(stats.reserved.current), mebibytes(stats.allocated.current),
      mebibytes(stats.free_bytes()), mebibytes(stats.capacity - stats.reserved.current));
  text += fmt::format(
      "  fragmentation: largest free block {:.1f} MiB ({:.0f} % of the free bytes lie elsewhere), "
      "{:.1f} MiB free but pinned by neighbours in use, {:.1f} MiB lost to rounding, {} holes\n",
      mebibytes(stats.largest_free), 100.0 * stats.external_fragmentation(), mebibytes(stats.pinned.current),
      mebibytes(stats.internal_fragmentation()), stats.holes);
  return text;
}

}  // namespace

std::string CachingAllocator::report() const {
  const std::lock_guard lock(mutex_);
  return report_locked();
}

std::string CachingAllocator::report_locked() const {
  std::string text = totals(stats_locked());
  for (int tag = 0; tag < kTagCount; ++tag) {
    const int64_t bytes = stats_.by_tag[static_cast<size_t>(tag)].allocated.current;
    if (bytes > 0)
      text += fmt::format("  {:<14}{:>12.1f} MiB\n", name_of(static_cast<Tag>(tag)), mebibytes(bytes));
  }
  std::map<std::pair<uint32_t, Tag>, int64_t> owners;
  for (const auto& heap : heaps_) {
    for (const Block* block : heap->blocks.ranges()) {
      for (; block != nullptr; block = block->next) {
        if (block->state != Block::State::used) continue;
        const auto& live = *static_cast<const LiveBlock*>(block->owner);
        owners[{live.name, live.tag}] += block->bytes;
      }
    }
  }
  std::vector<std::pair<int64_t, std::string>> largest;
  for (const auto& [owner, bytes] : owners) {
    const std::string& name = (*names_)[owner.first];
    largest.emplace_back(bytes,
                         fmt::format("{} ({})", name.empty() ? "unnamed" : name, name_of(owner.second)));
  }
  std::sort(largest.rbegin(), largest.rend());
  for (size_t i = 0; i < std::min(kListedOwners, largest.size()); ++i) {
    text += fmt::format("  largest owner {}: {:.1f} MiB in {}\n", i + 1, mebibytes(largest[i].first),
                        largest[i].second);
  }
  return text;
}

/// The message of OutOfMemory, but what to do about it.
std::string CachingAllocator::out_of_memory_text(const Request& request) const {
  const std::string& name = (*names_)[request.name];
  return fmt::format("[allocate{}{}] needed {} bytes for {} ({:.1f} MiB), and {} has no room\n{}",
                     name.empty() ? "" : " ", name, request.requested, name_of(request.tag),
                     mebibytes(request.requested), name_of(device()), report_locked());
}

std::string CachingAllocator::fix_text(std::vector<std::string> advice) const {
  if (advice.empty() && limit_ < source_->capacity()) advice.emplace_back("raise the memory limit");
  if (advice.empty()) advice.emplace_back("free what is not needed, or use a device with more memory");
  std::string text = advice.size() == 1 ? "fix: " + advice[0] : "fix: in this order,";
  for (size_t i = 0; advice.size() > 1 && i < advice.size(); ++i)
    text += fmt::format("\n  {}. {}", i + 1, advice[i]);
  return text;
}

}  // namespace meshgrad
