// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>

#include <atomic>
#include <string>

namespace meshgrad::gpu {
namespace {

std::atomic<int64_t> launches, graph_launches, captures, synchronizations, awaits;

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears the error, which would else be reported for the next call
  throw device_error("cuda", std::string(call) + " to succeed", cudaGetErrorString(error),
                     "see that `nvidia-smi` works; run under compute-sanitizer to find a faulting kernel");
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

/// `fallback` where there is no device.
int attribute(cudaDeviceAttr which, int device, int fallback) {
  int value = 0;
  if (cudaGetDeviceCount(&value) != cudaSuccess || value == 0) {
    cudaGetLastError();
    return fallback;
  }
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

/// cudaMemcpyAsync to pageable memory synchronizes.
bool waits_for(const void* host) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, host) != cudaSuccess) {
    cudaGetLastError();
    return true;
  }
  return attributes.type == cudaMemoryTypeUnregistered;
}

}  // namespace

bool built() noexcept { return true; }

std::vector<CudaDevice> devices() {
  std::vector<CudaDevice> found;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return found;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    found.push_back({properties.name, static_cast<int64_t>(properties.totalGlobalMem), properties.major,
                     properties.minor});
  }
  return found;
}

void use(int device) { check(cudaSetDevice(device), "cudaSetDevice"); }
int multiprocessors(int device) {
  constexpr int kFallback = 132;
  return attribute(cudaDevAttrMultiProcessorCount, device, kFallback);
}
int shared_bytes(int device) {
  constexpr int kFallback = 227 * 1024;
  return attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device, kFallback);
}
DeviceMemory memory(int device) {
  use(device);
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return {static_cast<int64_t>(total), static_cast<int64_t>(free)};
}

void* create_stream(int device) {
  use(device);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return stream;
}
void destroy_stream(void* stream) noexcept { cudaStreamDestroy(stream_of(stream)); }
void synchronize(void* stream) {
  ++synchronizations;
  check(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize");
}

void* create_event(bool timing) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, timing ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreate");
  return event;
}
void destroy_event(void* event) noexcept { cudaEventDestroy(event_of(event)); }
void record(void* event, void* stream) {
  check(cudaEventRecord(event_of(event), stream_of(stream)), "cudaEventRecord");
}
void wait(void* stream, void* event) {
  check(cudaStreamWaitEvent(stream_of(stream), event_of(event), cudaEventWaitDefault), "cudaStreamWaitEvent");
}
bool passed(void* event) {
  const cudaError_t error = cudaEventQuery(event_of(event));
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(error, "cudaEventQuery");
  return true;
}
void await(void* event) {
  if (passed(event)) return;
  ++awaits;
  check(cudaEventSynchronize(event_of(event)), "cudaEventSynchronize");
}
double milliseconds(void* from, void* to) {
  float result = 0;
  check(cudaEventElapsedTime(&result, event_of(from), event_of(to)), "cudaEventElapsedTime");
  return static_cast<double>(result);
}

void copy(void* to, const void* from, int64_t bytes, void* stream) {
  if (bytes == 0) return;
  if (waits_for(to)) ++synchronizations;
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_of(stream)),
        "cudaMemcpyAsync");
}
void fill(void* to, int byte, int64_t bytes, void* stream) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), stream_of(stream)), "cudaMemsetAsync");
}

void* allocate_pinned(int64_t bytes) {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, static_cast<size_t>(bytes)), "cudaMallocHost");
  return memory;
}
void free_pinned(void* memory) noexcept { cudaFreeHost(memory); }
void* allocate(int64_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, static_cast<size_t>(bytes)), "cudaMalloc");
  return memory;
}
void free(void* memory) noexcept { cudaFree(memory); }

void begin_capture(void* stream) {
  ++captures;
  check(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
}
void* end_capture(void* stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_of(stream), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "cudaGraphInstantiate");
  return executable;
}
void abandon_capture(void* stream) noexcept {
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream_of(stream), &graph);
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
}
void launch_graph(void* graph, void* stream) {
  ++graph_launches;
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)), "cudaGraphLaunch");
}
void destroy_graph(void* graph) noexcept { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

Counters counters() { return {launches, graph_launches, captures, synchronizations, awaits}; }
void count_launch() { ++launches; }

}  // namespace meshgrad::gpu
