// SPDX-License-Identifier: Apache-2.0
// The allocations and frees of a program, in order: recorded once, replayed through any policy.
#pragma once
#include <meshgrad/engine/memory/stats.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

struct MemoryTrace {
  /// An allocation, or with bytes = 0 the free of the block in `slot`.
  struct Event {
    int64_t bytes = 0;
    uint32_t slot = 0;    ///< below `slots`; a slot holds one block at a time
    uint32_t name = 0;    ///< index into `names`
    uint16_t stream = 0;  ///< below `streams`, numbered as they appear
    Tag tag = Tag::activations;
    bool allocates() const { return bytes > 0; }
  };
  std::vector<Event> events;
  std::vector<std::string> names = {""};  ///< the first is for blocks recorded without a name
  uint32_t slots = 0;
  int streams = 0;
  int64_t steps = 0;  ///< as marked in the recording
  int64_t allocations = 0;
  int64_t peak_requested = 0;   ///< the most bytes requested and not yet freed, at any time
  int64_t unmatched_frees = 0;  ///< ignored: their blocks are older than the recording
};

/// Reads a recording in any of these formats, which it detects: plain text (`a ID BYTES [STREAM]`, `f ID`, `s
/// STEP`,
/// `#` comment), the CSV of RMM's logging adaptor, or the JSON of an allocator's history; each may be
/// compressed by gzip. Sizes are multiplied by `scale`. Blocks that are never freed live to the end. Throws
/// DataError, which names the line (JSON: the event).
MemoryTrace read_memory_trace(const std::filesystem::path& path, double scale = 1.0);
/// The same from text; errors name `name` as the file.
MemoryTrace parse_memory_trace(std::string_view text, const std::string& name, double scale = 1.0);

}  // namespace meshgrad
