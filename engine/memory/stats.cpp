// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/stats.h>

namespace meshgrad {

std::string_view name_of(Tag tag) {
  constexpr std::string_view kNames[kTagCount] = {"parameters",  "gradients",     "optimizer",
                                                  "activations", "recompute",     "workspace",
                                                  "data",        "communication", "host"};
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

}  // namespace meshgrad
