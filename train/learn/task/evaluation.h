// SPDX-License-Identifier: Apache-2.0
// Predictions of a trained model in physical units, and how good they are: of tasks on meshes the errors of
// each target field over the predicted nodes, in physical units; of others their own metrics.
#pragma once
#include <meshgrad/train/learn/task/task.h>

#include <functional>
#include <optional>
#include <span>
#include <string>

namespace meshgrad {

class CapturedPrediction;  // captured_prediction.h
class MeshParts;           // mesh_parts.h

/// A model with what it needs to predict. All references outlive it.
struct TrainedModel {
  Runtime& runtime;
  const Task& task;
  const Model& model;
  const Normalizers& normalizers;
  DType precision = DType::f32;
  MeshParts* parts = nullptr;              ///< computes each mesh in parts; null: whole
  CapturedPrediction* captured = nullptr;  ///< replays predictions of meshes; null: launches kernels
};

/// Target fields one frame after t (without time: of frame t), [nodes, outputs]: predicted on predicted
/// nodes, as in `state` elsewhere. `graphs`, unless null, gets those on graphs, [graph_outputs].
std::vector<float> predict_next(const TrainedModel& trained, const MeshTask& task,
                                const TrajectoryView& trajectory, int64_t t, const FieldState& state,
                                std::vector<float>* graphs = nullptr);

/// Feeds predictions back as inputs, from the first frame that has the neighbours it needs. Nodes that are
/// not predicted take the data's values, or keep their initial ones. A trajectory that is too short has no
/// frame.
void roll_out(const TrainedModel& trained, const MeshTask& task, const TrajectoryView& trajectory,
              const RolloutOptions& options, const std::function<void(const RolloutFrame&)>& one_frame);

/// Frames that roll_out makes.
int64_t rollout_frames(const MeshTask& task, const TrajectoryView& trajectory, const RolloutOptions& options);

/// Evaluation::baseline of a task on meshes.
std::string baseline_name(const MeshTask& task);

/// By component of a target: 0, or of one whose mean is more than 3 standard deviations from zero this mean
/// (FieldError::relative_l2).
std::vector<double> centres_of(const FieldInfo& target, const FieldStatistics& stats);

/// Sums of errors, field by field; every compared value counts the same.
class FieldErrors {
 public:
  /// `centres`: by column of the targets, see FieldError::relative_l2; empty: 0.
  explicit FieldErrors(const std::vector<FieldInfo>& targets, std::vector<double> centres = {});
  /// Values [nodes, outputs] where `mask` [nodes] is not 0; `baseline` is what ours are compared with, and so
  /// is `nearest`, of a NearestCase, unless it is empty.
  void add(const std::vector<float>& ours, const std::vector<float>& truth, const std::vector<uint8_t>& mask,
           const std::vector<float>& baseline, const std::vector<float>& nearest = {});
  /// NaN while nothing was added.
  std::vector<FieldError> fields() const;

  /// The sums as numbers, to add them to those of another rank's FieldErrors of the same fields.
  std::vector<double> sums() const;
  void add_sums(std::span<const double> sums);

 private:
  struct Sums {
    double squares = 0.0, absolute = 0.0, truth_squares = 0.0, baseline_squares = 0.0, count = 0.0,
           nearest_squares = 0.0, nearest_count = 0.0;
  };
  std::vector<FieldInfo> targets_;
  std::vector<double> centres_;
  std::vector<Sums> sums_;
};

/// The same of a mesh task's targets on nodes and on graphs.
struct TargetErrors {
  FieldErrors nodes, graphs;

  explicit TargetErrors(const MeshTask& task);
  /// Of one mesh: nodes as FieldErrors::add, graphs [graph_outputs].
  void add_graph(const std::vector<float>& ours, const std::vector<float>& truth,
                 const std::vector<float>& baseline);
  std::vector<FieldError> fields() const;
  std::vector<double> sums() const;
  void add_sums(std::span<const double> sums);
};

}  // namespace meshgrad
