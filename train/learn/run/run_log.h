// SPDX-License-Identifier: Apache-2.0
// RunLog: the numbers of a run, as metrics.jsonl and for TensorBoard. The device's numbers of a step arrive
// later; the line is written then, and the host does not wait for them within a step.
#pragma once
#include <meshgrad/engine/memory/stats.h>
#include <meshgrad/train/learn/run/gradient_noise.h>
#include <meshgrad/train/learn/run/metrics_log.h>
#include <meshgrad/train/learn/run/optimizer.h>

#include <chrono>
#include <optional>
#include <string>

namespace meshgrad {

/// A StepState that is being copied from the device.
class LateState {
 public:
  explicit LateState(Runtime& runtime);
  ~LateState();
  LateState(const LateState&) = delete;
  LateState& operator=(const LateState&) = delete;
  /// Queues the copy.
  void request(const Tensor& state);
  bool arrived() const { return arrived_.passed(); }
  /// What was requested last; waits for it.
  StepState take() const;

 private:
  Runtime& runtime_;
  Tensor memory_;  // pinned
  Event arrived_;
};

/// The memory line of each epoch, and the alarm when fragmentation grows.
class MemoryWatch {
 public:
  struct Epoch {
    double waste = 0.0;  ///< 1 - peak allocated / peak reserved: lost to fragmentation
    /// For metrics.jsonl: bytes allocated and reserved, the external fragmentation now, and of this epoch the
    /// peak, the headroom above it, and in "memory_peak_TAG_bytes" what the peak consisted of.
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

class RunLog {
 public:
  /// Starts the files in a run's folder, or goes on after `resumed_at`: before its validation, if that is
  /// due once more.
  RunLog(Runtime& runtime, const std::filesystem::path& dir, std::optional<int64_t> resumed_at,
         bool validation_due = false);

  /// A line for a step that is queued: requests its numbers from the device and resets the sums there.
  /// `data_seconds` were waited for data so far (BatchLoader::data_seconds).
  /// With `small`, a small batch of a window of `window_samples`, the line has the gradient noise scale.
  void step(const Optimizer& optimizer, int64_t step, int64_t samples, double data_seconds,
            const std::optional<GradientSquare>& small, int64_t window_samples);
  /// Writes the pending line if its numbers have arrived, and returns them.
  std::optional<StepState> poll();
  /// The same, waiting for them.
  std::optional<StepState> flush();

  /// In samples, of the lines so far.
  std::optional<double> noise_scale() const { return noise_.scale(); }
  /// Which lines the resumed metrics.jsonl lacks, of a run at `step` that wrote one every `log_every` steps.
  std::vector<std::string> gaps(int64_t step, int64_t log_every) const;
  /// See MetricsLog::sync.
  void sync() { metrics_.sync(); }

  /// The line of an epoch, with its wall time and that of the run: call flush() first.
  void write_epoch(MetricsRow row);
  /// Another line, after the pending one: call flush() first.
  void write(const MetricsRow& row, const std::vector<std::pair<std::string, double>>& scalars = {});

 private:
  struct Pending {
    int64_t step, samples;
    double steps_per_second, data_wait_seconds, run_seconds;
    int64_t allocated, peak, reserved;
    std::optional<GradientSquare> small;
    int64_t window_samples;
  };
  void add_noise(const StepState& state, MetricsRow& row,
                 std::vector<std::pair<std::string, double>>& scalars);
  std::optional<StepState> finish();

  Runtime& runtime_;
  MetricsLog metrics_;
  TensorboardWriter tensorboard_;
  LateState late_;
  std::optional<Pending> pending_;
  GradientNoiseMean noise_;
  using Time = std::chrono::steady_clock::time_point;
  /// Of this process and, by their lines, of the earlier ones of the run.
  double run_seconds(Time now) const;

  Time began_ = std::chrono::steady_clock::now(), epoch_began_ = began_, time_ = began_;
  double earlier_seconds_ = 0.0;
  int64_t step_;
  double data_seconds_ = 0.0;
};

}  // namespace meshgrad
