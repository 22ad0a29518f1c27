// SPDX-License-Identifier: Apache-2.0
// What must be the same of the data that a model was trained on and of the data that it predicts.
#pragma once
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/learn/config/config.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// Stored in checkpoints.
struct TrainingData {
  double dt = 0;  ///< seconds between frames, over which the model learned changes; 0 when unknown
  std::map<std::string, std::vector<double>>
      offsets;  ///< FieldInfo::offset of inputs and targets that have one
  int dim = 0;  ///< of positions; 0 in checkpoints of earlier versions, which describe no fields
  std::vector<FieldInfo> fields;  ///< inputs and targets, without offsets
};
TrainingData training_data(const Dataset& dataset, const DataConfig& config);

std::string to_json(const TrainingData& data);
/// Throws DataError with `where` for anything else than to_json's text.
TrainingData training_data_from_json(std::string_view text, std::string_view where);

/// What an error says of data that differ.
struct OtherData {
  std::string needed, got, fix;
};
/// Another known dt of `dataset` than of `trained` (where predictions depend on time), or other offsets, with
/// both figures; nothing where they agree. `checkpoint` names what was trained.
std::optional<OtherData> find_other_data(const std::string& checkpoint, const TrainingData& trained,
                                         const Dataset& dataset, const Config& config);

}  // namespace meshgrad
