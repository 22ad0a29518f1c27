// SPDX-License-Identifier: Apache-2.0
// Where an allocator's memory comes from. Virtual because implementations exist outside this library: a host
// application can hand its own.
#pragma once
#include <meshgrad/engine/device.h>

#include <cstdint>

namespace meshgrad {

/// Hands out whole segments. Calls come from one allocator at a time, under its lock.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual Device device() const = 0;
  /// A segment of `bytes` (a multiple of granularity()), or nullptr when there is no more.
  virtual void* map(int64_t bytes) = 0;
  virtual void unmap(void* segment, int64_t bytes) = 0;
  /// Every segment's size is a multiple of this, and its address aligned to it or to 4096, whichever is less.
  virtual int64_t granularity() const = 0;
  /// Bytes this source could ever map.
  virtual int64_t capacity() const = 0;
};

/// Anonymous pages of the host, unmapped as soon as they are given back. `limit_bytes` simulates a smaller
/// machine; 0 means available_memory().
class HostMemorySource final : public MemorySource {
 public:
  explicit HostMemorySource(int64_t limit_bytes = 0);
  Device device() const override { return Device{}; }
  void* map(int64_t bytes) override;
  void unmap(void* segment, int64_t bytes) override;
  int64_t granularity() const override { return int64_t{2} << 20; }
  int64_t capacity() const override { return limit_; }
  int64_t mapped_bytes() const { return mapped_; }

 private:
  int64_t limit_;
  int64_t mapped_ = 0;
};

}  // namespace meshgrad
