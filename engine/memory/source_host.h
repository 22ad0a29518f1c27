// SPDX-License-Identifier: Apache-2.0
// The memory of this machine, a page at a time.
#pragma once
#include <meshgrad/engine/memory/source.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Ranges of this process's addresses that grow by huge pages. What is unmapped is back with the system at
/// once and no longer readable; what is mapped anew reads as zeros. Release every reservation before
/// destroying it.
class HostMemorySource final : public MemorySource {
 public:
  /// `capacity` counts mapped bytes; 0 means what available_memory() says now.
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

/// `bytes` of addresses at a multiple of `alignment` (a power of two, 4096 or more); touching them faults.
/// nullptr when there are none. munmap gives them back.
char* reserve_addresses(int64_t bytes, int64_t alignment);

/// Makes [address, address + bytes) fault again and drops what was behind it; false when the system has no
/// room for one more piece of address space, and then nothing is changed.
bool drop_mapping(char* address, int64_t bytes);

}  // namespace meshgrad
#pragma GCC visibility pop
