// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/source_counted.h>

namespace meshgrad {

char* SimulatedMemorySource::reserve(int64_t bytes) {
  ++calls_.reserve;
  // A gap after every reservation, so that no two are adjacent.
  if (bytes <= 0 || bytes > INT64_MAX - next_ - 2 * granularity_) return nullptr;
  const int64_t address = (next_ + granularity_ - 1) & -granularity_;
  next_ = address + bytes + granularity_;
  return reinterpret_cast<char*>(address);
}

bool SimulatedMemorySource::map(char* address, int64_t bytes) {
  static_cast<void>(address);
  ++calls_.map;
  if (bytes > capacity_ - mapped_) return false;
  mapped_ += bytes;
  return true;
}

void SimulatedMemorySource::unmap(char* address, int64_t bytes) {
  static_cast<void>(address);
  ++calls_.unmap;
  mapped_ -= bytes;
}

void SimulatedMemorySource::release(char* address, int64_t bytes) {
  static_cast<void>(address), static_cast<void>(bytes);
  ++calls_.release;
}

}  // namespace meshgrad
