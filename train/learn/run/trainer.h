// SPDX-License-Identifier: Apache-2.0
// Trainer: a run, from its first step or a checkpoint to the last. It knows a Task and a Model, and nothing
// of what they are. train/learn/train.h starts one from a configuration.
#pragma once
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/train/learn/run/batch_loader.h>
#include <meshgrad/train/learn/run/load_teacher.h>
#include <meshgrad/train/learn/run/part_step.h>
#include <meshgrad/train/learn/run/run_folder.h>
#include <meshgrad/train/learn/run/run_log.h>
#include <meshgrad/train/learn/run/step_trace.h>
#include <meshgrad/train/learn/run/train_options.h>
#include <meshgrad/train/learn/run/validation.h>
#include <meshgrad/train/learn/run/window_sum.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace meshgrad {

class Trainer {
 public:
  /// Chooses what is recomputed, once parameters and optimizer state are allocated (train/learn/planning/).
  using ChooseRecomputation = std::function<Recomputation(const Task&, const Model&)>;

  /// Opens the data. All references outlive it. Throws ConfigError and DataError.
  Trainer(Runtime& runtime, const Config& config, const TrainOptions& options, ChooseRecomputation choose);
  /// Trains to the end, or until the observer stops it.
  TrainResult run();

 private:
  void start();
  void resume();
  void allocate();
  void check_same_on_all_ranks();
  void describe_ranks();
  bool prepare_teacher();
  void describe_samples();
  void describe_parts() const;
  Recomputation same_on_all_ranks(Recomputation chosen);
  int64_t bytes_sent() const;
  int64_t warmup_steps() const;
  bool warming_up() const;
  bool learning() const;
  void allocate_gradients();
  bool logs_step(int64_t step) const;
  bool measures_noise();
  std::optional<GradientSquare> small_batch();
  bool train_window();
  void remember_window(bool observes);
  void rewind_window();
  void train_batch(Normalizing normalizing);
  void finish_step();
  void check_state();
  void check_state(const std::optional<StepState>& seen);
  void flush_log();
  [[noreturn]] void report_non_finite(std::string_view needed, const std::string& got, const StepState& seen);
  void release_gradients();
  void check_memory();
  void check_data();
  bool end_step();
  void check_trace() const;
  void begin_trace();
  void end_trace();
  void load_scores(const std::filesystem::path& checkpoint);
  bool score_samples();
  void load_scoring_model();
  bool make_scores(Curriculum& curriculum);
  void tell_scored(int64_t done, int64_t all) const;
  void tell_scores(int64_t epoch, std::vector<float> scores, const std::filesystem::path& path) const;
  bool out_of_patience() const;
  bool validate_start();
  bool validate(bool may_be_best = true);
  /// What a validation finds.
  struct Found {
    Validation samples;
    std::optional<ValidationRollouts> rollouts;
    std::optional<ValidationMetric> metric;  // that chooses the best
  };
  std::optional<Found> find_errors(const Tensor& average, bool trained);
  void keep_as_best(const Found& found);
  bool better_than_best() const;
  std::string best_by() const;
  int64_t validate_every() const;
  bool plan_validations(double seconds_of_samples);
  double seconds_of_step(double seconds_of_samples);
  void validate_best_again(const std::filesystem::path& resumed);
  void save(bool best);
  void save_numbered();
  void tell(RunEventKind kind, std::string text, RunEvent::Fields fields = {}) const;
  void opened() const;
  void pause() const {
    if (ranks_.first() && options_.observer.pause) options_.observer.pause();
  }
  bool stop_wanted();
  TrainResult stopped();
  TrainResult result(bool was_stopped) const;

  Runtime& runtime_;
  const Config& config_;
  const TrainOptions& options_;
  ChooseRecomputation choose_;
  Ranks alone_;  // without options.ranks
  Ranks& ranks_;
  Task task_;
  std::optional<RankedMetric> best_metric_;  // that chooses the best
  Model model_;
  Normalizers normalizers_;         // before the loader, whose worker reads them
  std::optional<MeshParts> parts_;  // where meshes are cut into parts
  BatchLoader loader_;
  std::optional<TaskModel> scoring_model_;  // until the samples are scored
  RunFolder folder_;
  RunState state_;
  std::optional<GradientSquare> small_batch_;  // of the last window, where its noise is measured
  std::optional<Optimizer> optimizer_;
  std::optional<StepCache> steps_;
  WindowSum sum_;
  std::optional<RunLog> log_;  // of rank 0
  /// What the present window began with, where it can begin again.
  struct WindowBegin {
    StepState optimizer;
    int64_t learned = 0;
    std::optional<Normalizers> normalizers;  // where the window has changed them
  };
  std::optional<WindowBegin> window_begin_;
  std::chrono::steady_clock::time_point batch_begin_;
  MemoryWatch memory_watch_;
  std::optional<StepTrace> trace_;  // of the step that is traced
  std::chrono::steady_clock::time_point data_checked_;
  std::vector<float> step_seconds_;  // of this process
  int64_t bytes_sent_ = 0;           // in these steps
  double validation_seconds_ = 0.0;  // of this process
};

}  // namespace meshgrad
