// SPDX-License-Identifier: Apache-2.0
// Embedding API: CallbackMemorySource, memory of a host application (a buffer, or another library's pool).
//
//   MemoryCallbacks callbacks;
//   callbacks.allocate = [pool](int64_t bytes) { return pool->allocate(bytes); };
//   callbacks.free = [pool](void* memory, int64_t bytes) { pool->deallocate(memory, bytes); };
//   auto source = std::make_shared<CallbackMemorySource>(std::move(callbacks), Device{}, int64_t{4} << 30);
#pragma once
#include <meshgrad/engine/memory/source.h>

#include <functional>
#include <map>

#pragma GCC visibility push(default)
namespace meshgrad {

/// The application's functions. The last four are for devices with queues and have the meaning of
/// MemorySource's functions of that name; set all of them or none (then work counts as done once it is
/// queued). They are called under the allocator's lock: they must not call that allocator, and only
/// `allocate` may throw.
struct MemoryCallbacks {
  std::function<void*(int64_t bytes)> allocate;  ///< at any alignment; nullptr or an exception: no memory
  std::function<void(void* memory, int64_t bytes)> free;  ///< a pointer from allocate, with its size
  std::function<uint64_t(const Stream& stream)> record;
  std::function<void(const Stream& stream, uint64_t event)> wait;
  std::function<void(uint64_t event)> forget;
  std::function<void(const Stream& stream)> synchronize;
};

/// Here addresses come with their memory: reserve() calls `allocate` and release() calls `free`, while map()
/// and unmap() only count. Release every reservation before destroying it.
class CallbackMemorySource final : public MemorySource {
 public:
  /// At most `capacity` bytes are allocated at a time, in multiples of `granularity`, plus 4 KiB each when
  /// the application's memory is not aligned to 4 KiB. Throws InvalidArgument when a callback is missing,
  /// `capacity` is below 1, or `granularity` is not a power of two of 4096 or more.
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
#pragma GCC visibility pop
