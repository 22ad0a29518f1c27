// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/memory/source_counted.h>
#include <meshgrad/engine/memory/source_cuda.h>
#include <meshgrad/engine/runtime.h>

#include <fmt/format.h>

namespace meshgrad {
namespace {

constexpr int64_t kDryCapacity = int64_t{1} << 46;  // more than any device has

std::shared_ptr<MemorySource> memory_of(const RuntimeOptions& options) {
  if (options.memory != nullptr) return options.memory;
  const Device& device = options.device;
  const bool expandable = options.allocator.expandable_segments || device.kind == DeviceKind::cpu;
  if (options.dry) {
    return std::make_shared<SimulatedMemorySource>(kDryCapacity, expandable, int64_t{2} << 20, device);
  }
  if (device.kind == DeviceKind::cpu) return make_host_memory();
  if (!expandable) return make_cuda_memory(device.index);
  if (auto source = make_cuda_virtual_memory(device.index)) return source;
  if (options.log) {
    options.log(LogLevel::warning, fmt::format("{} has no virtual memory management: its memory comes from "
                                               "cudaMalloc, in segments that do not grow",
                                               name_of(device)));
  }
  return make_cuda_memory(device.index);
}

/// Refuses a device without code before its first kernel, and says when the driver compiles kernels.
void check_code(Device device, const LogSink& log) {
  const int capability = gpu::compute_capability(device.index);
  const std::string built = gpu::architectures();
  const gpu::Code code = gpu::code_for(capability, built);
  if (code == gpu::Code::binary) return;
  const std::string its = fmt::format("compute capability {}.{}", capability / 10, capability % 10);
  if (code == gpu::Code::none) {
    throw device_error(name_of(device), "code for " + its, "a build for " + built,
                       fmt::format("build with -DCMAKE_CUDA_ARCHITECTURES={}", capability));
  }
  if (!log) return;
  log(LogLevel::info,
      fmt::format(
          "{} has {}, for which this build has PTX only: the driver compiles each kernel before its first "
          "run, once; a build with -DCMAKE_CUDA_ARCHITECTURES={} starts at once",
          name_of(device), its, capability));
}

std::shared_ptr<void> make_stream(const RuntimeOptions& options) {
  if (options.stream != nullptr) {
    if (options.device.kind == DeviceKind::cpu)
      throw invalid_argument("RuntimeOptions::stream", "null for a CPU", "a stream", "set a CUDA device");
    return {options.stream, [](void*) {}};
  }
  if (options.device.kind == DeviceKind::cpu || options.dry) return nullptr;
  return {gpu::create_stream(options.device.index), gpu::destroy_stream};
}

/// Ties the stream's lifetime to the source: storages, and with them the allocator, may outlive the Runtime.
std::shared_ptr<MemorySource> with_stream(std::shared_ptr<MemorySource> source,
                                          const std::shared_ptr<void>& stream) {
  struct Holder {
    std::shared_ptr<void> stream;
    std::shared_ptr<MemorySource> source;  // destroyed first
  };
  const auto holder = std::make_shared<Holder>(Holder{stream, std::move(source)});
  return {holder, holder->source.get()};
}

}  // namespace

Runtime::Runtime(RuntimeOptions options)
    : pool_(options.threads, options.dry ? ThreadPool::Work::skip : ThreadPool::Work::run),
      native_stream_(make_stream(options)),
      stream_(options.device, pool_, 0, native_stream_.get()),
      allocator_(
          CachingAllocator::create(with_stream(memory_of(options), native_stream_), options.allocator)),
      seed_(options.seed),
      log_(std::move(options.log)),
      shares_stream_(options.stream != nullptr),
      autotune_(options.autotune),
      tf32_(options.tf32) {
  if (stream_.on_gpu() && !stream_.dry()) check_code(device(), log_);
}

void Runtime::log_once(LogLevel level, const std::string& text) {
  {
    const std::lock_guard lock(logged_mutex_);
    if (!logged_.insert(text).second) return;
  }
  log(level, text);
}

/// Queued work may use host memory that its owner frees once the Runtime is gone.
Runtime::~Runtime() {
  if (!stream_.on_gpu()) return;
  try {
    stream_.synchronize();
  } catch (const Error&) {
    // A destructor must not throw; a later wait for results throws the error.
  }
}

}  // namespace meshgrad
