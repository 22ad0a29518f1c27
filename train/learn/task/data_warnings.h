// SPDX-License-Identifier: Apache-2.0
// What is doubtful about the data of a task on meshes: nothing that stops a run.
#pragma once
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/learn/task/sample.h>

#include <string>
#include <vector>

namespace meshgrad {

/// All lines: what was found when the data were converted, noise_warnings, scale_warnings, and a validation
/// split that changes too little to tell models apart (quiet_split).
std::vector<TaskWarning> data_warnings(const Dataset& dataset, const Config& config);

/// A line for each target over time whose change has a standard deviation that `train.noise` is not
/// within 0.01 to 1 times of. Without noise there is none.
std::vector<std::string> noise_warnings(const Dataset& dataset, const Config& config);

/// A line for the distances, each input and each target that vary, but by less than what a Normalizer takes
/// for a constant: they would reach the model almost as zeros.
std::vector<std::string> scale_warnings(const Dataset& dataset, const Config& config);

}  // namespace meshgrad
