// SPDX-License-Identifier: Apache-2.0
#include "fake_runtime.h"

#include <cstdlib>
#include <utility>

namespace fake_cuda {
namespace {

int& current() {
  thread_local int device = 0;
  return device;
}

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) state().pending = error;
  return error;
}

cudaError_t on_device(const char* call) {
  state().calls.push_back(std::string(call) + " on " + std::to_string(current()));
  return cudaSuccess;
}

/// Handles remember their device.
template <class Handle>
cudaError_t make(Handle* handle, const char* call) {
  *handle = reinterpret_cast<Handle>(new int(current()));
  return on_device(call);
}
template <class Handle>
cudaError_t destroy(Handle handle) {
  delete reinterpret_cast<int*>(handle);
  return result(state().destroy_error);
}
template <class Handle>
int device_of(Handle handle) {
  return *reinterpret_cast<int*>(handle);
}

}  // namespace

State& state() {
  static State only;
  return only;
}

}  // namespace fake_cuda

using namespace fake_cuda;

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(state().pending, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorIllegalAddress) return "an illegal memory access was encountered";
  return error == cudaErrorInvalidValue ? "invalid argument" : "some other error";
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = state().driver;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  if (state().driver < CUDART_VERSION / 1000 * 1000) return result(cudaErrorInsufficientDriver);
  *count = state().devices;
  return *count > 0 ? cudaSuccess : result(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = current();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= state().devices) return result(cudaErrorInvalidDevice);
  current() = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = 100 * 1024;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 99 * 1024;
      break;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *value = 512;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 132;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    default:
      *value = 1;
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void*) {
  *attributes = {};
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{1} << 30;
  return on_device("cudaMemGetInfo");
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return make(stream, "cudaStreamCreateWithFlags");
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return destroy(stream); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return make(event, "cudaEventCreateWithFlags");
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return destroy(event); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return device_of(event) == device_of(stream) ? cudaSuccess : result(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* time, cudaEvent_t, cudaEvent_t) {
  *time = 1;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t stream) {
  return device_of(stream) == current() ? cudaSuccess : result(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  *memory = std::malloc(bytes);
  return on_device("cudaHostAlloc");
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) { return cudaMallocHost(memory, bytes); }
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return result(state().destroy_error);
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = std::malloc(bytes);
  return on_device("cudaMalloc");
}
cudaError_t cudaFree(void* memory) { return cudaFreeHost(memory); }

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) { return make(graph, "capture"); }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* graph, cudaGraph_t, unsigned long long) {
  return make(graph, "cudaGraphInstantiate");
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return destroy(graph); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return destroy(graph); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t stream) {
  return device_of(stream) == current() ? cudaSuccess : result(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
  ++state().attribute_calls;
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) state().carveout = value;
  return result(state().attribute_error);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* shape, const void*, void**) {
  if (device_of(shape->stream) != current()) return result(cudaErrorInvalidResourceHandle);
  return result(state().launch_error);
}

}  // extern "C"
