// SPDX-License-Identifier: Apache-2.0
// A build without CUDA: there are no devices, and every call that needs one throws DeviceError.
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu_card.h>
#include <meshgrad/engine/memory/source_cuda.h>

#include <string>

namespace meshgrad {
namespace {

[[noreturn]] void refuse(const std::string& device = "a CUDA device") {
  throw device_error("cuda", device, "a build without CUDA", "build with -DMESHGRAD_CUDA=ON, or use the CPU");
}

const gpu::Card& planned() {
  const gpu::Card* const card = gpu::planned_card();
  return card != nullptr ? *card : gpu::default_card();
}

}  // namespace

std::shared_ptr<MemorySource> make_cuda_virtual_memory(int device) {
  refuse(name_of({DeviceKind::cuda, device}));
}
std::shared_ptr<MemorySource> make_cuda_memory(int device) { refuse(name_of({DeviceKind::cuda, device})); }

namespace gpu {

bool built() noexcept { return false; }
std::vector<CudaDevice> devices() { return {}; }
std::string why_no_devices() { return "a build without CUDA"; }
std::string architectures() { return {}; }
CurrentDevice::CurrentDevice(int) : device_(0), previous_(0) { refuse(); }
CurrentDevice::~CurrentDevice() = default;
int multiprocessors(int) { return planned().multiprocessors; }
int shared_bytes(int) { return planned().shared_bytes(); }
MultiprocessorMemory multiprocessor_memory(int) { return planned().multiprocessor_memory(); }
int compute_capability(int) { return planned().capability; }
DeviceMemory memory(int) { refuse(); }
void* create_stream(int) { refuse(); }
void destroy_stream(void*) noexcept {}
void synchronize(void*) { refuse(); }
void* create_event(int, bool) { refuse(); }
void destroy_event(void*) noexcept {}
void record(void*, void*) { refuse(); }
void wait(void*, void*) { refuse(); }
bool passed(void*) { refuse(); }
void await(void*) { refuse(); }
double milliseconds(void*, void*) { refuse(); }
void copy(void*, const void*, int64_t, void*) { refuse(); }
bool owns(int, const void*, int64_t) { refuse(); }
void fill(int, void*, int, int64_t, void*) { refuse(); }
void* allocate_pinned(int, int64_t) { refuse(); }
void free_pinned(void*) noexcept {}
void* allocate(int, int64_t) { refuse(); }
void free(void*) noexcept {}
void begin_capture(void*) { refuse(); }
void* end_capture(int, void*) { refuse(); }
bool capturing(void*) { refuse(); }
void abandon_capture(void*) noexcept {}
void launch_graph(int, void*, void*) { refuse(); }
void destroy_graph(void*) noexcept {}
bool profiled() noexcept { return false; }
void begin_range(const char*) noexcept {}
void end_range() noexcept {}
Counters counters() { return {}; }
void count_launch() {}

}  // namespace gpu
}  // namespace meshgrad
