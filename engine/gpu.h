// SPDX-License-Identifier: Apache-2.0
// The calls to a CUDA device, apart from memory sources (memory/source_cuda.h) and kernels. Three
// implementations: the CUDA runtime (gpu_cuda.cpp), a build without CUDA (gpu_none.cpp), and the tests'
// simulated device, on which the same engine, kernels and trainer run on a CPU. void* handles are the
// runtime's: cudaStream_t, cudaEvent_t, cudaGraphExec_t. Functions that are not noexcept throw DeviceError
// when a call fails or there is no device. Thread-safe as the CUDA runtime is.
#pragma once
#include <meshgrad/engine/device.h>

#include <string>
#include <string_view>

namespace meshgrad::gpu {

/// Whether this build has a CUDA backend.
bool built() noexcept;
std::vector<CudaDevice> devices();
/// Why devices() is empty, for messages: "a build without CUDA", "a driver of CUDA 12.4, older than CUDA 13.0
/// of this build". Empty when there are devices.
std::string why_no_devices();
/// What kernels were compiled for, as CMAKE_CUDA_ARCHITECTURES names it: "80-real 90-real 90-virtual". Empty
/// in a build without CUDA.
std::string architectures();
/// What a build for these architectures has for a device: nothing, PTX that its driver compiles at first use,
/// or instructions. `capability` as of compute_capability.
enum class Code : uint8_t { none, ptx, binary };
Code code_for(int capability, std::string_view architectures);
/// While it lives, `device` is the calling thread's current device; then the previous one is again. CUDA
/// needs that for launches and for whatever is created. The functions below that take a device do it
/// themselves.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  [[maybe_unused]] int device_, previous_;
};
/// Streaming multiprocessors: the number of thread blocks of a persistent kernel. Tests let kernels use
/// fewer, see tested_multiprocessors. This and the three functions below speak of the thread's PlannedCard
/// (gpu_card.h) where it has one, and without a device of default_card().
int multiprocessors(int device);
/// What the variable MESHGRAD_TEST_MULTIPROCESSORS says, from 1 to `most`; without it, `usual`. With few of
/// them, blocks of small problems take several rounds, as they do of large ones.
int tested_multiprocessors(int usual, int most);
/// Shared memory that one thread block may opt in to, in bytes. Tests let kernels have less, see
/// tested_shared_bytes.
int shared_bytes(int device);
/// What the variable MESHGRAD_TEST_SHARED_BYTES says, from what every device has to `most`; without it,
/// `most`. So a large GPU runs the kernels of a smaller one.
int tested_shared_bytes(int most);
inline constexpr int kLeastSharedBytes = 48 * 1024;
/// Shared memory of a multiprocessor, and what the system takes of it for each resident thread block.
struct MultiprocessorMemory {
  int bytes = 228 * 1024, reserved_per_block = 1024;
};
MultiprocessorMemory multiprocessor_memory(int device);
/// The compute capability, ten times its first number and the second: 90 is 9.0.
int compute_capability(int device);
/// Memory of a device in bytes, counting all processes that use it.
struct DeviceMemory {
  int64_t total = 0, free = 0;
};
DeviceMemory memory(int device);

/// A stream that does not synchronize with the default stream.
void* create_stream(int device);
void destroy_stream(void* stream) noexcept;
/// Blocks the host until all work queued on the stream is done; counted. Throws DeviceError when that work
/// failed.
void synchronize(void* stream);

/// It can be recorded on streams of this device only; streams of any device can wait for it.
void* create_event(int device, bool timing = false);
void destroy_event(void* event) noexcept;
void record(void* event, void* stream);
/// Makes work queued on the stream from now on wait for the event; the host goes on.
void wait(void* stream, void* event);
/// Whether the work before the event is done.
bool passed(void* event);
/// Blocks the host until the event has passed; counted when it has to wait.
void await(void* event);
/// Time between two events created with `timing` that have passed.
double milliseconds(void* from, void* to);

/// Queues a copy between device and host memory in any direction. With pageable host memory it returns when
/// the host may reuse that memory; pinned memory must stay unchanged until the copy is done.
void copy(void* to, const void* from, int64_t bytes, void* stream);
/// Whether `bytes` from `memory` on are allocated on the device, or managed. A copy of other memory, freed
/// say, may end the process.
bool owns(int device, const void* memory, int64_t bytes);
/// Queues a memset of memory of the stream's device.
void fill(int device, void* to, int byte, int64_t bytes, void* stream);

/// Page-locked host memory, which any device copies asynchronously. Allocating it may synchronize `device`.
void* allocate_pinned(int device, int64_t bytes);
void free_pinned(void* memory) noexcept;
/// Device memory of exactly this size, for tests; elsewhere memory comes from the allocator.
void* allocate(int device, int64_t bytes);
void free(void* memory) noexcept;

/// Between the two calls, work on the stream is captured instead of run. `end_capture` returns an executable
/// graph.
void begin_capture(void* stream);
void* end_capture(int device, void* stream);
bool capturing(void* stream);
/// Ends a capture that failed and discards it.
void abandon_capture(void* stream) noexcept;
void launch_graph(int device, void* graph, void* stream);
void destroy_graph(void* graph) noexcept;

/// Whether a profiler that takes NVTX ranges is attached to this process. It needs no device.
bool profiled() noexcept;
/// Begins and ends a range of the calling thread, in the domain "meshgrad"; they nest. Only if profiled().
void begin_range(const char* name) noexcept;
void end_range() noexcept;

/// Calls of this process so far, on all devices.
struct Counters {
  int64_t launches = 0;  ///< kernel launches, not counting those inside graphs
  int64_t graph_launches = 0;
  int64_t captures = 0;
  int64_t synchronizations = 0;  ///< of the host with a stream; copies to pageable memory count
  int64_t awaits = 0;            ///< events that the host had to wait for
};
Counters counters();
/// Called by the kernels' launch function.
void count_launch();

}  // namespace meshgrad::gpu
