// SPDX-License-Identifier: Apache-2.0
// All that meshgrad asks of a CUDA device, apart from memory (cuda_memory.h) and kernels. One seam with three
// sides: the CUDA runtime (gpu_cuda.cpp), a build without CUDA (gpu_none.cpp), and the tests' simulated
// device, on which the same engine, kernels and trainer run on a CPU. Handles are the runtime's own: a
// cudaStream_t, a cudaEvent_t, a cudaGraphExec_t. Everything throws DeviceError when the device refuses, and
// where there is none.
#pragma once
#include <meshgrad/engine/device.h>

namespace meshgrad::gpu {

/// Whether this build can use a device at all.
bool built() noexcept;
std::vector<CudaDevice> devices();
/// The device of this thread's next calls.
void use(int device);
/// Streaming multiprocessors: how many blocks a persistent kernel starts. Where there is no device at all,
/// those of an H200, for plans.
int multiprocessors(int device);
/// Shared memory that one block may have, in bytes; likewise.
int shared_bytes(int device);
/// Of the device, by all that use it.
struct DeviceMemory {
  int64_t total = 0, free = 0;
};
DeviceMemory memory(int device);

void* create_stream(int device);
void destroy_stream(void* stream) noexcept;
/// Returns when all work queued on the stream is done; counted. Throws DeviceError for what went wrong in it.
void synchronize(void* stream);

void* create_event(bool timing = false);
void destroy_event(void* event) noexcept;
void record(void* event, void* stream);
/// Makes the stream wait for the event; the host goes on.
void wait(void* stream, void* event);
bool passed(void* event);
/// Returns when the event has passed: how the host keeps from running too far ahead. Counted when it has to
/// wait.
void await(void* event);
/// Between two timing events that have passed.
double milliseconds(void* from, void* to);

/// Queues a copy between any two memories. From or to pageable host memory it returns when that memory may be
/// used again; pinned memory has to stay as it is until the copy is done.
void copy(void* to, const void* from, int64_t bytes, void* stream);
void fill(void* to, int byte, int64_t bytes, void* stream);

/// Host memory that the device can copy from by itself.
void* allocate_pinned(int64_t bytes);
void free_pinned(void* memory) noexcept;
/// Device memory of exactly this size: for tests. The allocator has its own sources.
void* allocate(int64_t bytes);
void free(void* memory) noexcept;

/// Between the two, work on the stream is recorded instead of done. `end_capture` returns an executable
/// graph.
void begin_capture(void* stream);
void* end_capture(void* stream);
/// Ends a capture that failed, with nothing to show for it.
void abandon_capture(void* stream) noexcept;
void launch_graph(void* graph, void* stream);
void destroy_graph(void* graph) noexcept;

/// What this process has asked of its devices so far.
struct Counters {
  int64_t launches = 0;        ///< kernels, those of a graph's replays not counted
  int64_t graph_launches = 0;  ///< replays
  int64_t captures = 0;
  int64_t synchronizations = 0;  ///< of the host with a stream, copies to pageable memory included
  int64_t awaits = 0;            ///< of events that had not passed yet
};
Counters counters();
void count_launch();

}  // namespace meshgrad::gpu
