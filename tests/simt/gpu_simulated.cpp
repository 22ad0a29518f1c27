// SPDX-License-Identifier: Apache-2.0
// The simulated device of engine/gpu.h: two devices whose memory the host cannot touch, and whose streams
// run their work when the host waits for it.
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu_card.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "arena.h"
#include "runner.h"
#include "streams.h"
#include "transfers.h"

namespace meshgrad::gpu {
namespace {

using simt::arena;
using simt::streams;
using Lock = std::lock_guard<std::recursive_mutex>;

constexpr int kUsualCapability = 90;
std::atomic<int> shared_limit = simt::kSharedBytes;
std::atomic<int> capabilities[simt::kDevices] = {kUsualCapability, kUsualCapability};
std::string built_for = "native";  // guarded by the streams' lock
std::atomic<int64_t> launches, graph_launches, captures, synchronizations, awaits;

simt::Transfers transfers;  // guarded by the streams' lock

std::map<const char*, int64_t>& pinned() {
  static auto& ranges = *new std::map<const char*, int64_t>;
  return ranges;
}
std::map<const void*, int64_t>& exact() {
  static auto& allocations = *new std::map<const void*, int64_t>;
  return allocations;
}

std::shared_ptr<simt::Event>& event_of(void* event) {
  return *static_cast<std::shared_ptr<simt::Event>*>(event);
}

DeviceError refusal(const std::string& needed, const std::string& got) {
  return device_error("simulated device", needed, got, "see the call");
}

bool is_pageable(const void* memory) {
  if (arena().contains(memory)) return false;
  const auto found = pinned().upper_bound(static_cast<const char*>(memory));
  if (found == pinned().begin()) return true;
  const auto& [begin, bytes] = *std::prev(found);
  return static_cast<const char*>(memory) >= begin + bytes;
}

void check_range(const void* memory, int64_t bytes) {
  if (arena().contains(memory) && !arena().live(memory, bytes)) {
    throw refusal(fmt::format("{} bytes of allocated device memory", bytes),
                  arena().describe(static_cast<const char*>(memory)));
  }
}

void refuse_in_capture(const char* what) {
  if (streams().capturing()) streams().refuse(nullptr, what);
}

}  // namespace

bool built() noexcept { return true; }
std::vector<CudaDevice> devices() {
  std::vector<CudaDevice> found;
  for (const std::atomic<int>& capability : capabilities)
    found.push_back({"simulated", simt::kDeviceBytes, capability / 10, capability % 10});
  return found;
}
std::string why_no_devices() { return {}; }
std::string architectures() {
  const Lock lock(streams().lock);
  return built_for;
}
CurrentDevice::CurrentDevice(int device) : device_(device), previous_(simt::current_device()) {
  if (device < 0 || device >= simt::kDevices) throw refusal("device 0 or 1", std::to_string(device));
  simt::current_device() = device;
}
CurrentDevice::~CurrentDevice() { simt::current_device() = previous_; }
int multiprocessors(int) {
  if (const Card* const card = planned_card()) return card->multiprocessors;
  constexpr int kUsual = 3;  // so that a small mesh takes persistent blocks several rounds
  return tested_multiprocessors(kUsual, default_card().multiprocessors);
}
int shared_bytes(int) {
  const Card* const card = planned_card();
  return card != nullptr ? card->shared_bytes() : tested_shared_bytes(shared_limit);
}
MultiprocessorMemory multiprocessor_memory(int) {
  if (const Card* const card = planned_card()) return card->multiprocessor_memory();
  const int reserved = MultiprocessorMemory{}.reserved_per_block;
  return {shared_bytes(0) + reserved, reserved};  // all of it is one block's, as on every GPU since 8.0
}
int compute_capability(int device) {
  const Card* const card = planned_card();
  return card != nullptr ? card->capability : capabilities[device].load();
}
DeviceMemory memory(int device) {
  const CurrentDevice current(device);
  const Lock lock(streams().lock);
  return {simt::kDeviceBytes, simt::kDeviceBytes - arena().committed()};
}

void* create_stream(int device) {
  const CurrentDevice current(device);
  const Lock lock(streams().lock);
  return streams().create(device);
}

void destroy_stream(void* stream) noexcept {
  const Lock lock(streams().lock);
  try {
    streams().flush(streams().of(stream), false);
  } catch (const Error&) {
    // The caller cannot receive it: the stream is destroyed.
  }
  streams().destroy(static_cast<simt::Stream*>(stream));
}

void synchronize(void* stream) {
  ++synchronizations;
  const Lock lock(streams().lock);
  simt::Stream& queue = streams().of_usable(stream);
  if (queue.capture) streams().refuse(&queue, "a synchronisation with the stream");
  streams().flush(queue);
}

void* create_event(int device, bool) {
  const CurrentDevice current(device);
  simt::check_usable(device);
  auto event = std::make_shared<simt::Event>();
  event->device = device;
  return new std::shared_ptr<simt::Event>(std::move(event));
}
void destroy_event(void* event) noexcept { delete static_cast<std::shared_ptr<simt::Event>*>(event); }
void record(void* event, void* stream) {
  const Lock lock(streams().lock);
  streams().record(streams().of_usable(stream), event_of(event));
}
void wait(void* stream, void* event) {
  const Lock lock(streams().lock);
  streams().wait(streams().of_usable(stream), event_of(event));
}
bool passed(void* event) {
  const Lock lock(streams().lock);
  const std::shared_ptr<simt::Event>& asked = event_of(event);
  simt::check_usable(asked->device);
  refuse_in_capture("a question about an event");
  if (asked->captured) throw refusal("an event that was recorded outside of a capture", "a captured one");
  if (asked->done < asked->recorded) streams().progress();
  return asked->done >= asked->recorded;
}
void await(void* event) {
  const Lock lock(streams().lock);
  const std::shared_ptr<simt::Event>& asked = event_of(event);
  simt::check_usable(asked->device);
  refuse_in_capture("a wait for an event");
  if (asked->captured) throw refusal("an event that was recorded outside of a capture", "a captured one");
  if (asked->done < asked->recorded) ++awaits;
  while (asked->done < asked->recorded) streams().progress();
}
double milliseconds(void* from, void* to) {
  const Lock lock(streams().lock);
  return std::chrono::duration<double, std::milli>(event_of(to)->time - event_of(from)->time).count();
}

void copy(void* to, const void* from, int64_t bytes, void* stream) {
  if (bytes == 0) return;
  const Lock lock(streams().lock);
  simt::Stream& queue = streams().of_usable(stream);
  const bool to_pageable = is_pageable(to);
  const bool from_pageable = is_pageable(from);
  if ((to_pageable || from_pageable) && queue.capture) {
    streams().refuse(&queue, "a copy from or to pageable memory");
  }
  check_range(to, bytes);
  check_range(from, bytes);
  const bool to_device = arena().contains(to), from_device = arena().contains(from);
  if (to_device != from_device) {
    ++(to_device ? transfers.to_device : transfers.to_host);
    (to_device ? transfers.bytes_to_device : transfers.bytes_to_host) += bytes;
  }
  const auto size = static_cast<size_t>(bytes);
  if (from_pageable) {
    const char* begin = static_cast<const char*>(from);
    auto snapshot = std::make_shared<std::vector<char>>(begin, begin + bytes);
    streams().enqueue(queue, [=] {
      check_range(to, bytes);
      std::memcpy(to, snapshot->data(), size);
    });
  } else {
    streams().enqueue(queue, [=] {
      check_range(to, bytes);
      check_range(from, bytes);
      std::memmove(to, from, size);
    });
  }
  if (to_pageable) {
    ++synchronizations;
    streams().flush(queue);
  }
}

bool owns(int device, const void* memory, int64_t bytes) {
  const Lock lock(streams().lock);
  return arena().contains(memory) && arena().live(memory, bytes) && arena().device_of(memory) == device;
}
void fill(int device, void* to, int byte, int64_t bytes, void* stream) {
  if (bytes == 0) return;
  const CurrentDevice current(device);
  const Lock lock(streams().lock);
  simt::Stream& queue = streams().of_current(stream, "a memset");
  check_range(to, bytes);
  if (arena().contains(to) && arena().device_of(to) != device) {
    throw refusal(fmt::format("memory of device {}", device), arena().describe(to) + " of the other device");
  }
  streams().enqueue(queue, [=] {
    check_range(to, bytes);
    std::memset(to, byte, static_cast<size_t>(bytes));
  });
}

void* allocate_pinned(int device, int64_t bytes) {
  const CurrentDevice current(device);
  simt::check_usable(device);
  const Lock lock(streams().lock);
  refuse_in_capture("an allocation");
  void* memory = std::malloc(static_cast<size_t>(bytes));
  if (memory == nullptr) throw refusal(fmt::format("{} bytes of pinned memory", bytes), "none");
  std::memset(memory, simt::kPoison, static_cast<size_t>(bytes));
  pinned()[static_cast<const char*>(memory)] = bytes;
  return memory;
}

void free_pinned(void* memory) noexcept {
  const Lock lock(streams().lock);
  try {
    streams().flush_all();
  } catch (const Error&) {
    // As the CUDA runtime does: freeing waits for the device, and does not report errors of its work.
  }
  pinned().erase(static_cast<const char*>(memory));
  std::free(memory);
}

void* allocate(int device, int64_t bytes) {
  const CurrentDevice current(device);
  simt::check_usable(device);
  const Lock lock(streams().lock);
  refuse_in_capture("an allocation");
  // A page after the last that is not mapped.
  char* memory =
      arena().commit(bytes) ? arena().reserve(bytes + simt::kPageBytes, simt::kPageBytes, false) : nullptr;
  if (memory == nullptr) throw refusal(fmt::format("{} bytes of device memory", bytes), "fewer");
  arena().enter(memory, {bytes, simt::MemoryKind::global, "device memory", device});
  exact()[memory] = bytes;
  return memory;
}

void free(void* memory) noexcept {
  if (memory == nullptr) return;
  const Lock lock(streams().lock);
  try {
    streams().flush_all();
  } catch (const Error&) {
    // As free_pinned.
  }
  const auto found = exact().find(memory);
  if (found == exact().end()) std::abort();
  arena().leave(static_cast<char*>(memory), false);
  arena().release(static_cast<char*>(memory), found->second + simt::kPageBytes);
  arena().uncommit(found->second);
  exact().erase(found);
}

void begin_capture(void* stream) {
  ++captures;
  const Lock lock(streams().lock);
  streams().begin_capture(streams().of_usable(stream));
}
void* end_capture(int device, void* stream) {
  const CurrentDevice current(device);
  const Lock lock(streams().lock);
  return streams().end_capture(streams().of(stream)).release();
}
bool capturing(void* stream) {
  const Lock lock(streams().lock);
  return streams().of_usable(stream).capture != nullptr;
}
void abandon_capture(void* stream) noexcept {
  const Lock lock(streams().lock);
  streams().abandon_capture(streams().of(stream));
}
void launch_graph(int device, void* graph, void* stream) {
  ++graph_launches;
  const CurrentDevice current(device);
  const Lock lock(streams().lock);
  // A copy: the graph may be destroyed while it waits in the stream.
  streams().enqueue(streams().of_current(stream, "a graph"),
                    [launched = *static_cast<simt::Graph*>(graph)] { simt::run(launched); });
}
void destroy_graph(void* graph) noexcept { delete static_cast<simt::Graph*>(graph); }

bool profiled() noexcept { return false; }
void begin_range(const char*) noexcept {}
void end_range() noexcept {}
Counters counters() { return {launches, graph_launches, captures, synchronizations, awaits}; }
void count_launch() { ++launches; }

}  // namespace meshgrad::gpu

namespace simt {

Transfers take_transfers() {
  const meshgrad::gpu::Lock lock(streams().lock);
  return std::exchange(meshgrad::gpu::transfers, {});
}

void set_shared_bytes(int bytes) { meshgrad::gpu::shared_limit = bytes > 0 ? bytes : kSharedBytes; }
void set_compute_capability(int capability, int device) {
  for (int i = 0; i < kDevices; ++i) {
    if (device < 0 || i == device)
      meshgrad::gpu::capabilities[i] = capability > 0 ? capability : meshgrad::gpu::kUsualCapability;
  }
}
void set_architectures(const std::string& architectures) {
  const meshgrad::gpu::Lock lock(streams().lock);
  meshgrad::gpu::built_for = architectures.empty() ? "native" : architectures;
}

void launch(const char* name, int64_t blocks, int threads, int shared_bytes, void* stream,
            std::shared_ptr<void> body, size_t body_bytes, void (*call)(void*)) {
  if (blocks < 1 || blocks > INT32_MAX || threads < 1 || threads > kMostThreads || shared_bytes < 0 ||
      shared_bytes > meshgrad::gpu::shared_bytes(0)) {
    throw meshgrad::device_error(
        name,
        fmt::format("1 to {} threads and at most {} bytes of shared memory", kMostThreads,
                    meshgrad::gpu::shared_bytes(0)),
        fmt::format("{} blocks of {} threads, {} bytes", blocks, threads, shared_bytes),
        "change the launch's shape");
  }
  const std::lock_guard lock(streams().lock);
  Stream& queue = streams().of_current(stream, "a kernel");
  Launch started{name, blocks, threads, shared_bytes, current_device(), std::move(body), body_bytes, call};
  streams().enqueue(queue, [started = std::move(started)] { run(started); });
}

}  // namespace simt
