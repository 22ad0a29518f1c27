// SPDX-License-Identifier: Apache-2.0
// What must be the same of the data that a model was trained on and of the data that it predicts.
#pragma once
#include <meshgrad/train/learn/task/task.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// Stored in checkpoints.
struct TrainingData {
  double dt = 0;  ///< seconds between frames, over which the model learned changes; 0 when unknown
  std::map<std::string, std::vector<double>>
      offsets;                    ///< FieldInfo::offset of inputs and targets that have one
  int dim = 0;                    ///< of positions; 0: graphs without, or a checkpoint of an earlier version
  std::vector<FieldInfo> fields;  ///< inputs and targets, without offsets; empty where dim is 0
};
TrainingData training_data(const Dataset& dataset, const DataConfig& config);

std::string to_json(const TrainingData& data);
/// Throws DataError with `where` for anything else than to_json's text.
TrainingData training_data_from_json(std::string_view text, std::string_view where);

/// Whether the data of a task that predicts over time have a known dt other than what was trained over.
bool dt_differs(const TrainingData& trained, const Task& task);

/// The offsets as errors say them: "offsets velocity 10 0", or "no offsets".
std::string offset_text(const std::map<std::string, std::vector<double>>& offsets);

/// Throws DataError with both figures when dt_differs, or offsets do. `checkpoint` names what was trained.
void check_training_data(const std::string& checkpoint, const TrainingData& trained, const Task& task,
                         const Config& config);

}  // namespace meshgrad
