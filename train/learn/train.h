// SPDX-License-Identifier: Apache-2.0
// train(): a whole run from a configuration, as `meshgrad train` starts it.
#pragma once
#include <meshgrad/train/learn/run/train_options.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Trains as `config` says and writes the run directory: config.resolved.toml, environment.json,
/// metrics.jsonl, tb/, checkpoints/, and memory/ where memory.history is on. Results depend on the
/// configuration and the data, not on threads or on being resumed. Throws ConfigError, DataError, OutOfMemory
/// with advice (the last checkpoint stays), and DataError when the loss is no longer finite.
TrainResult train(Runtime& runtime, const Config& config, const TrainOptions& options);

}  // namespace meshgrad
#pragma GCC visibility pop
