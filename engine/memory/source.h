// SPDX-License-Identifier: Apache-2.0
// MemorySource: where an allocator gets its memory, and how it waits for queued work. An interface, because
// host applications can implement their own, or give the functions of their allocator (make_callback_memory).
#pragma once
#include <meshgrad/engine/stream.h>

#include <cstdint>
#include <functional>
#include <memory>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Addresses are reserved first; then parts of a reservation are mapped to memory. The allocator calls it
/// under its lock, so a source for one allocator needs no lock of its own. Functions must not throw; one that
/// fails changes nothing.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual Device device() const = 0;
  /// The most bytes that can be mapped at once.
  virtual int64_t capacity() const = 0;
  /// Bytes mapped now, as counted by the source.
  virtual int64_t mapped_bytes() const = 0;
  /// Sizes of reservations and mappings, and offsets of mappings in their reservation, are multiples of this.
  virtual int64_t granularity() const = 0;
  /// True: parts of a reservation can be mapped and unmapped one by one. False: every reservation is mapped
  /// and unmapped as a whole (plain cudaMalloc, a host application's allocator).
  virtual bool expandable() const = 0;

  /// Reserves `bytes` of addresses, aligned to 4096 or more, without memory; nullptr on failure.
  virtual char* reserve(int64_t bytes) = 0;
  /// Maps memory (one physical handle) to [address, address + bytes), an unmapped part of a reservation;
  /// false when there is no more memory. Its contents are unspecified.
  virtual bool map(char* address, int64_t bytes) = 0;
  /// Unmaps exactly what one map() mapped. Work that used it is done.
  virtual void unmap(char* address, int64_t bytes) = 0;
  /// Releases a whole reservation in which nothing is mapped.
  virtual void release(char* address, int64_t bytes) = 0;

  /// Records an event after all work queued on `stream` so far. 0 means none: there is nothing to wait for.
  virtual uint64_t record(const Stream& stream) {
    static_cast<void>(stream);
    return 0;
  }
  /// Makes work queued on `stream` from now on wait for the event; does not block the host.
  virtual void wait(const Stream& stream, uint64_t event) {
    static_cast<void>(stream), static_cast<void>(event);
  }
  /// The event is no longer needed.
  virtual void forget(uint64_t event) { static_cast<void>(event); }
  /// Blocks until all work queued on `stream` is done.
  virtual void synchronize(const Stream& stream) { static_cast<void>(stream); }
};

/// Memory of this machine, mapped in huge pages: expandable, by mmap. Unmapped memory returns to the system
/// at once. `capacity` limits mapped bytes; 0 means available_memory() at this moment.
std::shared_ptr<MemorySource> make_host_memory(int64_t capacity = 0);

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

/// Memory of a host application (a buffer, or another library's pool):
///
///   MemoryCallbacks callbacks;
///   callbacks.allocate = [pool](int64_t bytes) { return pool->allocate(bytes); };
///   callbacks.free = [pool](void* memory, int64_t bytes) { pool->deallocate(memory, bytes); };
///   auto source = make_callback_memory(std::move(callbacks), Device{}, int64_t{4} << 30);
///
/// Not expandable. At most `capacity` bytes are allocated at a time, in multiples of `granularity`, plus 4
/// KiB each when the application's memory is not aligned to 4 KiB. Throws InvalidArgument when a callback is
/// missing, `capacity` is below 1, or `granularity` is not a power of two of 4096 or more.
std::shared_ptr<MemorySource> make_callback_memory(MemoryCallbacks callbacks, Device device, int64_t capacity,
                                                   int64_t granularity = int64_t{2} << 20);

}  // namespace meshgrad
#pragma GCC visibility pop
