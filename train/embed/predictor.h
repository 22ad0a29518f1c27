// SPDX-License-Identifier: Apache-2.0
// Predictor: a checkpoint with its data, loaded to predict and to be evaluated.
#pragma once
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/learn/task/prediction.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#pragma GCC visibility push(default)
namespace meshgrad {

class MeshTask;
class Ranks;
class Runtime;
class Task;
struct TrainedModel;

/// The packed file that a run was trained on: as the configuration names it, relative to the folder that
/// train ran in where the checkpoint's place in run.dir tells it, else to the current folder. Nothing: it is
/// not there.
std::optional<std::filesystem::path> data_of_run(const Config& config,
                                                 const std::filesystem::path& checkpoint);

/// A run's configuration for predictions: with the numbers of its classes and identifiers, where these were
/// counted in the data, and without the classes' weights, which new data need not allow. Throws DataError
/// when the file is no checkpoint.
Config config_of_predictions(const std::filesystem::path& checkpoint);

/// Throws ConfigError, naming the command to use, unless a run of this task predicts over time, or fields
/// without time.
void check_predicts(const Config& config, bool over_time);

class Predictor {
 public:
  /// `data_path` empty: data_of_run(). Throws DataError or ConfigError when something
  /// does not fit. The runtime outlives it, and so do `ranks`: with them and a configuration with
  /// ranks.partition, all ranks predict together: each calls the same functions with the same arguments and
  /// gets the same results. With ranks.parts_in_turn, it predicts in parts.
  Predictor(Runtime& runtime, const std::filesystem::path& checkpoint, const std::string& data_path = {},
            Ranks* ranks = nullptr);
  ~Predictor();
  Predictor(const Predictor&) = delete;  // trained() refers to its members
  Predictor& operator=(const Predictor&) = delete;

  const Config& config() const;
  const Dataset& dataset() const;
  /// Of the checkpoint.
  int64_t step() const;
  /// What a user should know of the data: that the run's file has other content than in training, or that
  /// only one of the checkpoint and the data knows dt.
  const std::vector<std::string>& warnings() const;

  // For the library itself, whose headers of tasks are not installed:
  const Task& task() const;
  TrainedModel trained() const;
  /// Throw ConfigError for a run of another task.
  const MeshTask& mesh_dynamics() const;
  const MeshTask& steady_field() const;

 private:
  struct Loaded;
  std::unique_ptr<const Loaded> loaded_;
};

/// Errors over a split. Throws ConfigError for an unknown split, and for one without anything to predict.
Evaluation evaluate(const Predictor& predictor, const EvaluateOptions& options);

/// What a task of nodes or graphs predicts of a split; tasks on meshes throw ConfigError.
PredictedTable predict_table(const Predictor& predictor, const EvaluateOptions& options);

// task.name = "mesh_dynamics"; others throw ConfigError.
/// The state at frame t, from the data; t is at least 1 where second changes are predicted.
FieldState state_at(const Predictor& predictor, const TrajectoryView& trajectory, int64_t t);
/// Target fields one frame after t, [nodes, outputs]: predicted on predicted nodes, as in `state` elsewhere.
std::vector<float> predict_next(const Predictor& predictor, const TrajectoryView& trajectory, int64_t t,
                                const FieldState& state);
/// Feeds predictions back as inputs, from the first frame that has the neighbours it needs. Nodes that are
/// not predicted take the data's values, or keep their initial ones. A trajectory that is too short has no
/// frame.
void roll_out(const Predictor& predictor, const TrajectoryView& trajectory, const RolloutOptions& options,
              const std::function<void(const RolloutFrame&)>& one_frame);

// task.name = "steady_field"; others throw ConfigError.
/// Target fields of frame t, [nodes, outputs]: predicted on predicted nodes, the data's elsewhere. `graphs`,
/// unless null, gets those on graphs.
std::vector<float> predict_steady(const Predictor& predictor, const TrajectoryView& trajectory, int64_t t,
                                  std::vector<float>* graphs = nullptr);

}  // namespace meshgrad
#pragma GCC visibility pop
