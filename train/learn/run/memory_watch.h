// SPDX-License-Identifier: Apache-2.0
// The memory line of each epoch, and the alarm when fragmentation grows.
#pragma once
#include <meshgrad/engine/memory/stats.h>
#include <meshgrad/train/learn/run/metrics_log.h>

#include <string>
#include <vector>

namespace meshgrad {

class MemoryWatch {
 public:
  struct Epoch {
    double waste = 0.0;  ///< 1 - peak allocated / peak reserved: lost to fragmentation
    /// For metrics.jsonl: bytes allocated and reserved, and of this epoch the peak, the headroom above it,
    /// and in "memory_peak_TAG_bytes" what the peak consisted of.
    MetricsRow row;
    std::string line;     ///< "epoch 3: memory 1.20 GiB allocated, 1.25 GiB reserved, ..."
    bool changed = true;  ///< the figures of `line` are others than those of the epoch before
    std::string alarm;    ///< a line when waste has grown, otherwise empty
  };

  /// Reads the statistics of an epoch that ends; the caller resets the peaks after it. The alarm is raised
  /// when the waste exceeds the least of all epochs before by 5 percentage points, and once more for each
  /// further 5.
  Epoch end_epoch(int64_t number, const MemoryStats& stats);

 private:
  int64_t least_epoch_ = 0;
  double least_waste_ = 0.0;
  double alarmed_waste_ = 0.0;
  std::string figures_;  // of the line of the epoch before
};

}  // namespace meshgrad
