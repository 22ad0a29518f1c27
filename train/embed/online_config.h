// SPDX-License-Identifier: Apache-2.0
// What an OnlineTrainer makes of a configuration and of its options.
#pragma once
#include <meshgrad/nn/normalizer.h>
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/embed/online_trainer.h>
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/learn/task/field_selection.h>
#include <meshgrad/train/learn/task/sample.h>

#include <string>
#include <vector>

namespace meshgrad {

/// Throws ConfigError for inputs that programs have no way to give: of meshes in memory there are fields on
/// nodes and on whole meshes, and positions.
Config checked_for_given_meshes(Config config);

/// The settings that a run of this kind has. Throws ConfigError for keys that do not fit one.
Config online_config(Config config);

/// Without trajectories.
Dataset empty_dataset(const OnlineOptions& options, const Config& config);

/// With only the fields that the model reads, in the order of a checkpoint's description. Throws
/// InvalidArgument for a field without components, ConfigError for one that is missing.
OnlineOptions with_used_fields(OnlineOptions options, const Config& config);

/// As scale_warnings, a line for each input and target whose values, learned so far, vary by less than what a
/// Normalizer takes for a constant; without numbers, so that a line is the same each time.
std::vector<std::string> learned_scale_warnings(const FieldSelection& fields, const Normalizers& learned);

/// Likewise a line for each target whose change, learned so far with this noise, has a standard deviation
/// that the noise is not within 0.01 to 1 times of.
std::vector<std::string> learned_noise_warnings(const FieldSelection& fields, const Normalizers& learned,
                                                const NoiseOptions& noise);

}  // namespace meshgrad
