// SPDX-License-Identifier: Apache-2.0
// Predictions on data without a solution: meshes, conditions and first frames that a model has never seen.
#pragma once
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/tools/program/prediction_tables.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshgrad {

/// Values of nodes that are not predicted, after the first frame.
struct NewBoundary {
  enum class From { initial, data, table };
  From from = From::initial;
  std::filesystem::path table;  ///< CSV (boundary_table.h)
};

/// Data to predict on.
struct NewData {
  Dataset data;
  std::filesystem::path path;  ///< as the user names it
  /// Of several trajectories: the names that files get; empty ones, or none: TrajectoryView::name.
  std::vector<std::string> names = {};
};

struct NewDataOptions {
  std::filesystem::path directory;
  int64_t steps = 0;  ///< of rollouts; 0: to the end of the data
  NewBoundary boundary;
  PredictionOutputs outputs;
  std::optional<TrainingData> trained;  ///< of the checkpoint
  std::function<void(int64_t done, int64_t total)> progress;
};

/// A file that was written of one trajectory.
struct NewDataFile {
  std::string source;          ///< NewData::path, and of several trajectories TrajectoryView::name
  std::filesystem::path file;  ///< NAME.vtu of steady fields, NAME/rollout.pvd of a rollout, or a table of it
  int64_t frames = 0;          ///< predicted
};

struct NewDataFiles {
  std::vector<NewDataFile> files;
  /// What was held, what is not known, and which inputs are far from those of the training, each once.
  std::vector<std::string> notes;
};

/// Predicts on every trajectory of all `data`, of which the model's inputs and, over time, its targets in the
/// first frames are read. Files are named after the source; no file of `data` is replaced. Fields are the
/// targets, and node_type; at nodes that are not predicted, of steady fields that the data does not have,
/// they are nan. Targets on graphs are in write_table's files, by the number of the mesh. Throws DataError
/// for fields, units, node types or dimensions that are not those of the model, for fewer frames than it
/// reads or `boundary` needs, and for a probe that is in none of the meshes; ConfigError for `steps` that
/// nothing says.
NewDataFiles predict_new_data(MeshPredictor& predictor, std::span<const NewData> data,
                              const NewDataOptions& options);

}  // namespace meshgrad
