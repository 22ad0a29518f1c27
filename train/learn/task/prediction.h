// SPDX-License-Identifier: Apache-2.0
// What predictions take and give, and errors of predictions: plain values, all in physical units.
#pragma once
#include <meshgrad/train/learn/config/config.h>

#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

class Ranks;  // engine/ranks/ranks.h

/// The target fields of one mesh at one time, in physical units.
struct FieldState {
  std::vector<float> current;  ///< [nodes, outputs]
  /// The frames before, [frames, nodes, outputs], latest first: as many as data.history where second changes
  /// are predicted, else one fewer. With the defaults none, or one.
  std::vector<float> previous;

  /// `next` becomes the current frame, and the oldest is dropped. Leaves memory of the same size in `next`.
  void advance(std::vector<float>&& next);
  /// [nodes, outputs] of the frame that many before the current one.
  std::span<const float> frame(int64_t before) const;
};

struct RolloutOptions {
  int64_t steps = 0;  ///< 0: to the end of the trajectory; more than it has: see RolloutFrame
  RolloutBoundary boundary = RolloutBoundary::data;
};

/// A frame of a rollout. After the last frame of the data there is no truth: it is empty, and boundary
/// values and the inputs that are not predicted are those of the data's last frame.
struct RolloutFrame {
  int64_t t = 0;                          ///< frame of the trajectory, from 1
  const std::vector<float>& ours;         ///< [nodes, outputs]
  const std::vector<float>& truth;        ///< likewise, or empty
  const std::vector<float>& graphs;       ///< targets on graphs, [graph_outputs]
  const std::vector<float>& graph_truth;  ///< likewise, or empty
};

/// Errors of one field over all its components, in its unit.
struct FieldError {
  std::string name, unit;
  double rmse = 0.0;  ///< root of the mean squared error
  double mae = 0.0;   ///< mean absolute error
  /// |ours - truth| / |truth - centre|, over everything compared; NaN where that is 0. The centre is 0, or of
  /// a field far from zero (MeshTask::centres), such as a temperature in kelvin, its mean or
  /// FieldInfo::offset: relative to its values each error would look small.
  double relative_l2 = 0.0;
  double baseline_rmse = 0.0;         ///< of Evaluation::baseline for the same values; NaN without one
  double baseline_relative_l2 = 0.0;  ///< likewise
  double nearest_rmse = std::numeric_limits<double>::quiet_NaN();  ///< of NearestCase; NaN without one
  bool centred = false;                                            ///< the centre is not 0
};

struct EvaluateOptions {
  std::string split = "test";
  int64_t stride = 1;  ///< MeshDynamics: one-step errors from every stride-th frame
  std::optional<RolloutBoundary>
      boundary;  ///< MeshDynamics; absent: the data's, or of a Predictor its configuration's
  std::vector<int64_t> horizons = {};  ///< MeshDynamics: steps of DynamicsErrors::rollouts beside all; empty:
                                       ///< none, or of a Predictor its configuration's
  std::string label = {};  ///< LinkReconstruction: field on graphs, 1 for an anomaly, that scores should tell
  int64_t trajectories = 0;  ///< the first of the split; 0: all
  int64_t steps = 0;         ///< MeshDynamics: of rollouts, at most; 0: to the end of the data
  std::function<void(const std::string&)> progress;
  /// Asked before each step of a rollout, each steady mesh and each batch of graphs; once it is true, the
  /// result is `stopped`. Of ranks that compute each mesh together, it is asked on all of them, and says the
  /// same.
  std::function<bool()> stop = {};
  bool nearest_case = true;  ///< SteadyField: compares with NearestCase, too
  /// The processes that share the trajectories, each calling evaluate() with the same arguments and getting
  /// the same result; null: this one alone. The result does not depend on their number.
  Ranks* ranks = nullptr;
  /// MeshDynamics: gets each frame of the rollouts, from step 1, [nodes, outputs].
  std::function<void(int64_t trajectory, int64_t step, const std::vector<float>& ours,
                     const std::vector<float>& truth)>
      rollout_step = {};
};

/// Errors of the first `steps` predictions of rollouts, over all these predictions together.
struct RolloutErrors {
  int64_t steps = 0;
  int64_t rollouts = 0;  ///< that have so many steps
  std::vector<FieldError> fields;
};

/// Errors over time.
struct DynamicsErrors {
  /// Over steps 1 to h for each of EvaluateOptions::horizons, ascending: each where a rollout is longer, over
  /// the rollouts that have so many steps. The last one is over all steps of all rollouts; its `steps` are
  /// those of the longest.
  std::vector<RolloutErrors> rollouts;
  RolloutBoundary boundary = RolloutBoundary::data;
  std::vector<std::string> inputs_from_data;  ///< as given_inputs
  std::vector<std::string> held_types;        ///< as FieldSelection::held_types_of
};

/// A number that a task reports beside, or in place of, the errors of fields.
struct Metric {
  std::string name, unit;  ///< "accuracy", ""
  double value = 0.0;
};

struct Evaluation {
  std::string split;
  int64_t trajectories = 0;
  std::string targets;                  ///< "velocity, pressure"
  std::vector<FieldError> fields = {};  ///< of one prediction: one step ahead, or of the steady fields
  /// What a model has to beat, for people: over time that nothing changes, from the same frame; else the mean
  /// over the nodes of a type, in the training split of the same file. Empty: none.
  std::string baseline = {};
  std::optional<DynamicsErrors> dynamics = {};
  std::vector<Metric> metrics = {};
  /// Of classes: how many rows of a class, by row, were given each, by column.
  std::vector<std::vector<int64_t>> confusion = {};
  std::vector<std::string> notes = {};  ///< which metrics have no value, and why
  bool stopped = false;                 ///< by EvaluateOptions::stop: the errors are of a part
};

/// What a task that is not on meshes predicts: a row for each node or graph of a split.
struct PredictedTable {
  std::string rows;              ///< "node" or "graph"
  std::vector<int64_t> numbers;  ///< of the node, or of the graph within its split
  std::vector<int64_t> frames;   ///< of graphs over time; else empty
  std::vector<int32_t> classes;  ///< the likeliest class of each row; empty where there are no classes
  /// Columns of `values` that belong together, with their width: "probability", or target fields.
  struct Group {
    std::string name;
    int64_t width = 0;
  };
  std::vector<Group> groups;
  std::vector<double> values;  ///< [rows, columns], in physical units

  /// "p0", "p1", ... of classes; else "drag", or "force[0]" of several components.
  std::vector<std::string> column_names() const;
  void add_classes(int64_t number, std::span<const double> probabilities);
};

}  // namespace meshgrad
#pragma GCC visibility pop
