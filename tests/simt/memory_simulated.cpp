// SPDX-License-Identifier: Apache-2.0
// The simulated device's memory, for engine/memory/source_cuda.h.
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/memory/source_callback.h>
#include <meshgrad/engine/memory/source_cuda.h>

#include <mutex>
#include <vector>

#include "arena.h"
#include "device.h"
#include "streams.h"

namespace meshgrad {
namespace {

using simt::arena;
using Lock = std::lock_guard<std::recursive_mutex>;

bool virtual_memory = true;

void check_device(int device) {
  if (device >= 0 && device < simt::kDevices) return;
  throw device_error("cuda memory", name_of(Device{DeviceKind::cuda, device}), "2 CUDA devices",
                     "use the CPU, or a device that `nvidia-smi -L` lists");
}

/// Numbered from 1, used again.
class Events {
 public:
  explicit Events(int device) : device_(device) {}
  ~Events() {
    for (void* event : events_) gpu::destroy_event(event);
  }
  uint64_t record(const Stream& stream) {
    if (unused_.empty()) {
      events_.push_back(gpu::create_event(device_));
      unused_.push_back(events_.size());
    }
    const uint64_t event = unused_.back();
    unused_.pop_back();
    gpu::record(events_[event - 1], stream.native());
    return event;
  }
  void wait(const Stream& stream, uint64_t event) {
    if (event != 0) gpu::wait(stream.native(), events_[event - 1]);
  }
  void forget(uint64_t event) {
    if (event != 0) unused_.push_back(event);
  }
  void synchronize(const Stream& stream) {
    const Lock lock(simt::streams().lock);
    try {
      simt::streams().flush(simt::streams().of(stream.native()));
    } catch (const Error&) {
      // Sources do not throw.
    }
  }

 private:
  int device_;
  std::vector<void*> events_;
  std::vector<uint64_t> unused_;
};

class VirtualMemory final : public MemorySource {
 public:
  explicit VirtualMemory(int device) : device_(device), events_(device) {}
  Device device() const override { return {DeviceKind::cuda, device_}; }
  int64_t capacity() const override { return simt::kDeviceBytes; }
  int64_t mapped_bytes() const override { return mapped_; }
  int64_t granularity() const override { return simt::kHugePage; }
  bool expandable() const override { return true; }

  char* reserve(int64_t bytes) override {
    const Lock lock(simt::streams().lock);
    return arena().reserve(bytes, simt::kHugePage, true);
  }
  bool map(char* address, int64_t bytes) override {
    const Lock lock(simt::streams().lock);
    if (!arena().commit(bytes)) return false;
    arena().enter(address, {bytes, simt::MemoryKind::global, "mapped device memory", device_});
    mapped_ += bytes;
    return true;
  }
  void unmap(char* address, int64_t bytes) override {
    const Lock lock(simt::streams().lock);
    arena().leave(address, true);
    arena().uncommit(bytes);
    mapped_ -= bytes;
  }
  void release(char* address, int64_t bytes) override {
    const Lock lock(simt::streams().lock);
    arena().release(address, bytes);
  }

  uint64_t record(const Stream& stream) override { return events_.record(stream); }
  void wait(const Stream& stream, uint64_t event) override { events_.wait(stream, event); }
  void forget(uint64_t event) override { events_.forget(event); }
  void synchronize(const Stream& stream) override { events_.synchronize(stream); }

 private:
  int device_;
  Events events_;
  int64_t mapped_ = 0;
};

}  // namespace

std::shared_ptr<MemorySource> make_cuda_virtual_memory(int device) {
  check_device(device);
  if (!virtual_memory) return nullptr;
  return std::make_shared<VirtualMemory>(device);
}

std::shared_ptr<MemorySource> make_cuda_memory(int device) {
  check_device(device);
  const auto events = std::make_shared<Events>(device);
  MemoryCallbacks callbacks;
  callbacks.allocate = [device](int64_t bytes) -> void* {
    try {
      return gpu::allocate(device, bytes);
    } catch (const DeviceError&) {
      return nullptr;
    }
  };
  callbacks.free = [](void* memory, int64_t) { gpu::free(memory); };
  callbacks.record = [events](const Stream& stream) { return events->record(stream); };
  callbacks.wait = [events](const Stream& stream, uint64_t event) { events->wait(stream, event); };
  callbacks.forget = [events](uint64_t event) { events->forget(event); };
  callbacks.synchronize = [events](const Stream& stream) { events->synchronize(stream); };
  return std::make_shared<CallbackMemorySource>(std::move(callbacks), Device{DeviceKind::cuda, device},
                                                simt::kDeviceBytes, simt::kHugePage);
}

}  // namespace meshgrad

void simt::set_virtual_memory(bool supported) { meshgrad::virtual_memory = supported; }
