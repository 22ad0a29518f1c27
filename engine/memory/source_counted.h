// SPDX-License-Identifier: Apache-2.0
// SimulatedMemorySource: counts memory without having any. For dry runs, and for replaying traces larger than
// this machine's memory.
#pragma once
#include <meshgrad/engine/memory/source.h>

namespace meshgrad {

/// Hands out addresses from 1 TiB upwards, which must not be dereferenced. map() and unmap() only count.
/// Released addresses are not reused.
class SimulatedMemorySource final : public MemorySource {
 public:
  struct Calls {
    int64_t reserve = 0;
    int64_t map = 0;  ///< refused ones included
    int64_t unmap = 0;
    int64_t release = 0;
    bool operator==(const Calls&) const = default;
  };

  /// `granularity` is a power of two of 4096 or more.
  explicit SimulatedMemorySource(int64_t capacity, bool expandable = true,
                                 int64_t granularity = int64_t{2} << 20, Device device = {})
      : capacity_(capacity), granularity_(granularity), expandable_(expandable), device_(device) {}

  Device device() const override { return device_; }
  int64_t capacity() const override { return capacity_; }
  int64_t mapped_bytes() const override { return mapped_; }
  int64_t granularity() const override { return granularity_; }
  bool expandable() const override { return expandable_; }

  char* reserve(int64_t bytes) override;
  bool map(char* address, int64_t bytes) override;
  void unmap(char* address, int64_t bytes) override;
  void release(char* address, int64_t bytes) override;

  const Calls& calls() const { return calls_; }

 private:
  int64_t capacity_;
  int64_t granularity_;
  bool expandable_;
  Device device_;
  int64_t next_ = int64_t{1} << 40;
  int64_t mapped_ = 0;
  Calls calls_;
};

}  // namespace meshgrad
