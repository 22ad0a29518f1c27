// SPDX-License-Identifier: Apache-2.0
// The time of each kernel launch on a GPU, by a pair of events around it. It needs no profiler, and so works
// where profilers are not permitted. The events cost about a microsecond of the device per launch.
#pragma once
#include <meshgrad/engine/stream.h>

#include <memory>
#include <string>
#include <vector>

namespace meshgrad {

/// While it lives, launches of the calling thread on `device` are timed: kernels and GEMMs, not copies, and
/// not what runs in a captured graph. One at a time per thread.
class LaunchTrace {
 public:
  explicit LaunchTrace(Device device);
  ~LaunchTrace();
  LaunchTrace(const LaunchTrace&) = delete;
  LaunchTrace& operator=(const LaunchTrace&) = delete;

  struct Launch {
    std::string name;
    double ms = 0.0;
  };
  /// Waits for the stream; returns the launches so far in order, and forgets them.
  std::vector<Launch> take(const Stream& stream);

 private:
  friend class TracedLaunch;
  struct Timed {
    std::string name;
    std::shared_ptr<void> begin, end;
  };
  Device device_;
  std::vector<Timed> timed_;
};

/// Stands around one launch; records nothing unless a LaunchTrace of the stream's device lives.
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
