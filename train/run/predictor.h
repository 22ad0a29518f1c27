// SPDX-License-Identifier: Apache-2.0
// Predictor: a checkpoint with its data, loaded to predict.
#pragma once
#include <meshgrad/train/run/checkpoint.h>
#include <meshgrad/train/task/evaluation.h>

#pragma GCC visibility push(default)
namespace meshgrad {

class Predictor {
 public:
  /// `data_path` empty: the configuration's, relative to the folder that train ran in where the checkpoint's
  /// place in run.dir tells it, else to the current folder. Throws DataError or ConfigError when something
  /// does not fit.
  Predictor(Runtime& runtime, const std::filesystem::path& checkpoint, const std::string& data_path = {});
  Predictor(const Predictor&) = delete;  // trained() refers to its members
  Predictor& operator=(const Predictor&) = delete;

  const Config& config() const { return config_; }
  const Task& task() const { return task_; }
  const Dataset& dataset() const { return task_.dataset(); }
  /// Of the checkpoint.
  int64_t step() const { return state_.step; }
  /// What a user should know of the data: that the run's file has other content than in training, or that
  /// only one of the checkpoint and the data knows dt.
  const std::vector<std::string>& warnings() const { return warnings_; }
  TrainedModel trained() const { return {runtime_, task_, model_, normalizers_, config_.precision}; }

 private:
  Runtime& runtime_;
  Config config_;
  Task task_;
  Model model_;
  Normalizers normalizers_;
  RunState state_;
  std::vector<std::string> warnings_;
};

/// task/evaluation.h's evaluate, with errors of the host's memory named.
Evaluation evaluate(const Predictor& predictor, const EvaluateOptions& options);

}  // namespace meshgrad
#pragma GCC visibility pop
