// SPDX-License-Identifier: Apache-2.0
// The files of a curriculum's scores.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// Curriculum::hashes in the metadata of a checkpoint.
inline constexpr const char* kScoresKey = "curriculum_scores";

/// Writes scores of the samples of a split as a safetensors file, and returns its hash.
std::string write_scores(const std::filesystem::path& path, const std::vector<float>& scores,
                         std::string_view split);
/// Reads them back. Throws DataError unless the file is there, whole, and of that hash and number of samples.
std::vector<float> read_scores(const std::filesystem::path& path, const std::string& hash, int64_t samples);

}  // namespace meshgrad
