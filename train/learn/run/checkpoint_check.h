// SPDX-License-Identifier: Apache-2.0
// The metadata of a checkpoint: its counters and its checksum, which are checked when it is read,
// and what it says of the training data.
#pragma once
#include <meshgrad/train/data/safetensors.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/learn/task/task.h>

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// What a checkpoint may hold beside the run's own state. Readers of checkpoints do not look at it.
struct CheckpointExtra {
  std::vector<SafetensorsTensor> tensors;
  std::map<std::string, std::string> metadata;  ///< in place of the run's own under the same keys
};

/// XXH3 of names, dtypes, shapes and bytes of all tensors and of the metadata but "checksum" itself, as 16
/// hexadecimal digits. Independent of the order of the tensors.
std::string checkpoint_checksum(std::span<const SafetensorsTensor> tensors,
                                const std::map<std::string, std::string>& metadata);

/// Opens a checkpoint. Throws DataError when the file is none, or differs from what was written. Version 1 of
/// the format may lack the checksum.
SafetensorsFile open_checkpoint(const std::filesystem::path& path);

/// Opens a checkpoint, or what save_weights wrote. Likewise.
SafetensorsFile open_weights(const std::filesystem::path& path);

/// The format of save_weights, for the metadata.
std::map<std::string, std::string> metadata_of_weights();
/// The format, and the counters of a run with this configuration, for the metadata.
std::map<std::string, std::string> metadata_of_state(const RunState& state, const Config& config);

/// The counters in the metadata. Throws DataError naming the first that no run could have written, given the
/// configuration in the same file.
RunState read_run_state(const SafetensorsView& view, const Config& config);
uint64_t read_data_fingerprint(const SafetensorsView& view);

/// The least and the greatest value.
struct SeenRange {
  double least = 0, most = 0;
};

/// What a model has seen: values of the split that the statistics are of.
struct TrainingRanges {
  std::map<std::string, std::vector<SeenRange>> fields;  ///< inputs and targets, per component
  SeenRange nodes;                                       ///< of a mesh
  double edge_length = 0;                                ///< mean
};

/// Throws DataError with `where` for statistics of a Normalizer that are not finite.
void check_statistics(const std::string& where, double count, std::span<const double> mean,
                      std::span<const double> squares, std::string_view fix);

/// What must be the same of the data that a model was trained on and of the data that it predicts. Stored in
/// checkpoints.
struct TrainingData {
  double dt = 0;  ///< seconds between frames, over which the model learned changes; 0 when unknown
  std::map<std::string, std::vector<double>>
      offsets;  ///< FieldInfo::offset of inputs and targets that have one
  int dim = 0;  ///< of positions; 0 in checkpoints of earlier versions, which describe no fields
  std::vector<FieldInfo> fields;  ///< inputs and targets, without offsets
  /// Nothing in checkpoints of earlier versions, and of data without statistics.
  std::optional<TrainingRanges> ranges = {};
  std::optional<bool> directed = {};  ///< Dataset::directed; nothing in checkpoints of earlier versions
};
TrainingData training_data(const Dataset& dataset, const DataConfig& config);

std::string to_json(const TrainingData& data);
/// Throws DataError with `where` for anything else than to_json's text.
TrainingData training_data_from_json(std::string_view text, std::string_view where);

/// "directed edges", or "edges without directions".
std::string_view name_of_edges(bool directed);

/// Whether data may be predicted by a model of changes over `trained` seconds: the same dt but for the
/// rounding of f32, or one of the two is not known (0).
bool same_dt(double trained, double dt);

/// What an error says of data that differ.
struct OtherData {
  std::string needed, got, fix;
};
/// Another known dt of the task's data than of `trained` (of a task over time), other offsets, or edges that
/// are directed in one of the two, with both figures; nothing where they agree. `checkpoint` names what was
/// trained.
std::optional<OtherData> find_other_data(const std::string& checkpoint, const TrainingData& trained,
                                         const Task& task, const Config& config);

}  // namespace meshgrad
