// SPDX-License-Identifier: Apache-2.0
// train.init: a new run that starts from the weights of another, also on other data.
#pragma once
#include <meshgrad/train/learn/task/task.h>

#include <string>

namespace meshgrad {

/// Whether the run keeps the normalisers of its train.init.
bool keeps_normalizers(const Config& config);

/// Whether normalisers are accumulated during training.
bool learns_normalizers(const Config& config);

/// Loads the weights of train.init, and its normalisers unless they are fitted again; returns a line about
/// it. Throws ConfigError when there is no such file, or its normalisers are of data with another dt or other
/// offsets; DataError naming the file, the parameter and both shapes when it is of another model.
std::string load_initial_weights(const Config& config, const Task& task, const Stream& stream,
                                 const ParameterSet& parameters, Normalizers& normalizers);

}  // namespace meshgrad
