// SPDX-License-Identifier: Apache-2.0
// Predictions as files that people look at: VTU for ParaView, and pictures.
#pragma once
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/task/evaluation.h>

namespace meshgrad {

struct RolloutFilesOptions {
  std::string split = "test";
  int64_t trajectory = 0;
  int64_t steps = 0;         ///< 0: to the end of the trajectory
  bool beyond_data = false;  ///< more steps than the trajectory has are allowed (RolloutFrame)
  std::optional<RolloutBoundary> boundary;
  std::filesystem::path directory;
  bool writes = true;  ///< false: for ranks that predict together with the one that writes
  std::function<void(int64_t done, int64_t total)> progress;
};

struct RolloutFiles {
  std::filesystem::path series;                 ///< rollout.pvd
  std::vector<std::filesystem::path> pictures;  ///< prediction, truth and error, SVG
  int64_t steps = 0;
  int64_t compared = 0;            ///< steps for which the data has the truth
  std::vector<FieldError> fields;  ///< over the compared steps
  std::string baseline;            ///< Evaluation::baseline
  RolloutBoundary boundary = RolloutBoundary::data;
  std::vector<std::string> inputs_from_data;  ///< as given_inputs
  std::vector<std::string> held_types;        ///< as FieldSelection::held_types_of
  std::filesystem::path graphs;               ///< predictions.csv of targets on graphs; empty: there are none
};

/// Rolls one trajectory out and writes rollout.pvd with one VTU a frame (fields NAME, NAME_truth, NAME_error,
/// and node_type), and pictures after the first, the tenth, the middle and the last step. frame_00000.vtu is
/// the initial frame, from the data. Throws ConfigError for a task without time, a trajectory that does not
/// exist or has nothing to predict, and more steps than its data without `beyond_data`. Files of an earlier
/// rollout in the folder are removed first; DataError for a file of such a name that another program wrote.
/// Without `writes` the result is empty.
RolloutFiles write_rollout(const Predictor& predictor, const RolloutFilesOptions& options);

struct PredictionFilesOptions {
  std::string split = "test";
  int64_t meshes = 0;  ///< the first ones; 0: all
  std::filesystem::path directory;
  bool writes = true;  ///< false: for ranks that predict together with the one that writes
  std::function<void(int64_t done, int64_t total)> progress;
};

struct PredictionFiles {
  std::vector<std::filesystem::path> meshes;    ///< mesh_NNNNN_SOURCE.vtu
  std::vector<std::string> sources;             ///< of each: TrajectoryView::name
  std::vector<std::filesystem::path> pictures;  ///< prediction, truth and error of the first meshes, SVG
  std::vector<FieldError> fields;
  std::string baseline;          ///< Evaluation::baseline
  std::filesystem::path graphs;  ///< as RolloutFiles::graphs
};

/// Predicts the steady fields of each mesh of a split and writes one VTU a mesh (fields NAME, NAME_truth,
/// NAME_error, and node_type), and pictures of the first four, unless all targets are on graphs. Throws
/// ConfigError for a run of another task. Files of an earlier call are treated as write_rollout treats them.
/// Without `writes` the result is empty.
PredictionFiles write_predictions(const Predictor& predictor, const PredictionFilesOptions& options);

}  // namespace meshgrad
