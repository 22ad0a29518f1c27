// SPDX-License-Identifier: Apache-2.0
// What may not change between the parts of a run.
#pragma once
#include <meshgrad/train/config/config.h>

#include <filesystem>

namespace meshgrad {

/// Throws ConfigError naming the first key whose value in `config` would make another run of the one that
/// `checkpoint` is of.
void check_same_run(const std::filesystem::path& checkpoint, const Config& config);

}  // namespace meshgrad
