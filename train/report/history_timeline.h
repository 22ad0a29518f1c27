// SPDX-License-Identifier: Apache-2.0
// What a history says: how much memory was in use over time, and what lay where when it was most.
#pragma once
#include <meshgrad/engine/memory/stats.h>

#include <array>
#include <string>
#include <vector>

namespace meshgrad {

/// Sizes are those asked for, as that is what events carry.
struct MemoryTimeline {
  struct Sample {
    int64_t event = 0;  ///< how many events of the history came before
    int64_t nanoseconds = 0;
    std::array<int64_t, kTagCount> in_use{};
    int64_t reserved = 0;
    int64_t total() const;
    bool operator==(const Sample&) const = default;
  };
  struct Shortage {
    int64_t nanoseconds = 0;
    int64_t asked = 0;
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

  /// In order of time, from before the first event to after the last, at most a few thousand: those between
  /// which nothing higher and nothing lower is left out.
  std::vector<Sample> samples;
  std::vector<Shortage> shortages;  ///< the last kMostShortages
  Sample peak;                      ///< the first instant at which most bytes were in use
  std::vector<Range> mapped;        ///< at the peak, by address; neighbours of one stream are joined
  std::vector<Block> blocks;        ///< in use at the peak, by address
  std::vector<std::string> names;

  static constexpr size_t kMostShortages = 200;
};

/// Follows the history from its first event when that is the allocator's first; otherwise goes back from the
/// snapshot, which must be of the time just after the last event. Without events it shows the snapshot.
MemoryTimeline make_timeline(const MemorySnapshot& snapshot, const MemoryHistory& history);

}  // namespace meshgrad
