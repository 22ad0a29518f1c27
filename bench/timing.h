// SPDX-License-Identifier: Apache-2.0
// Timing of workloads, with confidence intervals.
#pragma once
#include <chrono>
#include <cstdint>
#include <vector>

#include "benchmark.h"

namespace meshgrad::bench {

/// Bytes written before a cold run: several times the largest cache.
inline constexpr int64_t kFlushBytes = int64_t{1} << 28;

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Times runs on a runtime's device: by CUDA events on a GPU, by the host's clock on the CPU.
class Timer {
 public:
  /// `flush_bytes`: written between cold runs; should exceed every cache.
  /// `by_host`: use the host's clock on any device.
  Timer(Runtime& runtime, int64_t flush_bytes, bool by_host = false);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  /// Milliseconds of each of `count` runs. On a GPU they are queued without synchronisation in between, as
  /// steps are in training. `cold`: the caches are overwritten before each.
  std::vector<double> run(const std::function<void()>& work, int count, bool cold);

 private:
  void flush();
  Runtime& runtime_;
  int64_t flush_bytes_;
  void* buffer_ = nullptr;  // of the device
  std::vector<char> host_buffer_;
};

/// CPU time of this process's threads so far.
struct CpuTime {
  double ran = 0.0;  ///< seconds on a core
  double waited =
      0.0;  ///< seconds ready to run, while others had the cores; 0 where the system does not count it
  bool counted = false;  ///< whether `waited` was counted
};
CpuTime cpu_time();

/// The median and the order statistics around it, between which the true median lies with a probability of
/// `coverage` (95 % or more), whatever the distribution: P(the k-th smallest < median) is binomial. With
/// fewer than 6 values the extremes are all there is, and coverage is below 95 %.
struct Interval {
  double median = 0.0, low = 0.0, high = 0.0, coverage = 0.0;
};
Interval median_interval(std::vector<double> values);

}  // namespace meshgrad::bench
