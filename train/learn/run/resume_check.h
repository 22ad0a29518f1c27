// SPDX-License-Identifier: Apache-2.0
// Which checkpoint a run resumes from, and what may not change between its parts.
#pragma once
#include <meshgrad/train/learn/config/config.h>

#include <filesystem>
#include <string>
#include <vector>

namespace meshgrad {

/// `file` (best, last or a path) if given, else checkpoints/last.safetensors. Where that is damaged or
/// missing: DataError that names the newest intact checkpoint and how to resume from it, by the words of
/// `command`. ConfigError when the folder has no checkpoint.
std::filesystem::path checkpoint_to_resume(const std::filesystem::path& run,
                                           const std::filesystem::path& file,
                                           const std::vector<std::string>& command);

/// Throws ConfigError naming the first key whose value in `config` would make another run of the one that
/// `checkpoint` is of.
void check_same_run(const std::filesystem::path& checkpoint, const Config& config);

}  // namespace meshgrad
