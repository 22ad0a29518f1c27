// SPDX-License-Identifier: Apache-2.0
// Memory that a host application hands over: its own buffer, a capped share of it, or another library's pool.
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

/// What the application does for its memory. The last four belong to devices with queues and are given
/// together or not at all (then all work counts as done when it was queued); MemorySource says what each must
/// do. They are called under the allocator's lock: they must not call that allocator, and only `allocate` may
/// throw.
struct MemoryCallbacks {
  std::function<void*(int64_t bytes)> allocate;  ///< any alignment; nullptr or an exception: no memory
  std::function<void(void* memory, int64_t bytes)> free;  ///< exactly what allocate gave, for the same bytes
  std::function<uint64_t(const Stream& stream)> record;
  std::function<void(const Stream& stream, uint64_t event)> wait;
  std::function<void(uint64_t event)> forget;
  std::function<void(const Stream& stream)> synchronize;
};

/// Addresses come with their memory here: reserve() asks the application and release() gives back, while
/// map() and unmap() only count. Release every reservation before destroying it.
class CallbackMemorySource final : public MemorySource {
 public:
  /// The application is never asked for more than `capacity` bytes at once, and always for multiples of
  /// `granularity`, plus 4 KiB where its memory turns out not to be aligned to 4 KiB. Throws InvalidArgument
  /// when a callback is missing, `capacity` is below 1, or `granularity` is no power of two of 4096 or more.
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
  struct Loan {
    void* memory = nullptr;  // as the application gave it
    int64_t bytes = 0;
  };
  Loan borrow(int64_t bytes) const;

  MemoryCallbacks callbacks_;
  Device device_;
  int64_t capacity_;
  int64_t granularity_;
  std::map<char*, Loan> loans_;  // by the address that reserve() gave
  int64_t reserved_ = 0;
  int64_t mapped_ = 0;
};

}  // namespace meshgrad
#pragma GCC visibility pop
