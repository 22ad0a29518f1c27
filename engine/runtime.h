// SPDX-License-Identifier: Apache-2.0
// Everything that work on one device needs, handed down explicitly: nothing in meshgrad is a global, and two
// Runtimes live side by side in one process.
#pragma once
#include <meshgrad/engine/memory/caching_allocator.h>

#include <functional>
#include <memory>
#include <string_view>

#pragma GCC visibility push(default)
namespace meshgrad {

enum class LogLevel : uint8_t { info, warning };
using LogSink = std::function<void(LogLevel, std::string_view)>;

struct RuntimeOptions {
  Device device{};
  int threads = 0;   ///< 0: every CPU this process may use
  bool pin = false;  ///< each thread on a CPU of its own (ThreadPool::Pin::workers)
  uint64_t seed = 0;
  AllocatorOptions allocator{};
  LogSink log{};                           ///< where messages go; none by default
  bool autotune = false;                   ///< measure what libraries offer, and keep the choices on disk
  std::shared_ptr<MemorySource> memory{};  ///< the host application's own; none: the device's
  /// Work is left out and memory is only counted: shows what a program would take, also on a device that is
  /// not there. No value may be read.
  bool dry = false;
};

class Runtime {
 public:
  explicit Runtime(RuntimeOptions options = {});
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Device device() const { return stream_.device(); }
  CachingAllocator& allocator() { return *allocator_; }
  const Stream& stream() const { return stream_; }
  ThreadPool& threads() { return pool_; }
  uint64_t seed() const { return seed_; }
  bool autotune() const { return autotune_; }
  bool dry() const { return stream_.dry(); }
  /// What the GPU's kernels keep of libraries, which they alone know; empty until they need one.
  std::shared_ptr<void>& gpu_libraries() { return gpu_libraries_; }
  void log(LogLevel level, std::string_view text) const {
    if (log_) log_(level, text);
  }

 private:
  ThreadPool pool_;
  std::shared_ptr<void> native_stream_;
  Stream stream_;
  std::shared_ptr<CachingAllocator> allocator_;
  uint64_t seed_;
  LogSink log_;
  bool autotune_;
  std::shared_ptr<void> gpu_libraries_;
};

}  // namespace meshgrad
#pragma GCC visibility pop
