// SPDX-License-Identifier: Apache-2.0
// An allocator's history over time: bytes in use and reserved, and the address space at the peak.
#pragma once
#include <meshgrad/engine/memory/stats.h>

#include <array>
#include <string>
#include <vector>

namespace meshgrad {

/// Sizes are requested bytes, as events carry them.
struct MemoryTimeline {
  struct Sample {
    int64_t event = 0;  ///< number of events of the history before it
    int64_t nanoseconds = 0;
    std::array<int64_t, kTagCount> in_use{};
    int64_t reserved = 0;
    int64_t total() const;
    bool operator==(const Sample&) const = default;
  };
  /// An allocation that failed.
  struct Shortage {
    int64_t nanoseconds = 0;
    int64_t requested = 0;
    int64_t free = 0;
    Tag tag = Tag::host;
    uint32_t name = 0;
    bool operator==(const Shortage&) const = default;
  };
  struct Range {
    int64_t address = 0;
    int64_t bytes = 0;
    int stream = 0;
    bool operator==(const Range&) const = default;
  };
  struct Block {
    int64_t address = 0;
    int64_t bytes = 0;
    int stream = 0;
    Tag tag = Tag::host;
    uint32_t name = 0;  ///< index into `names`
    bool operator==(const Block&) const = default;
  };

  /// In order of time, from before the first event to after the last, at most a few thousand; downsampling
  /// keeps the highest and the lowest.
  std::vector<Sample> samples;
  std::vector<Shortage> shortages;  ///< the last kMostShortages
  Sample peak;                      ///< the first time at which most bytes were in use
  std::vector<Range> mapped;        ///< at the peak, by address; neighbours of one stream are joined
  std::vector<Block> blocks;        ///< in use at the peak, by address
  std::vector<std::string> names;

  static constexpr size_t kMostShortages = 200;
};

/// Applies the events from the first if the history is complete; otherwise undoes them from the snapshot,
/// which must be of the time just after the last event. Without events it shows the snapshot.
MemoryTimeline make_timeline(const MemorySnapshot& snapshot, const MemoryHistory& history);

}  // namespace meshgrad
