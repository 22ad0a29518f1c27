// SPDX-License-Identifier: Apache-2.0
// The time of each kernel launch on a GPU, by a pair of events around it. It needs no profiler, and so works
// where profilers are not permitted. The events cost about a microsecond of the device per launch.
#pragma once
#include <meshgrad/engine/stream.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace meshgrad {

/// While it lives, launches of the calling thread on `stream` are timed: kernels and GEMMs, not copies, and
/// not captured work, which has a stream of its own. One at a time per thread. The stream outlives it.
class LaunchTrace {
 public:
  explicit LaunchTrace(const Stream& stream);
  ~LaunchTrace();
  LaunchTrace(const LaunchTrace&) = delete;
  LaunchTrace& operator=(const LaunchTrace&) = delete;

  struct Launch {
    std::string name;
    double ms = 0.0;
    double begin_ms = 0.0;  ///< since the first of the launches that take() returns began, as end_ms
    double end_ms = 0.0;
    int64_t launched = 0;  ///< by the host: nanoseconds since the Unix epoch
  };
  /// Waits for the stream; returns the launches so far in order, and forgets them.
  std::vector<Launch> take();

 private:
  friend class TracedLaunch;
  struct Timed {
    std::string name;
    int64_t launched = 0;
    std::shared_ptr<void> begin, end;
  };
  const Stream& stream_;
  std::vector<Timed> timed_;
};

/// Stands around one launch; records nothing unless a LaunchTrace of the stream lives.
class TracedLaunch {
 public:
  TracedLaunch(const char* name, const Stream& stream);
  ~TracedLaunch();
  TracedLaunch(const TracedLaunch&) = delete;
  TracedLaunch& operator=(const TracedLaunch&) = delete;

 private:
  void* native_ = nullptr;
  std::shared_ptr<void> end_;  ///< null: not traced
};

}  // namespace meshgrad
