// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/memory/source_callback.h>
#include <meshgrad/engine/memory/source_cuda.h>

#include <string>
#include <vector>

namespace meshgrad {
namespace {

constexpr int64_t kPage = int64_t{2} << 20;

/// Whether a call succeeded; clears its error, which cudaGetLastError would else report after another call.
bool succeeded(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess;
}

cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

/// The driver's functions, looked up by name. If they were linked, the program could not start without a
/// driver.
struct Driver {
  PFN_cuInit_v2000 init = nullptr;
  PFN_cuDeviceGetAttribute_v2000 device_attribute = nullptr;
  PFN_cuDevicePrimaryCtxRetain_v7000 retain_context = nullptr;
  PFN_cuDevicePrimaryCtxRelease_v11000 release_context = nullptr;
  PFN_cuCtxPushCurrent_v4000 push_context = nullptr;
  PFN_cuCtxPopCurrent_v4000 pop_context = nullptr;
  PFN_cuMemGetAllocationGranularity_v10020 granularity = nullptr;
  PFN_cuMemAddressReserve_v10020 reserve = nullptr;
  PFN_cuMemAddressFree_v10020 free = nullptr;
  PFN_cuMemCreate_v10020 create = nullptr;
  PFN_cuMemRelease_v10020 release = nullptr;
  PFN_cuMemMap_v10020 map = nullptr;
  PFN_cuMemUnmap_v10020 unmap = nullptr;
  PFN_cuMemSetAccess_v10020 set_access = nullptr;
};

/// `version`: the CUDA version that introduced this form of the function, as in the name of its type.
template <class Function>
void load(Function& function, const char* name, unsigned version) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found);
#else  // the newest form that the toolkit knows
  static_cast<void>(version);
  const cudaError_t error = cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault, &found);
#endif
  if (!succeeded(error) || found != cudaDriverEntryPointSuccess || entry == nullptr) {
    throw device_error("cuda memory", fmt::format("{} in the driver", name),
                       error == cudaSuccess ? "none" : cudaGetErrorString(error), "update the NVIDIA driver");
  }
  function = reinterpret_cast<Function>(entry);
}

Driver load_driver() {
  Driver driver;
  load(driver.init, "cuInit", 2000);
  load(driver.device_attribute, "cuDeviceGetAttribute", 2000);
  load(driver.retain_context, "cuDevicePrimaryCtxRetain", 7000);
  load(driver.release_context, "cuDevicePrimaryCtxRelease", 11000);
  load(driver.push_context, "cuCtxPushCurrent", 4000);
  load(driver.pop_context, "cuCtxPopCurrent", 4000);
  load(driver.granularity, "cuMemGetAllocationGranularity", 10020);
  load(driver.reserve, "cuMemAddressReserve", 10020);
  load(driver.free, "cuMemAddressFree", 10020);
  load(driver.create, "cuMemCreate", 10020);
  load(driver.release, "cuMemRelease", 10020);
  load(driver.map, "cuMemMap", 10020);
  load(driver.unmap, "cuMemUnmap", 10020);
  load(driver.set_access, "cuMemSetAccess", 10020);
  return driver;
}

/// Holds a device's primary context, which is shared with the CUDA runtime and other libraries.
class Context {
 public:
  explicit Context(int device) : device_(device) {
    const auto devices = static_cast<int>(cuda_devices().size());
    if (device < 0 || device >= devices) {
      throw device_error("cuda memory", name_of(this->device()),
                         devices == 0 ? gpu::why_no_devices() : fmt::format("{} CUDA devices", devices),
                         "use the CPU, or a device that `nvidia-smi -L` lists");
    }
    driver_ = load_driver();
    check(driver_.init(0), "cuInit");
    check(driver_.retain_context(&context_, device), "cuDevicePrimaryCtxRetain");
  }
  ~Context() { driver_.release_context(device_); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Driver& driver() const { return driver_; }
  Device device() const { return {DeviceKind::cuda, device_}; }

  void check(CUresult result, const char* call) const {
    if (result == CUDA_SUCCESS) return;
    throw device_error(name_of(device()), fmt::format("{} to succeed", call),
                       fmt::format("CUDA error {}", static_cast<int>(result)),
                       "see that `nvidia-smi` works and that the device is not in exclusive use");
  }

 private:
  int device_;
  Driver driver_;
  CUcontext context_ = nullptr;
  friend class InContext;
};

/// Makes the context current for the thread while it lives, then restores the caller's. cudaSetDevice instead
/// would create a context for a caller that has none, and replace one that is not the device's primary. The
/// relaxed capture mode lets allocating calls run during a stream capture.
class InContext {
 public:
  explicit InContext(const Context& context)
      : driver_(context.driver_), pushed_(driver_.push_context(context.context_) == CUDA_SUCCESS) {
    if (pushed_) cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  ~InContext() {
    if (!pushed_) return;
    cudaThreadExchangeStreamCaptureMode(&mode_);
    CUcontext popped = nullptr;
    driver_.pop_context(&popped);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
  /// False when the context is gone (a device reset): the runtime would then use some other device.
  explicit operator bool() const { return pushed_; }

 private:
  const Driver& driver_;
  bool pushed_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

int64_t total_memory(const Context& context) {
  const InContext current(context);
  size_t free = 0;
  size_t total = 0;
  const cudaError_t error = current ? cudaMemGetInfo(&free, &total) : cudaErrorContextIsDestroyed;
  if (!succeeded(error)) {
    throw device_error(name_of(context.device()), "the size of its memory", cudaGetErrorString(error),
                       "see that `nvidia-smi` works");
  }
  return static_cast<int64_t>(total);
}

/// Reuses events, since creating one costs more than recording it.
class EventPool {
 public:
  explicit EventPool(const Context& context) : context_(context) {}
  ~EventPool() {
    const InContext current(context_);
    if (!current) return;
    for (cudaEvent_t event : events_) succeeded(cudaEventDestroy(event));
  }
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  uint64_t record(const Stream& stream) {
    const InContext current(context_);
    if (!current) return 0;
    const uint64_t event = take();
    if (event != 0 && succeeded(cudaEventRecord(events_[event - 1], native(stream)))) return event;
    // Without an event the host waits now, which is as safe.
    if (event != 0) unused_.push_back(event);
    succeeded(cudaStreamSynchronize(native(stream)));
    return 0;
  }

  void wait(const Stream& stream, uint64_t event) {
    if (event == 0) return;
    const InContext current(context_);
    if (!current) return;
    if (succeeded(cudaStreamWaitEvent(native(stream), events_[event - 1], cudaEventWaitDefault))) return;
    succeeded(cudaEventSynchronize(events_[event - 1]));
  }

  void forget(uint64_t event) {
    if (event != 0) unused_.push_back(event);
  }

  void synchronize(const Stream& stream) {
    const InContext current(context_);
    if (current) succeeded(cudaStreamSynchronize(native(stream)));
  }

 private:
  uint64_t take() {
    if (unused_.empty()) {
      cudaEvent_t event = nullptr;
      if (!succeeded(cudaEventCreateWithFlags(&event, cudaEventDisableTiming))) return 0;
      events_.push_back(event);
      return events_.size();
    }
    const uint64_t event = unused_.back();
    unused_.pop_back();
    return event;
  }

  const Context& context_;
  std::vector<cudaEvent_t> events_;  // event number i is at i - 1
  std::vector<uint64_t> unused_;
};

CUmemAllocationProp memory_of(Device device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device.index;
  return properties;
}

class CudaVirtualMemorySource final : public MemorySource {
 public:
  explicit CudaVirtualMemorySource(int device) : context_(device), events_(context_) {
    size_t smallest = 0;
    context_.check(driver_.granularity(&smallest, &properties_, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                   "cuMemGetAllocationGranularity");
    const auto unit = static_cast<int64_t>(smallest);
    granularity_ = (kPage + unit - 1) / unit * unit;
    capacity_ = total_memory(context_);
  }

  static bool supported(int device) {
    const Context context(device);
    int supported = 0;
    context.check(context.driver().device_attribute(
                      &supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device),
                  "cuDeviceGetAttribute");
    return supported != 0;
  }

  Device device() const override { return context_.device(); }
  int64_t capacity() const override { return capacity_; }
  int64_t mapped_bytes() const override { return mapped_; }
  int64_t granularity() const override { return granularity_; }
  bool expandable() const override { return true; }

  char* reserve(int64_t bytes) override {
    const InContext current(context_);
    CUdeviceptr address = 0;
    const CUresult result = driver_.reserve(&address, static_cast<size_t>(bytes), 0, 0, 0);
    return result == CUDA_SUCCESS ? reinterpret_cast<char*>(address) : nullptr;
  }

  bool map(char* address, int64_t bytes) override {
    const InContext current(context_);
    const auto size = static_cast<size_t>(bytes);
    CUmemGenericAllocationHandle handle = 0;
    if (driver_.create(&handle, size, &properties_, 0) != CUDA_SUCCESS) return false;
    const bool mapped = driver_.map(pointer(address), size, 0, handle, 0) == CUDA_SUCCESS;
    // The mapping holds the memory from here on; cuMemUnmap frees it.
    driver_.release(handle);
    if (!mapped) return false;
    if (driver_.set_access(pointer(address), size, &access_, 1) != CUDA_SUCCESS) {
      driver_.unmap(pointer(address), size);
      return false;
    }
    mapped_ += bytes;
    return true;
  }

  void unmap(char* address, int64_t bytes) override {
    const InContext current(context_);
    driver_.unmap(pointer(address), static_cast<size_t>(bytes));
    mapped_ -= bytes;
  }

  void release(char* address, int64_t bytes) override {
    const InContext current(context_);
    driver_.free(pointer(address), static_cast<size_t>(bytes));
  }

  uint64_t record(const Stream& stream) override { return events_.record(stream); }
  void wait(const Stream& stream, uint64_t event) override { events_.wait(stream, event); }
  void forget(uint64_t event) override { events_.forget(event); }
  void synchronize(const Stream& stream) override { events_.synchronize(stream); }

 private:
  static CUdeviceptr pointer(char* address) { return reinterpret_cast<CUdeviceptr>(address); }

  Context context_;
  const Driver& driver_ = context_.driver();
  EventPool events_;
  const CUmemAllocationProp properties_ = memory_of(context_.device());
  const CUmemAccessDesc access_{properties_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  int64_t capacity_ = 0;
  int64_t granularity_ = 0;
  int64_t mapped_ = 0;
};

/// State shared by the callbacks of plain CUDA memory.
struct PlainCuda {
  explicit PlainCuda(int device) : context(device), events(context) {}
  Context context;
  EventPool events;
};

void* allocate(const Context& context, int64_t bytes) {
  const InContext current(context);
  if (!current) return nullptr;
  void* memory = nullptr;
  return succeeded(cudaMalloc(&memory, static_cast<size_t>(bytes))) ? memory : nullptr;
}

void free_memory(const Context& context, void* memory) {
  const InContext current(context);
  if (current) succeeded(cudaFree(memory));
}

}  // namespace

std::shared_ptr<MemorySource> make_cuda_virtual_memory(int device) {
  if (!CudaVirtualMemorySource::supported(device)) return nullptr;
  return std::make_shared<CudaVirtualMemorySource>(device);
}

std::shared_ptr<MemorySource> make_cuda_memory(int device) {
  const auto cuda = std::make_shared<PlainCuda>(device);
  MemoryCallbacks callbacks;
  callbacks.allocate = [cuda](int64_t bytes) { return allocate(cuda->context, bytes); };
  callbacks.free = [cuda](void* memory, int64_t) { free_memory(cuda->context, memory); };
  callbacks.record = [cuda](const Stream& stream) { return cuda->events.record(stream); };
  callbacks.wait = [cuda](const Stream& stream, uint64_t event) { cuda->events.wait(stream, event); };
  callbacks.forget = [cuda](uint64_t event) { cuda->events.forget(event); };
  callbacks.synchronize = [cuda](const Stream& stream) { cuda->events.synchronize(stream); };
  const int64_t capacity = total_memory(cuda->context);
  return std::make_shared<CallbackMemorySource>(std::move(callbacks), cuda->context.device(), capacity,
                                                kPage);
}

}  // namespace meshgrad
