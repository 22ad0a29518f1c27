// SPDX-License-Identifier: Apache-2.0
// Runtime: device, stream, allocator and threads for work on one device. It is passed down explicitly:
// No state of training is global, so several Runtimes can live in one process.
#pragma once
#include <meshgrad/engine/memory/options.h>
#include <meshgrad/engine/stream.h>

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)
namespace meshgrad {

class CachingAllocator;
class MemorySource;

enum class LogLevel : uint8_t { info, warning };
using LogSink = std::function<void(LogLevel, std::string_view)>;

struct RuntimeOptions {
  Device device{};
  int threads = 0;    ///< CPU threads, the calling one included; 0: available_cpus()
  uint64_t seed = 0;  ///< of all random numbers (random.h)
  AllocatorOptions allocator{};
  LogSink log{};          ///< receives messages, from any thread; none: they are dropped
  bool autotune = false;  ///< measure the algorithms that GPU libraries offer, and keep the choices on disk
  bool tf32 = false;      ///< GEMMs of f32 on a GPU may round their operands to TF32 (10 bits of fraction)
  std::shared_ptr<MemorySource>
      memory{};  ///< a host application's memory (make_callback_memory); null: the device's
  /// A host application's cudaStream_t of that device, which all work is then queued on; it outlives the
  /// Runtime and its tensors. Null: a stream of the Runtime's own.
  void* stream = nullptr;
  /// Dry run: kernels and copies are skipped and memory is only counted (SimulatedMemorySource). Shows the
  /// memory that a program would take, even on a device that is absent. Tensor values must not be read.
  bool dry = false;
};

class Runtime {
 public:
  /// Throws DeviceError when the device or its memory cannot be used, ThreadsUnavailable, InvalidArgument for
  /// a stream without a GPU.
  explicit Runtime(RuntimeOptions options = {});
  /// Waits for work that is queued on the stream. Tensors may outlive the Runtime.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Device device() const { return stream_.device(); }
  /// Include memory/caching_allocator.h to use it.
  CachingAllocator& allocator() { return *allocator_; }
  const Stream& stream() const { return stream_; }
  /// Whether it is a host application's (RuntimeOptions::stream).
  bool shares_stream() const { return shares_stream_; }
  ThreadPool& threads() { return pool_; }
  uint64_t seed() const { return seed_; }
  bool autotune() const { return autotune_; }
  bool tf32() const { return tf32_; }
  bool dry() const { return stream_.dry(); }
  /// Library handles (cuBLASLt and its workspace) that the GPU kernels create on first use; only they know
  /// the type of; destroyed with the Runtime.
  std::shared_ptr<void>& gpu_libraries() { return gpu_libraries_; }
  void log(LogLevel level, std::string_view text) const {
    if (log_) log_(level, text);
  }
  /// For messages that every step would repeat: each text is logged once per Runtime. Thread-safe.
  void log_once(LogLevel level, const std::string& text);

 private:
  ThreadPool pool_;
  std::shared_ptr<void> native_stream_;
  Stream stream_;
  std::shared_ptr<CachingAllocator> allocator_;
  uint64_t seed_;
  LogSink log_;
  std::mutex logged_mutex_;
  std::set<std::string> logged_;
  bool shares_stream_;
  bool autotune_;
  bool tf32_;
  std::shared_ptr<void> gpu_libraries_;
};

}  // namespace meshgrad
#pragma GCC visibility pop
