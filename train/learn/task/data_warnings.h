// SPDX-License-Identifier: Apache-2.0
// What is doubtful about the data of a task on meshes: nothing that stops a run.
#pragma once
#include <meshgrad/nn/normalizer.h>
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/learn/task/field_selection.h>
#include <meshgrad/train/learn/task/task_text.h>

#include <string>
#include <vector>

namespace meshgrad {

/// Under "data.path", what was found when the data were converted. Under "train.noise", each target over time
/// whose change has a standard deviation that the noise is not within 0.01 to 1 times of. Under "scale", the
/// distances, inputs and targets that vary, but by less than what a Normalizer takes for a constant: they
/// would reach the model almost as zeros. Under "data.valid_split", a split that changes too little to tell
/// models apart (quiet_split).
std::vector<TaskWarning> data_warnings(const Dataset& dataset, const FieldSelection& fields,
                                       const Config& config);

/// As "scale", of inputs and targets whose values OnlineTrainer has learned so far; without numbers, so that
/// a line is the same each time.
std::vector<std::string> learned_scale_warnings(const FieldSelection& fields, const Normalizers& learned);

}  // namespace meshgrad
