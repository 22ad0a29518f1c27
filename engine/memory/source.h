// SPDX-License-Identifier: Apache-2.0
// Where an allocator's memory comes from, and how work queued on it is waited for. Virtual because
// implementations exist outside this library: a host application can hand its own.
#pragma once
#include <meshgrad/engine/stream.h>

#include <cstdint>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Addresses are reserved, memory is mapped behind parts of them. Calls come from one allocator at a time,
/// under its lock, so an implementation that serves one allocator needs no lock of its own. Nothing here
/// throws; what cannot be done changes nothing.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual Device device() const = 0;
  /// Bytes this source could ever have mapped at once.
  virtual int64_t capacity() const = 0;
  /// Bytes mapped now, by the source's own count.
  virtual int64_t mapped_bytes() const = 0;
  /// Sizes of reservations and mappings, and the places of mappings in their reservation, are multiples of
  /// this.
  virtual int64_t granularity() const = 0;
  /// True: a reservation grows by mappings at any place of it. False: every reservation is mapped whole, by
  /// one call, and unmapped whole (plain cudaMalloc, a host application's allocator).
  virtual bool expandable() const = 0;

  /// `bytes` of addresses, aligned to 4096 or more, with no memory behind them; nullptr when there are none.
  virtual char* reserve(int64_t bytes) = 0;
  /// Puts memory (one physical handle) behind [address, address + bytes) of a reservation, where there was
  /// none; false when there is no more memory. Its contents are unspecified.
  virtual bool map(char* address, int64_t bytes) = 0;
  /// Takes back exactly what one map() gave. Work that used it has ended.
  virtual void unmap(char* address, int64_t bytes) = 0;
  /// Gives back a whole reservation with nothing mapped in it.
  virtual void release(char* address, int64_t bytes) = 0;

  /// A point in `stream`'s queue, after all that is queued so far. 0 is no event, and needs no waiting for.
  virtual uint64_t record(const Stream& stream) {
    static_cast<void>(stream);
    return 0;
  }
  /// Makes what is queued on `stream` from now on wait for the event, without stopping the host.
  virtual void wait(const Stream& stream, uint64_t event) {
    static_cast<void>(stream), static_cast<void>(event);
  }
  /// The event will not be asked for again.
  virtual void forget(uint64_t event) { static_cast<void>(event); }
  /// Returns when all work queued on `stream` is done.
  virtual void synchronize(const Stream& stream) { static_cast<void>(stream); }
};

}  // namespace meshgrad
#pragma GCC visibility pop
