// SPDX-License-Identifier: Apache-2.0
// An allocator's statistics (counters), its snapshot (all blocks at one instant) and its history (last
// events). All sizes are in bytes. Plain values: they stay valid when the allocator changes or is gone.
#pragma once
#include <meshgrad/engine/memory/tag.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

struct MemoryCounter {
  int64_t current = 0;
  int64_t peak = 0;   ///< highest value of `current` since CachingAllocator::reset_peak()
  int64_t total = 0;  ///< sum of all increases
  void add(int64_t bytes) {
    current += bytes;
    if (bytes <= 0) return;
    total += bytes;
    if (current > peak) peak = current;
  }
  bool operator==(const MemoryCounter&) const = default;
};

struct MemoryCounters {
  MemoryCounter requested;       ///< as passed to allocate()
  MemoryCounter allocated;       ///< requested, rounded up to whole blocks
  MemoryCounter active;          ///< allocated, and freed while other streams may still use it
  MemoryCounter reserved;        ///< mapped from the source, in use or not
  MemoryCounter inactive_split;  ///< free, but in a run of mappings that is partly in use
  bool operator==(const MemoryCounters&) const = default;
};

/// Totals (the base class) and their parts: small (blocks in slabs) and large; by the stream whose heap holds
/// the block; by tag, where `reserved` and `inactive_split` stay 0. Each kind of part adds up to the totals.
struct MemoryStats : MemoryCounters {
  struct OfStream {
    int stream = 0;  ///< Stream::id()
    MemoryCounters counters;
  };
  MemoryCounters small, large;
  std::vector<OfStream> by_stream;
  std::array<MemoryCounters, kTagCount> by_tag;
  /// Allocated bytes of each tag when allocated.peak was reached; they add up to the peak.
  std::array<int64_t, kTagCount> tags_at_peak{};

  MemoryCounter pinned;      ///< free bytes in mappings that are partly in use and so cannot be unmapped
  int64_t largest_free = 0;  ///< size of the largest free block
  int64_t holes = 0;         ///< unmapped runs of addresses below the highest mapping of a reservation
  int64_t capacity = 0;      ///< the most that this allocator may map: the limit, or the source's capacity

  int64_t live_allocations = 0;  ///< allocated and not yet freed
  int64_t allocations = 0;       ///< calls of allocate() and allocate_raw() that succeeded
  int64_t source_calls = 0;      ///< reserve, map, unmap and release
  int64_t source_nanoseconds =
      0;                      ///< wall time in those calls, and in device synchronization before an unmap
  int64_t growths = 0;        ///< mappings made
  int64_t flushes = 0;        ///< times that cached memory was unmapped because memory ran short
  int64_t borrows = 0;        ///< blocks allocated from another stream's heap because memory ran short
  int64_t retries = 0;        ///< allocations that succeeded only after a flush or a callback
  int64_t stream_waits = 0;   ///< waits queued on a stream before it reused a block of another
  int64_t out_of_memory = 0;  ///< allocations that threw OutOfMemory

  /// Mapped bytes that no block uses (cached memory).
  int64_t free_bytes() const { return reserved.current - allocated.current; }
  /// 1 - largest free block / free_bytes(), in [0, 1]; 0 when nothing is free.
  double external_fragmentation() const;
  /// Bytes lost to rounding: allocated - requested.
  int64_t internal_fragmentation() const { return allocated.current - requested.current; }
};

/// All blocks of an allocator at one instant. Recounting them gives exactly `stats`.
struct MemorySnapshot {
  enum class State : uint8_t { used, free };
  struct Block {
    int64_t address = 0;
    int64_t bytes = 0;
    State state = State::free;
    bool small = false;  ///< in a slab
    // Of used blocks only:
    int64_t requested = 0;  ///< as passed to allocate()
    int stream = 0;         ///< id of the stream that it was allocated for
    Tag tag = Tag::host;
    std::string name;  ///< scopes and name, joined by '/'
  };
  /// A mapped segment: a run of mapped addresses, tiled by its blocks in order of address.
  struct Segment {
    int64_t address = 0;
    int64_t bytes = 0;
    int stream = 0;                 ///< id of the stream whose heap this is
    int64_t range = 0;              ///< first address of the reservation around it
    std::vector<int64_t> mappings;  ///< first address of each mapping, ascending
    std::vector<Block> blocks;
  };
  /// Part of free blocks that work on other streams may still use; reuse waits on the device for that work.
  struct Pending {
    int64_t address = 0;
    int64_t bytes = 0;
    int stream = 0;  ///< id of the stream whose heap this is
    bool small = false;
    Tag tag = Tag::host;
  };
  MemoryStats stats;
  std::vector<Segment> segments;  ///< by heap, then by address
  std::vector<Pending> pending;
};

/// One event of an allocator's history.
struct MemoryEvent {
  enum class Kind : uint8_t {
    alloc,           ///< a block was allocated; bytes: as requested
    free_requested,  ///< its owner freed it; bytes: as requested
    free_completed,  ///< it can be reused; follows at once, since reuse waits on the device, not on the host
    segment_map,     ///< the source mapped memory
    segment_unmap,   ///< the source unmapped it
    out_of_memory    ///< bytes: as requested; address: bytes that were still free below the limit
  };
  Kind kind = Kind::alloc;
  Tag tag = Tag::host;
  int stream = 0;     ///< Stream::id()
  uint32_t name = 0;  ///< index into MemoryHistory::names
  int64_t address = 0;
  int64_t bytes = 0;
  int64_t nanoseconds = 0;  ///< since the Unix epoch
};
/// "alloc", "free_requested", ...
std::string_view name_of(MemoryEvent::Kind kind);

struct MemoryHistory {
  std::vector<MemoryEvent> events;  ///< the last AllocatorOptions::history events, oldest first
  std::vector<std::string> names;   ///< of allocations, by MemoryEvent::name
  int64_t dropped = 0;              ///< older events that the ring buffer no longer holds
};

/// A snapshot and the events before it.
struct MemoryRecord {
  MemorySnapshot snapshot;
  MemoryHistory history;
};

}  // namespace meshgrad
#pragma GCC visibility pop
