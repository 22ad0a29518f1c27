// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/source_callback.h>

#include <string>
#include <utility>

namespace meshgrad {
namespace {

constexpr int64_t kAlignment = 4096;

int64_t misalignment(const void* memory) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory) & (kAlignment - 1));
}

void check(const MemoryCallbacks& callbacks, int64_t capacity, int64_t granularity) {
  constexpr const char* kWhere = "memory.callbacks";
  if (!callbacks.allocate || !callbacks.free) {
    throw invalid_argument(kWhere, "allocate and free", callbacks.allocate ? "no free" : "no allocate",
                           "set both");
  }
  const int queues =
      bool{callbacks.record} + bool{callbacks.wait} + bool{callbacks.forget} + bool{callbacks.synchronize};
  if (queues != 0 && queues != 4) {
    throw invalid_argument(kWhere, "record, wait, forget and synchronize together",
                           std::to_string(queues) + " of the 4", "set all or none");
  }
  if (capacity < 1) throw invalid_argument(kWhere, "a capacity of 1 byte or more", std::to_string(capacity));
  if (granularity < kAlignment || (granularity & (granularity - 1)) != 0) {
    throw invalid_argument(kWhere, "a granularity that is a power of two of 4096 or more",
                           std::to_string(granularity));
  }
}

}  // namespace

std::shared_ptr<MemorySource> make_callback_memory(MemoryCallbacks callbacks, Device device, int64_t capacity,
                                                   int64_t granularity) {
  return std::make_shared<CallbackMemorySource>(std::move(callbacks), device, capacity, granularity);
}

CallbackMemorySource::CallbackMemorySource(MemoryCallbacks callbacks, Device device, int64_t capacity,
                                           int64_t granularity)
    : callbacks_(std::move(callbacks)), device_(device), capacity_(capacity), granularity_(granularity) {
  check(callbacks_, capacity, granularity);
}

CallbackMemorySource::Memory CallbackMemorySource::allocate(int64_t bytes) const {
  try {
    return {callbacks_.allocate(bytes), bytes};
  } catch (...) {
    return {};  // means: no memory
  }
}

char* CallbackMemorySource::reserve(int64_t bytes) {
  if (bytes <= 0 || bytes > capacity_ - reserved_) return nullptr;
  Memory memory = allocate(bytes);
  if (misalignment(memory.pointer) != 0) {
    callbacks_.free(memory.pointer, memory.bytes);
    memory = allocate(bytes + kAlignment);
  }
  if (memory.pointer == nullptr) return nullptr;
  char* address = static_cast<char*>(memory.pointer);
  if (misalignment(address) != 0) address += kAlignment - misalignment(address);
  held_.emplace(address, memory);
  reserved_ += bytes;
  return address;
}

bool CallbackMemorySource::map(char* address, int64_t bytes) {
  static_cast<void>(address);
  mapped_ += bytes;
  return true;
}

void CallbackMemorySource::unmap(char* address, int64_t bytes) {
  static_cast<void>(address);
  mapped_ -= bytes;
}

void CallbackMemorySource::release(char* address, int64_t bytes) {
  const auto held = held_.find(address);
  if (held == held_.end()) return;
  callbacks_.free(held->second.pointer, held->second.bytes);
  held_.erase(held);
  reserved_ -= bytes;
}

uint64_t CallbackMemorySource::record(const Stream& stream) {
  return callbacks_.record ? callbacks_.record(stream) : 0;
}

void CallbackMemorySource::wait(const Stream& stream, uint64_t event) {
  if (callbacks_.wait) callbacks_.wait(stream, event);
}

void CallbackMemorySource::forget(uint64_t event) {
  if (callbacks_.forget) callbacks_.forget(event);
}

void CallbackMemorySource::synchronize(const Stream& stream) {
  if (callbacks_.synchronize) callbacks_.synchronize(stream);
}

}  // namespace meshgrad
