// SPDX-License-Identifier: Apache-2.0
// How good a trained model is, in physical units: errors of each target field over the predicted nodes.
#pragma once
#include <meshgrad/train/task/task.h>

#include <functional>
#include <map>
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
  std::vector<FieldError> fields() const;

 private:
  struct Sums {
    double squares = 0.0, absolute = 0.0, truth_squares = 0.0, count = 0.0;
  };
  std::vector<FieldInfo> targets_;
  std::vector<Sums> sums_;
};

/// Over the predicted nodes (mask != 0) and all components of one frame; NaN when no node is predicted.
double mean_squared_error(const std::vector<float>& ours, const std::vector<float>& truth,
                          const std::vector<uint8_t>& mask);

struct EvaluateOptions {
  std::string split = "test";
  int64_t stride = 1;  ///< MeshDynamics: one-step errors from every stride-th frame
  std::optional<RolloutBoundary>
      boundary;  ///< MeshDynamics; absent: the data's, or of a Predictor its configuration's
  std::function<void(const std::string&)> progress;
};

/// Errors over time: the root of the mean over frames of mean_squared_error, over all fields.
struct DynamicsErrors {
  std::string unit;  ///< empty when the fields differ in theirs
  double one_step_rmse = 0.0;
  double hold_rmse = 0.0;  ///< predicting that nothing changes, from the same frames
  /// Over the first h steps of a rollout, h = "1", "10", "50", "all"; shorter trajectories count with what
  /// they have.
  std::map<std::string, double> rollout_rmse;
  int64_t rollout_steps = 0;        ///< of the longest rollout
  std::vector<FieldError> rollout;  ///< per field, over all frames of all rollouts
};

struct Evaluation {
  std::string split;
  int64_t trajectories = 0;
  std::string targets;             ///< "velocity, pressure"
  std::vector<FieldError> fields;  ///< of one prediction: one step ahead, or of the steady fields
  std::optional<DynamicsErrors> dynamics;
};

/// Throws ConfigError for an unknown split.
Evaluation evaluate(const TrainedModel& trained, const EvaluateOptions& options);

}  // namespace meshgrad
#pragma GCC visibility pop
