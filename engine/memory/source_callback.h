// SPDX-License-Identifier: Apache-2.0
// CallbackMemorySource: memory of a host application, made by make_callback_memory().
#pragma once
#include <meshgrad/engine/memory/source.h>

#include <map>

namespace meshgrad {

/// Here addresses come with their memory: reserve() calls `allocate` and release() calls `free`, while map()
/// and unmap() only count. Release every reservation before destroying it.
class CallbackMemorySource final : public MemorySource {
 public:
  /// As make_callback_memory.
  CallbackMemorySource(MemoryCallbacks callbacks, Device device, int64_t capacity,
                       int64_t granularity = int64_t{2} << 20);

  Device device() const override { return device_; }
  int64_t capacity() const override { return capacity_; }
  int64_t mapped_bytes() const override { return mapped_; }
  int64_t granularity() const override { return granularity_; }
  bool expandable() const override { return false; }

  char* reserve(int64_t bytes) override;
  bool map(char* address, int64_t bytes) override;
  void unmap(char* address, int64_t bytes) override;
  void release(char* address, int64_t bytes) override;

  uint64_t record(const Stream& stream) override;
  void wait(const Stream& stream, uint64_t event) override;
  void forget(uint64_t event) override;
  void synchronize(const Stream& stream) override;

 private:
  struct Memory {
    void* pointer = nullptr;  // as returned by callbacks_.allocate
    int64_t bytes = 0;
  };
  Memory allocate(int64_t bytes) const;

  MemoryCallbacks callbacks_;
  Device device_;
  int64_t capacity_;
  int64_t granularity_;
  std::map<char*, Memory> held_;  // by the address that reserve() returned
  int64_t reserved_ = 0;
  int64_t mapped_ = 0;
};

}  // namespace meshgrad
