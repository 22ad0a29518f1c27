// SPDX-License-Identifier: Apache-2.0
// How good a trained model is, in physical units: errors of each target field over the predicted nodes.
#pragma once
#include <meshgrad/train/task/task.h>

#include <functional>
#include <optional>
#include <string>

#pragma GCC visibility push(default)
namespace meshgrad {

/// A model with what it needs to predict. All references outlive it.
struct TrainedModel {
  Runtime& runtime;
  const Task& task;
  const Model& model;
  const Normalizers& normalizers;
  DType precision = DType::f32;
};

/// Errors of one field over all its components, in its unit.
struct FieldError {
  std::string name, unit;
  double rmse = 0.0;         ///< root of the mean squared error
  double mae = 0.0;          ///< mean absolute error
  double relative_l2 = 0.0;  ///< |ours - truth| / |truth|, over everything compared; NaN where the truth is 0
};

/// Sums of errors, field by field; every compared value counts the same.
class FieldErrors {
 public:
  explicit FieldErrors(const std::vector<FieldInfo>& targets);
  /// Values [nodes, outputs] where `mask` [nodes] is not 0.
  void add(const std::vector<float>& ours, const std::vector<float>& truth, const std::vector<uint8_t>& mask);
  /// NaN while nothing was added.
  std::vector<FieldError> fields() const;

 private:
  struct Sums {
    double squares = 0.0, absolute = 0.0, truth_squares = 0.0, count = 0.0;
  };
  std::vector<FieldInfo> targets_;
  std::vector<Sums> sums_;
};

struct EvaluateOptions {
  std::string split = "test";
  int64_t stride = 1;  ///< MeshDynamics: one-step errors from every stride-th frame
  std::optional<RolloutBoundary>
      boundary;  ///< MeshDynamics; absent: the data's, or of a Predictor its configuration's
  std::function<void(const std::string&)> progress;
};

/// Errors of the first `steps` predictions of rollouts, over all these predictions together.
struct RolloutErrors {
  int64_t steps = 0;
  int64_t rollouts = 0;  ///< that have so many steps
  std::vector<FieldError> fields;
};

/// Errors over time.
struct DynamicsErrors {
  /// Of predicting that nothing changes, from the same frames as Evaluation::fields.
  std::vector<FieldError> no_change;
  /// Over steps 1, 1 to 10 and 1 to 50: each where a rollout is longer, over the rollouts that have so many
  /// steps. The last one is over all steps of all rollouts; its `steps` are those of the longest.
  std::vector<RolloutErrors> rollouts;
  RolloutBoundary boundary = RolloutBoundary::data;
  std::vector<std::string> inputs_from_data;  ///< as given_inputs
};

struct Evaluation {
  std::string split;
  int64_t trajectories = 0;
  std::string targets;             ///< "velocity, pressure"
  std::vector<FieldError> fields;  ///< of one prediction: one step ahead, or of the steady fields
  std::optional<DynamicsErrors> dynamics;
};

/// Names of the inputs that change over time and are not predicted: rollouts read them from the data at every
/// step.
std::vector<std::string> given_inputs(const MeshInputs& inputs);

/// Fields of `ours` whose RMSE is not at most that of the same field in `reference`: larger, or NaN.
std::vector<std::string> fields_worse_than(const std::vector<FieldError>& ours,
                                           const std::vector<FieldError>& reference);

/// Throws ConfigError when a split, or one trajectory of it, has nothing to predict: no node of
/// data.predicted_types, or too few frames. Errors over nothing would be NaN.
void check_something_to_predict(const Task& task, const std::string& split,
                                std::optional<int64_t> trajectory = {});

/// Throws ConfigError for an unknown split, and for one without anything to predict.
Evaluation evaluate(const TrainedModel& trained, const EvaluateOptions& options);

}  // namespace meshgrad
#pragma GCC visibility pop
