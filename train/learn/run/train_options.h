// SPDX-License-Identifier: Apache-2.0
// The options of a run, what its observer receives, and its result.
#pragma once
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/learn/run/run_event.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Called while a run goes on; every function may be empty.
struct TrainObserver {
  struct Progress {
    int64_t step = 0, steps = 0;
    double loss = 0.0, learning_rate = 0.0;
    int64_t memory_now = 0, memory_peak = 0;  ///< bytes allocated
  };
  std::function<void(const Progress&)> progress;  ///< after every step
  std::function<void(const RunEvent&)> event;
  std::function<void()> opened;  ///< the run directory is this run's from here on: it is locked
  /// Asked after every batch, and before every sample of a validation: true ends the run with a checkpoint.
  std::function<bool()> stop;
  std::function<void()> pause;  ///< validation or a checkpoint starts: the time is not a training step's
};

class Ranks;  // engine/ranks/ranks.h

struct TrainOptions {
  bool resume = false;               ///< from `checkpoint`, or else checkpoints/last.safetensors
  std::filesystem::path checkpoint;  ///< best, last or a file
  std::vector<std::string> command;  ///< for environment.json
  int64_t trace_step = 0;            ///< writes trace-STEP.json of this step into the run directory; 0: none
  /// Of batches on the CPU that take longer, `stop` is asked within them too: the window then begins again
  /// when the run resumes.
  std::chrono::milliseconds long_batch{2000};
  TrainObserver observer;
  /// The processes that train together, each calling train() with the same arguments; null: this one alone.
  /// Rank 0 alone writes the run directory and calls the observer; `stop` is asked on every rank, between
  /// windows.
  Ranks* ranks = nullptr;
};

struct TrainResult {
  bool stopped = false;  ///< by `stop`; the run can be resumed
  RunState state;
  std::filesystem::path checkpoint;  ///< the last one written
  int64_t parameters = 0;
  int64_t total_steps = 0;  ///< of the whole run
  /// Seconds until the host is done with a step, without validation and checkpoints: the first step of this
  /// process (with tuning and captures, on a GPU), and the median of the others.
  double first_step_seconds = 0.0;
  double median_step_seconds = 0.0;
  double validation_share = 0.0;   ///< of the time of this process' steps and validations
  int64_t offloaded_bytes = 0;     ///< at once, at most (recompute.offload)
  double data_wait_seconds = 0.0;  ///< mean of a step: the host waited for data, or wrote it
};

}  // namespace meshgrad
#pragma GCC visibility pop
