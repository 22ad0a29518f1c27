// SPDX-License-Identifier: Apache-2.0
// From a configuration to a model: the one place in train/ that knows which models there are.
#pragma once
#include <meshgrad/train/learn/config/config.h>

namespace meshgrad {

/// The model of a configuration for these sizes; not yet allocated. Throws InvalidArgument for sizes below 1.
Model make_model(const ModelConfig& config, const ModelSizes& sizes);

/// The same on the runtime's device in config.precision, with initial weights from run.seed.
Model make_model(Runtime& runtime, const Config& config, const ModelSizes& sizes);

}  // namespace meshgrad
