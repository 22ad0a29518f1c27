// SPDX-License-Identifier: Apache-2.0
// Trainer: a run, from its first step or a checkpoint to the last. It knows a Task and a Model, and nothing
// of what they are. train/train.h starts one from a configuration.
#pragma once
#include <meshgrad/train/run/batch_loader.h>
#include <meshgrad/train/run/memory_watch.h>
#include <meshgrad/train/run/run_folder.h>
#include <meshgrad/train/run/run_log.h>
#include <meshgrad/train/run/train_options.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace meshgrad {

class Trainer {
 public:
  /// Chooses what is recomputed, once parameters and optimizer state are allocated (train/planning/).
  using ChooseRecomputation = std::function<Recomputation(const Task&, const Model&)>;

  /// Opens the data. All references outlive it. Throws ConfigError and DataError.
  Trainer(Runtime& runtime, const Config& config, const TrainOptions& options, ChooseRecomputation choose);
  /// Trains to the end, or until the observer stops it.
  TrainResult run();

 private:
  void start();
  void resume();
  void allocate();
  bool warming_up() const;
  Normalizing normalizing() const;
  bool learning() const;
  void train_batch();
  void finish_step();
  void check_state();
  void check_state(const std::optional<StepState>& seen);
  [[noreturn]] void report_non_finite(std::string_view needed, const std::string& got, const StepState& seen);
  void release_gradients();
  void check_memory();
  void check_data();
  bool end_step();
  bool validate();
  void save(bool best);
  void save_numbered();
  void message(const std::string& text) const;
  void pause() const;
  bool stop_wanted() const;
  TrainResult stopped();
  TrainResult result(bool was_stopped) const;

  Runtime& runtime_;
  const Config& config_;
  const TrainOptions& options_;
  ChooseRecomputation choose_;
  Task task_;
  Model model_;
  Normalizers normalizers_;  // before the loader, whose worker reads them
  BatchLoader loader_;
  RunFolder folder_;
  RunState state_;
  std::optional<Optimizer> optimizer_;
  std::optional<StepCache> steps_;
  std::optional<RunLog> log_;
  MemoryWatch memory_watch_;
  std::chrono::steady_clock::time_point data_checked_;
  std::vector<float> step_seconds_;  // of this process
};

}  // namespace meshgrad
