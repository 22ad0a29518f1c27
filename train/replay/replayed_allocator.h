// SPDX-License-Identifier: Apache-2.0
// What a replay asks of an allocator, whether it is simulated or real.
#pragma once
#include <meshgrad/train/replay/trace.h>

namespace meshgrad {

class ReplayedAllocator {
 public:
  virtual ~ReplayedAllocator() = default;
  /// Null when memory ran out.
  virtual void* allocate(const MemoryTrace::Event& request) = 0;
  virtual void free(void* block) = 0;

  virtual int64_t reserved() const = 0;
  /// Calls that took addresses or memory from the driver, or gave them back.
  virtual int64_t driver_calls() const = 0;
  /// Times that cached memory was given back because memory ran short.
  virtual int64_t flushes() const = 0;
  struct FreeMemory {
    int64_t total = 0;
    int64_t largest = 0;  ///< bytes of the largest block
  };
  virtual FreeMemory free_memory() const = 0;
};

}  // namespace meshgrad
