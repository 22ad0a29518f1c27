// SPDX-License-Identifier: Apache-2.0
// The interface of an allocator that a trace is replayed through, simulated or real.
#pragma once
#include <meshgrad/train/tools/extras/replay/trace.h>

namespace meshgrad {

class ReplayedAllocator {
 public:
  virtual ~ReplayedAllocator() = default;
  /// Null when memory ran out.
  virtual void* allocate(const MemoryTrace::Event& request) = 0;
  virtual void free(void* block) = 0;

  virtual int64_t reserved() const = 0;
  /// Calls that reserve, map, unmap or release memory of the driver.
  virtual int64_t driver_calls() const = 0;
  /// Times that cached memory was released because memory ran short.
  virtual int64_t flushes() const = 0;
  struct FreeMemory {
    int64_t total = 0;
    int64_t largest = 0;  ///< bytes of the largest block
  };
  virtual FreeMemory free_memory() const = 0;
};

}  // namespace meshgrad
