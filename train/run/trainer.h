// SPDX-License-Identifier: Apache-2.0
// The trainer: the whole way from a configuration to checkpoints.
#pragma once
#include <meshgrad/train/run/checkpoint.h>

#include <functional>
#include <string>

#pragma GCC visibility push(default)
namespace meshgrad {

/// The model that a configuration and a data set's sizes describe; not yet allocated.
MeshGraphNetOptions model_options(const ModelConfig& config, const FrameFeatures& features);

/// What happens while a run goes on; every function may be empty.
struct TrainObserver {
  struct Progress {
    int64_t step = 0, steps = 0;
    double loss = 0.0, learning_rate = 0.0;
    int64_t memory_now = 0, memory_peak = 0;  ///< bytes the allocator handed out
  };
  std::function<void(const Progress&)> progress;    ///< after every step
  std::function<void(const std::string&)> message;  ///< a line worth reading
  std::function<bool()> stop;   ///< asked after every batch: true ends the run with a checkpoint
  std::function<void()> pause;  ///< work that is no training step comes (validation, saving)
};

struct TrainOptions {
  bool resume = false;               ///< go on from checkpoints/last.safetensors
  std::vector<std::string> command;  ///< for environment.json
  TrainObserver observer;
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
  int64_t offloaded_bytes = 0;     ///< that waited outside of the device's memory at once (recompute.offload)
  double data_wait_seconds = 0.0;  ///< a step, in the mean: the host waited for data, or put it together
};

/// Trains as `config` says and writes the run directory: config.resolved.toml, environment.json,
/// metrics.jsonl, tb/, checkpoints/. Results depend on the configuration and the data, not on threads or on
/// being resumed. Throws ConfigError, DataError, OutOfMemory (the last checkpoint stays), and DataError when
/// the loss is no longer finite.
TrainResult train(Runtime& runtime, const Config& config, const TrainOptions& options);

}  // namespace meshgrad
#pragma GCC visibility pop
