// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu_card.h>
#include <meshgrad/engine/gpu_launch.h>
#include <nvtx3/nvToolsExt.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace meshgrad::gpu {
namespace {

std::atomic<int64_t> launches, graph_launches, captures, synchronizations, awaits;

/// Clears a failed call's error, which cudaGetLastError would else report after another call.
cudaError_t consumed(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

/// Whether the error is of a kernel that ran before. It is then returned by every later call on that device.
bool of_earlier_kernel(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorECCUncorrectable:
      return true;
    default:
      return false;
  }
}

[[noreturn]] void fail(cudaError_t error, const char* name, const std::string& needed, const char* fix) {
  const std::string text = cudaGetErrorString(error);
  if (of_earlier_kernel(error)) {
    throw device_error(name, needed, "an earlier kernel failed: " + text,
                       "run under compute-sanitizer to find it; the process cannot use this device any more");
  }
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    throw device_error(name, "code for this device in a build for " + architectures(), text,
                       "build for its compute capability: -DCMAKE_CUDA_ARCHITECTURES");
  }
  throw device_error(name, needed, text, fix);
}

void check(cudaError_t error, const char* call) {
  if (consumed(error) == cudaSuccess) return;
  fail(error, "cuda", std::string(call) + " to succeed", "see that `nvidia-smi` works");
}

/// What a kernel has been allowed on each device, so that it is asked for once and not per launch.
class AllowedSharedMemory {
 public:
  /// Whether `bytes` are more than what the kernel has on the current device; then it is taken to have them.
  bool grows(const void* kernel, int bytes) {
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    const std::lock_guard lock(mutex_);
    int& allowed = allowed_[{kernel, device}];
    if (bytes <= allowed) return false;
    allowed = bytes;
    return true;
  }
  void forget(const void* kernel) {
    const std::lock_guard lock(mutex_);
    std::erase_if(allowed_, [&](const auto& entry) { return entry.first.first == kernel; });
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<const void*, int>, int> allowed_;
};
AllowedSharedMemory& allowed_shared_memory() {
  static AllowedSharedMemory allowed;
  return allowed;
}

std::string version_text(int version) {
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

/// What the thread plans for instead of a device; null: the device.
const Card* instead_of_device() {
  int devices = 0;
  if (const Card* const card = planned_card()) return card;
  const bool none = consumed(cudaGetDeviceCount(&devices)) != cudaSuccess || devices == 0;
  return none ? &default_card() : nullptr;
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

/// Null without a profiler: NVTX is only headers, which load what NVTX_INJECTION64_PATH names, if anything.
nvtxDomainHandle_t profiler_domain() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("meshgrad");
  return domain;
}

/// cudaMemcpyAsync to pageable memory synchronizes.
bool waits_for(const void* host) {
  cudaPointerAttributes attributes{};
  if (consumed(cudaPointerGetAttributes(&attributes, host)) != cudaSuccess) return true;
  return attributes.type == cudaMemoryTypeUnregistered;
}

}  // namespace

bool built() noexcept { return true; }

std::vector<CudaDevice> devices() {
  std::vector<CudaDevice> found;
  int count = 0;
  if (consumed(cudaGetDeviceCount(&count)) != cudaSuccess) return found;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (consumed(cudaGetDeviceProperties(&properties, i)) != cudaSuccess) continue;
    found.push_back({properties.name, static_cast<int64_t>(properties.totalGlobalMem), properties.major,
                     properties.minor});
  }
  return found;
}

std::string why_no_devices() {
  int count = 0;
  const cudaError_t error = consumed(cudaGetDeviceCount(&count));
  if (error == cudaSuccess && count > 0) return {};
  int driver = 0;
  consumed(cudaDriverGetVersion(&driver));
  if (driver == 0) return "no NVIDIA driver";
  if (error == cudaErrorInsufficientDriver) {
    return "a driver of " + version_text(driver) + ", older than " + version_text(CUDART_VERSION) +
           " of this build";
  }
  if (error == cudaErrorNoDevice) return "no CUDA device that the driver reports";
  return cudaGetErrorString(error);
}

std::string architectures() { return MESHGRAD_CUDA_ARCHITECTURES; }

CurrentDevice::CurrentDevice(int device) : device_(device), previous_(device) {
  check(cudaGetDevice(&previous_), "cudaGetDevice");
  if (previous_ != device) check(cudaSetDevice(device), "cudaSetDevice");
}
CurrentDevice::~CurrentDevice() {
  if (previous_ != device_) consumed(cudaSetDevice(previous_));
}
int multiprocessors(int device) {
  const Card* const card = instead_of_device();
  const int all = card != nullptr ? card->multiprocessors : attribute(cudaDevAttrMultiProcessorCount, device);
  return tested_multiprocessors(all, all);
}
int shared_bytes(int device) {
  if (const Card* const card = instead_of_device()) return card->shared_bytes();
  return tested_shared_bytes(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
}
MultiprocessorMemory multiprocessor_memory(int device) {
  if (const Card* const card = instead_of_device()) return card->multiprocessor_memory();
  return {attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device),
          attribute(cudaDevAttrReservedSharedMemoryPerBlock, device)};
}
int compute_capability(int device) {
  if (const Card* const card = instead_of_device()) return card->capability;
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
         attribute(cudaDevAttrComputeCapabilityMinor, device);
}
DeviceMemory memory(int device) {
  const CurrentDevice current(device);
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return {static_cast<int64_t>(total), static_cast<int64_t>(free)};
}

void* create_stream(int device) {
  const CurrentDevice current(device);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return stream;
}
void destroy_stream(void* stream) noexcept { consumed(cudaStreamDestroy(stream_of(stream))); }
void synchronize(void* stream) {
  ++synchronizations;
  check(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize");
}

void* create_event(int device, bool timing) {
  const CurrentDevice current(device);
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, timing ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreate");
  return event;
}
void destroy_event(void* event) noexcept { consumed(cudaEventDestroy(event_of(event))); }
void record(void* event, void* stream) {
  check(cudaEventRecord(event_of(event), stream_of(stream)), "cudaEventRecord");
}
void wait(void* stream, void* event) {
  check(cudaStreamWaitEvent(stream_of(stream), event_of(event), cudaEventWaitDefault), "cudaStreamWaitEvent");
}
bool passed(void* event) {
  const cudaError_t error = consumed(cudaEventQuery(event_of(event)));
  if (error == cudaErrorNotReady) return false;
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
bool owns(int device, const void* memory, int64_t bytes) {
  const auto* const last = static_cast<const char*>(memory) + bytes - 1;
  for (const void* const address : {memory, static_cast<const void*>(last)}) {
    cudaPointerAttributes attributes{};
    const cudaError_t error = consumed(cudaPointerGetAttributes(&attributes, address));
    if (error == cudaErrorInvalidValue) return false;
    check(error, "cudaPointerGetAttributes");
    if (attributes.type == cudaMemoryTypeManaged) continue;
    if (attributes.type != cudaMemoryTypeDevice || attributes.device != device) return false;
  }
  return true;
}
void fill(int device, void* to, int byte, int64_t bytes, void* stream) {
  if (bytes == 0) return;
  const CurrentDevice current(device);
  check(cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), stream_of(stream)), "cudaMemsetAsync");
}

void* allocate_pinned(int device, int64_t bytes) {
  const CurrentDevice current(device);
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocPortable), "cudaHostAlloc");
  return memory;
}
void free_pinned(void* memory) noexcept { consumed(cudaFreeHost(memory)); }
void* allocate(int device, int64_t bytes) {
  const CurrentDevice current(device);
  void* memory = nullptr;
  check(cudaMalloc(&memory, static_cast<size_t>(bytes)), "cudaMalloc");
  return memory;
}
void free(void* memory) noexcept { consumed(cudaFree(memory)); }

void begin_capture(void* stream) {
  ++captures;
  check(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
}
void* end_capture(int device, void* stream) {
  const CurrentDevice current(device);
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_of(stream), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  consumed(cudaGraphDestroy(graph));
  check(error, "cudaGraphInstantiate");
  return executable;
}
bool capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream_of(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}
void abandon_capture(void* stream) noexcept {
  cudaGraph_t graph = nullptr;
  consumed(cudaStreamEndCapture(stream_of(stream), &graph));
  if (graph != nullptr) consumed(cudaGraphDestroy(graph));
}
void launch_graph(int device, void* graph, void* stream) {
  const CurrentDevice current(device);
  ++graph_launches;
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)), "cudaGraphLaunch");
}
void destroy_graph(void* graph) noexcept {
  consumed(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)));
}

void start_kernel(const KernelLaunch& launch, void* arguments) {
  const auto require = [&](cudaError_t error, const std::string& needed, const char* fix) {
    if (consumed(error) == cudaSuccess) return;
    allowed_shared_memory().forget(launch.kernel);
    fail(error, launch.name, needed, fix);
  };
  if (launch.opts_in && allowed_shared_memory().grows(launch.kernel, launch.shared_bytes)) {
    require(
        cudaFuncSetAttribute(launch.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, launch.shared_bytes),
        std::to_string(launch.shared_bytes) + " bytes of shared memory per block",
        "use a smaller hidden width or fewer layers");
    // Two blocks per multiprocessor need all of its shared memory. A hint: without it the launch is slower.
    consumed(cudaFuncSetAttribute(launch.kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared));
  }
  cudaLaunchConfig_t shape{};
  shape.gridDim = {static_cast<unsigned>(launch.blocks), 1, 1};
  shape.blockDim = {static_cast<unsigned>(launch.threads), 1, 1};
  shape.dynamicSmemBytes = static_cast<size_t>(launch.shared_bytes);
  shape.stream = stream_of(launch.stream);
  // Its result is of this launch, or of a kernel that failed; cudaGetLastError also has other calls' errors.
  require(cudaLaunchKernelExC(&shape, launch.kernel, &arguments), "a kernel that starts",
          "see that `nvidia-smi` works");
}

bool profiled() noexcept { return profiler_domain() != nullptr; }
void begin_range(const char* name) noexcept {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  nvtxDomainRangePushEx(profiler_domain(), &attributes);
}
void end_range() noexcept { nvtxDomainRangePop(profiler_domain()); }

Counters counters() { return {launches, graph_launches, captures, synchronizations, awaits}; }
void count_launch() { ++launches; }

}  // namespace meshgrad::gpu
