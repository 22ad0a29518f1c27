// SPDX-License-Identifier: Apache-2.0
// The metadata of a checkpoint: its counters and its checksum, which are checked when it is read.
#pragma once
#include <meshgrad/train/data/safetensors.h>
#include <meshgrad/train/learn/run/checkpoint.h>

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace meshgrad {

/// What a checkpoint may hold beside the run's own state. Readers of checkpoints do not look at it.
struct CheckpointExtra {
  std::vector<SafetensorsTensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// XXH3 of names, dtypes, shapes and bytes of all tensors and of the metadata but "checksum" itself, as 16
/// hexadecimal digits. Independent of the order of the tensors.
std::string checkpoint_checksum(std::span<const SafetensorsTensor> tensors,
                                const std::map<std::string, std::string>& metadata);

/// Opens a checkpoint. Throws DataError when the file is none, or differs from what was written. Version 1 of
/// the format may lack the checksum.
SafetensorsFile open_checkpoint(const std::filesystem::path& path);

/// The counters of a run with this configuration, for the metadata.
std::map<std::string, std::string> metadata_of_state(const RunState& state, const Config& config);

/// The counters in the metadata. Throws DataError naming the first that no run could have written, given the
/// configuration in the same file.
RunState read_run_state(const SafetensorsView& view, const Config& config);
uint64_t read_data_fingerprint(const SafetensorsView& view);

}  // namespace meshgrad
