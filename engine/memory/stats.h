// SPDX-License-Identifier: Apache-2.0
// What an allocator counts, what it remembers, and a picture of all its blocks at one instant.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

/// What a piece of memory is for; every allocation carries one.
enum class Tag : uint8_t {
  parameters,
  gradients,
  optimizer,
  activations,
  recompute,
  workspace,
  data,
  communication,
  host
};
inline constexpr int kTagCount = 9;
std::string_view name_of(Tag tag);

/// Bytes now, the most at any time since reset_peak(), and the sum of all increases.
struct MemoryCounter {
  int64_t current = 0;
  int64_t peak = 0;
  int64_t total = 0;
  void add(int64_t bytes) {
    current += bytes;
    if (bytes <= 0) return;
    total += bytes;
    if (current > peak) peak = current;
  }
  bool operator==(const MemoryCounter&) const = default;
};

struct MemoryCounters {
  MemoryCounter requested;       ///< asked for
  MemoryCounter allocated;       ///< handed out: requested, rounded up
  MemoryCounter active;          ///< allocated, or freed while other streams may still use it
  MemoryCounter reserved;        ///< mapped from the source
  MemoryCounter inactive_split;  ///< free, in a run of mappings of which something is in use
  bool operator==(const MemoryCounters&) const = default;
};

/// The totals, and their parts: by pool (small blocks in slabs, all others), by stream (the one whose heap
/// holds the block), by tag (which knows no reserved and no inactive_split).
struct MemoryStats : MemoryCounters {
  struct OfStream {
    int stream = 0;  ///< Stream::id()
    MemoryCounters counters;
  };
  MemoryCounters small, large;
  std::vector<OfStream> by_stream;
  std::array<MemoryCounters, kTagCount> by_tag;
  /// Allocated bytes of each tag when allocated.peak was reached: they add up to it.
  std::array<int64_t, kTagCount> tags_at_peak{};

  MemoryCounter pinned;  ///< free bytes of mappings that cannot be given back, as something in them is used
  int64_t largest_free = 0;  ///< bytes of the largest free block
  int64_t holes = 0;         ///< runs of addresses without memory below mapped ones of one reservation
  int64_t capacity = 0;      ///< bytes this allocator may have mapped

  int64_t live_allocations = 0;
  int64_t allocations = 0;
  int64_t source_calls = 0;        ///< of reserve, map, unmap and release
  int64_t source_nanoseconds = 0;  ///< spent in them, and in waiting for work before an unmap
  int64_t growths = 0;             ///< mappings made
  int64_t flushes = 0;             ///< times cached memory was given back because memory ran short
  int64_t borrows = 0;       ///< blocks handed to another stream than their heap's, because memory ran short
  int64_t retries = 0;       ///< allocations that succeeded only after a flush or a callback
  int64_t stream_waits = 0;  ///< times a stream was made to wait for another before a reuse
  int64_t out_of_memory = 0;

  int64_t free_bytes() const { return reserved.current - allocated.current; }
  /// 1 - largest free block / all free bytes; 0 when nothing is free.
  double external_fragmentation() const;
  /// Bytes lost to rounding: allocated - requested.
  int64_t internal_fragmentation() const { return allocated.current - requested.current; }
};

/// Everything that an allocator holds, at one instant.
struct MemorySnapshot {
  enum class State : uint8_t { used, free };
  struct Block {
    int64_t address = 0;
    int64_t bytes = 0;
    State state = State::free;
    bool small = false;     ///< in a slab
    int64_t requested = 0;  ///< of a used block, like the rest
    int stream = 0;         ///< that it was allocated for
    Tag tag = Tag::host;
    std::string name;
  };
  /// A run of mapped addresses; its blocks tile it, in order.
  struct Segment {
    int64_t address = 0;
    int64_t bytes = 0;
    int stream = 0;                 ///< whose heap this is
    int64_t range = 0;              ///< where the reservation begins that it lies in
    std::vector<int64_t> mappings;  ///< addresses where a mapping begins, in order
    std::vector<Block> blocks;
  };
  /// Bytes of free blocks that other streams may still use; a reuse waits for them.
  struct Pending {
    int64_t address = 0;
    int64_t bytes = 0;
    int stream = 0;  ///< whose heap this is
    bool small = false;
    Tag tag = Tag::host;
  };
  MemoryStats stats;
  std::vector<Segment> segments;  ///< by heap, then by address
  std::vector<Pending> pending;
};

/// One line of an allocator's history.
struct MemoryEvent {
  enum class Kind : uint8_t {
    alloc,           ///< a block was handed out; bytes: asked for
    free_requested,  ///< its owner let go of it; bytes: asked for
    free_completed,  ///< it can be reused; at once, as reuse waits on the device for what is pending
    segment_map,     ///< the source mapped memory
    segment_unmap,   ///< the source took it back
    out_of_memory    ///< bytes: asked for; address: bytes that were still free
  };
  Kind kind = Kind::alloc;
  Tag tag = Tag::host;
  int stream = 0;
  uint32_t name = 0;  ///< index into MemoryHistory::names
  int64_t address = 0;
  int64_t bytes = 0;
  int64_t nanoseconds = 0;  ///< since the Unix epoch
};
std::string_view name_of(MemoryEvent::Kind kind);

/// The last events, oldest first.
struct MemoryHistory {
  std::vector<MemoryEvent> events;
  std::vector<std::string> names;
  int64_t dropped = 0;  ///< older events that the ring no longer holds
};

/// A snapshot and the events that led to it.
struct MemoryRecord {
  MemorySnapshot snapshot;
  MemoryHistory history;
};

}  // namespace meshgrad
#pragma GCC visibility pop
