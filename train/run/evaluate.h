// SPDX-License-Identifier: Apache-2.0
// evaluate and rollout: how good a trained model is, in physical units.
#pragma once
#include <meshgrad/train/run/checkpoint.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>

#pragma GCC visibility push(default)
namespace meshgrad {

/// A trained model with its data and normalisers, ready to predict.
class Predictor {
 public:
  /// `data_path` empty: the configuration's. Throws DataError or ConfigError when something does not fit.
  Predictor(Runtime& runtime, const std::filesystem::path& checkpoint, const std::string& data_path = {});
  Predictor(const Predictor&) = delete;  // features refer to the data set beside them
  Predictor& operator=(const Predictor&) = delete;

  const Config& config() const { return config_; }
  Runtime& runtime() const { return runtime_; }
  const Dataset& dataset() const { return dataset_; }
  const FrameFeatures& features() const { return *features_; }
  int64_t step() const { return state_.step; }

  /// Target fields one frame after t, [nodes, outputs]: predicted on predicted nodes, as in `state`
  /// elsewhere.
  std::vector<float> predict(const TrajectoryView& trajectory, int64_t t, const FieldState& state) const;

 private:
  Runtime& runtime_;
  Config config_;
  Dataset dataset_;
  std::unique_ptr<FrameFeatures> features_;
  std::unique_ptr<MeshGraphNet> model_;
  Normalizers normalizers_;
  RunState state_;
};

/// Frames of a rollout: one_frame(t, predicted, truth), t = 1, 2, ...; both [nodes, outputs]. From the first
/// usable frame, `steps` long (0: to the end of the trajectory). Nodes that are not predicted come from the
/// data, or keep their initial values.
void roll_out(
    const Predictor& predictor, const TrajectoryView& trajectory, int64_t steps, RolloutBoundary boundary,
    const std::function<void(int64_t, const std::vector<float>&, const std::vector<float>&)>& one_frame);

struct EvaluateOptions {
  std::string split = "test";
  int64_t stride = 1;                       ///< one-step errors from every stride-th frame
  std::optional<RolloutBoundary> boundary;  ///< absent: the configuration's
  std::function<void(const std::string&)> progress;
};

/// Over the predicted nodes (mask != 0) and all components of one frame; NaN when no node is predicted.
double mean_squared_error(const std::vector<float>& ours, const std::vector<float>& truth,
                          const std::vector<uint8_t>& mask);

/// Root mean square errors in the unit of the fields: the root of the mean over frames of mean_squared_error.
struct Evaluation {
  std::string split;
  int64_t trajectories = 0;
  int64_t step = 0;          ///< of the checkpoint
  std::string fields, unit;  ///< no unit when the fields differ in theirs
  double one_step_rmse = 0.0;
  double hold_rmse = 0.0;  ///< predicting that nothing changes, from the same frames
  /// Over the first h steps of a rollout, h = "1", "10", "50", "all"; shorter trajectories count with what
  /// they have.
  std::map<std::string, double> rollout_rmse;
  int64_t rollout_steps = 0;  ///< of the longest rollout
};

Evaluation evaluate(const Predictor& predictor, const EvaluateOptions& options);

}  // namespace meshgrad
#pragma GCC visibility pop
