// SPDX-License-Identifier: Apache-2.0
// HostMemorySource: memory of this machine, mapped in huge pages.
#pragma once
#include <meshgrad/engine/memory/source.h>

namespace meshgrad {

/// Expandable, by mmap. Unmapped memory returns to the system at once and faults when it is read; newly
/// mapped memory reads as zeros. Release every reservation before destroying it.
class HostMemorySource final : public MemorySource {
 public:
  /// `capacity` limits mapped bytes; 0 means available_memory() at this moment.
  explicit HostMemorySource(int64_t capacity = 0);

  Device device() const override { return Device{}; }
  int64_t capacity() const override { return capacity_; }
  int64_t mapped_bytes() const override { return mapped_; }
  int64_t granularity() const override { return kPage; }
  bool expandable() const override { return true; }

  char* reserve(int64_t bytes) override;
  bool map(char* address, int64_t bytes) override;
  void unmap(char* address, int64_t bytes) override;
  void release(char* address, int64_t bytes) override;

 private:
  static constexpr int64_t kPage = int64_t{2}
                                   << 20;  // a huge page of x86-64, and of AArch64 with 4 KiB pages

  int64_t capacity_;
  int64_t mapped_ = 0;
};

/// Reserves `bytes` of addresses at a multiple of `alignment` (a power of two, 4096 or more); accessing them
/// faults. nullptr on failure. Release with munmap.
char* reserve_addresses(int64_t bytes, int64_t alignment);

/// Frees the memory of [address, address + bytes) and makes accesses fault again; false, with nothing
/// changed, when the process has too many memory areas.
bool drop_mapping(char* address, int64_t bytes);

}  // namespace meshgrad
