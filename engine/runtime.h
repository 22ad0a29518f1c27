// SPDX-License-Identifier: Apache-2.0
// Everything that work on one device needs, handed down explicitly: nothing in meshgrad is a global, and two
// Runtimes live side by side in one process.
#pragma once
#include <meshgrad/engine/allocator.h>

#include <functional>
#include <memory>
#include <string_view>

namespace meshgrad {

enum class LogLevel : uint8_t { info, warning };
using LogSink = std::function<void(LogLevel, std::string_view)>;

struct RuntimeOptions {
  Device device{};
  int threads = 0;  ///< 0: every CPU this process may use
  uint64_t seed = 0;
  AllocatorOptions allocator{};
  LogSink log{};                           ///< where messages go; none by default
  std::shared_ptr<MemorySource> memory{};  ///< the host application's own; none: the device's
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
};

}  // namespace meshgrad
