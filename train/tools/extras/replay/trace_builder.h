// SPDX-License-Identifier: Apache-2.0
// Builds a trace from the lines or events of a recording, and checks that they are consistent.
#pragma once
#include <meshgrad/train/tools/extras/replay/trace.h>

#include <unordered_map>

namespace meshgrad {

class TraceBuilder {
 public:
  /// `unit` is what errors count: "line" or "event".
  TraceBuilder(std::string name, std::string_view unit, double scale);

  /// Position of the following calls in the recording, counted from 1.
  void at(int64_t position) { position_ = position; }
  /// `block` can be reused once it is freed. A block of 0 bytes is not part of the trace.
  void allocate(uint64_t block, int64_t bytes, uint64_t stream, Tag tag = Tag::activations,
                uint32_t name = 0);
  /// False when no such block is live.
  bool free(uint64_t block);
  void step() { ++trace_.steps; }
  void count_unmatched_free() { ++trace_.unmatched_frees; }
  void set_names(std::vector<std::string> names) { trace_.names = std::move(names); }

  /// Throws DataError about the current position.
  [[noreturn]] void fail(std::string_view needed, std::string_view got, std::string_view fix) const;
  /// Throws DataError when nothing was allocated.
  MemoryTrace finish();

 private:
  struct Live {
    int64_t bytes;
    int64_t position;
    uint32_t slot;
  };
  std::string place(int64_t position) const;
  uint16_t stream_index(uint64_t stream);

  MemoryTrace trace_;
  std::string name_;
  std::string unit_;
  double scale_;
  int64_t position_ = 0;
  int64_t requested_ = 0;
  std::unordered_map<uint64_t, Live> live_;
  std::vector<uint32_t> spare_slots_;
  std::vector<uint64_t> streams_;
};

/// Format readers; `text` is the whole recording.
MemoryTrace parse_plain_trace(std::string_view text, const std::string& name, double scale);
MemoryTrace parse_rmm_trace(std::string_view text, const std::string& name, double scale);
MemoryTrace parse_history_trace(std::string_view text, const std::string& name, double scale);

}  // namespace meshgrad
