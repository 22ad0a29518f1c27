// SPDX-License-Identifier: Apache-2.0
// MemorySource: where an allocator gets its memory, and how it waits for queued work. An interface, because
// host applications can implement their own (or use CallbackMemorySource).
#pragma once
#include <meshgrad/engine/stream.h>

#include <cstdint>

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

}  // namespace meshgrad
#pragma GCC visibility pop
