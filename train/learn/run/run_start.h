// SPDX-License-Identifier: Apache-2.0
// Where a run starts: at a checkpoint of its own, when it resumes, or with the weights of another run
// (train.init), also on other data.
#pragma once
#include <meshgrad/train/learn/task/task.h>

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

/// The file that the value of a key names: a checkpoint, or that of a run's folder. Throws ConfigError where
/// there is none.
std::filesystem::path checkpoint_named(const char* key, const std::string& value);

/// What a run's normalisers are before it learns or loads others.
Normalizers first_normalizers(const Config& config, const Task& task);

/// Loads the weights of train.init, and its normalisers unless they are fitted again; returns a line about
/// it. Throws ConfigError when there is no such file, or its normalisers are of data with another dt or other
/// offsets; DataError naming the file, the parameter and both shapes when it is of another model.
std::string load_initial_weights(const Config& config, const Task& task, const Stream& stream,
                                 const ParameterSet& parameters, Normalizers& normalizers);

}  // namespace meshgrad
