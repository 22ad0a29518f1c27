// SPDX-License-Identifier: Apache-2.0
// What an OnlineTrainer makes of a configuration and of its options.
#pragma once
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/embed/online_trainer.h>
#include <meshgrad/train/learn/config/config.h>

namespace meshgrad {

/// The settings that a run of this kind has. Throws ConfigError for keys that do not fit one.
Config online_config(Config config);

/// Without trajectories.
Dataset empty_dataset(const OnlineOptions& options, const Config& config);

/// With only the fields that the model reads, in the order of a checkpoint's description. Throws
/// InvalidArgument for a field without components, ConfigError for one that is missing.
OnlineOptions with_used_fields(OnlineOptions options, const Config& config);

}  // namespace meshgrad
