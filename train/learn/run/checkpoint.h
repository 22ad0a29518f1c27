// SPDX-License-Identifier: Apache-2.0
// Checkpoint files: everything that a run needs to go on as if it had not stopped, as one safetensors file.
// Tensors: model.NAME, ema.NAME with train.ema, optimizer.first_moment.NAME, optimizer.second_moment.NAME
// (matrices as [out, in]),
// window.gradients.NAME inside an accumulation window,
// normalizer.{nodes,edges,targets}.{mean,squared_deviation,count}. Metadata: the resolved configuration and
// the counters below, and a checksum of everything else. The same state gives the same bytes.
#pragma once
#include <meshgrad/nn/normalizer.h>
#include <meshgrad/train/learn/config/config.h>

#include <filesystem>
#include <limits>
#include <optional>

#pragma GCC visibility push(default)
namespace meshgrad {

class Dataset;
class Optimizer;
struct CheckpointExtra;  // train/learn/run/checkpoint_check.h
struct TrainingData;     // train/learn/run/checkpoint_check.h

/// Where a run stands. Sampler and noise depend on these counters and the seed alone.
struct RunState {
  int64_t step = 0;     ///< windows done (optimizer steps, and skipped or warm-up ones)
  int64_t micro = 0;    ///< batches done within the current window
  int64_t learned = 0;  ///< samples that online normalisers have seen
  StepState optimizer;  ///< the device's part, as it was last read
  double last_valid_loss = std::numeric_limits<double>::quiet_NaN();
  double best_valid_loss = std::numeric_limits<double>::infinity();  ///< of the best model
  /// Validation::error; of the best model infinite where an earlier version chose it by its loss.
  double last_valid_error = std::numeric_limits<double>::quiet_NaN();
  double best_valid_error = std::numeric_limits<double>::infinity();
  double last_valid_rollout = std::numeric_limits<double>::quiet_NaN();  ///< with train.validate_rollouts
  double best_valid_rollout = std::numeric_limits<double>::infinity();   ///< with best_by_rollout
  double last_valid_metric = std::numeric_limits<double>::quiet_NaN();   ///< with best_metric
  double best_valid_metric = std::numeric_limits<double>::quiet_NaN();   ///< likewise, of the best model
  int64_t best_step = -1;
  /// The run's ValidationPlan, once it is made: measured times must not change a resumed run.
  int64_t validation_interval = 0;     ///< in units of train.validate_every; 0: not made
  int64_t rollout_steps = 0;           ///< 0: all
  std::optional<double> first_square;  ///< of the window's first batch, for the gradient noise scale
  bool validation_due = false;         ///< the run was stopped within the validation after `step`
};

/// Writes through a temporary file, fsync and rename: a killed process or a full disk leaves the old file as
/// it was. Throws DataError when the file cannot be written. Waits for the device.
void save_checkpoint(const std::filesystem::path& path, const Stream& stream, const Config& config,
                     const Dataset& data, const ParameterSet& parameters, const Optimizer& optimizer,
                     const Normalizers& normalizers, const RunState& state,
                     const CheckpointExtra* extra = nullptr);

/// The configuration in a checkpoint. Throws DataError when the file is none or damaged.
Config checkpoint_config(const std::filesystem::path& path);
uint64_t checkpoint_data_fingerprint(const std::filesystem::path& path);
/// Nothing for checkpoints of earlier versions, which do not say it.
std::optional<TrainingData> checkpoint_training_data(const std::filesystem::path& path);

/// Loads into a model (and optimizer, unless null) of the same architecture. Without an optimizer the weights
/// are to predict with: their average, where the run had train.ema. Throws DataError naming the file
/// and the parameter when it is a checkpoint of another model, also of one whose parameters have these shapes
/// in another convention (ParameterSet::conventions), or damaged.
RunState load_checkpoint(const std::filesystem::path& path, const Stream& stream,
                         const ParameterSet& parameters, Optimizer* optimizer, Normalizers& normalizers);

/// Writes the parameters of a model by their names, and unless null the normalisers, for load_weights: of a
/// program's own model, without a configuration or data set. The program makes the model that they are loaded
/// into. Otherwise as save_checkpoint.
void save_weights(const std::filesystem::path& path, const Stream& stream, const ParameterSet& parameters,
                  const Normalizers* normalizers);

/// Loads the weights alone, those that load_checkpoint loads without an optimizer or those of save_weights,
/// and unless null the normalisers. The same errors; also for a file of save_weights with other parameters.
void load_weights(const std::filesystem::path& path, const Stream& stream, const ParameterSet& parameters,
                  Normalizers* normalizers);

/// The file of a run that `word` names: "best", "last", or a path. Throws ConfigError when there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& run, const std::string& word);

}  // namespace meshgrad
#pragma GCC visibility pop
