// SPDX-License-Identifier: Apache-2.0
// From distill.teacher to a Teacher, and trained models of this run's task in general.
#pragma once
#include <meshgrad/train/learn/task/task.h>

#include <filesystem>
#include <memory>

namespace meshgrad {

/// A trained model with its normalisers; `hash` names its checkpoint.
struct TaskModel {
  Model model;
  Normalizers normalizers;
  std::string hash;
};

/// The model that the value of `key` names, in config.precision on the runtime's device. Throws ConfigError
/// for that key where there is no such checkpoint, and for a model of another task, of other fields, or of
/// data with another dt or other offsets; DataError for a damaged checkpoint, and for one with other numbers
/// of inputs, identifiers or classes.
TaskModel load_model_of_task(Runtime& runtime, const Config& config, const Task& task, const char* key,
                             const std::string& value);

/// The teacher of this task in config.precision on the runtime's device; null where distill.teacher is empty.
/// Throws what load_model_of_task throws.
std::shared_ptr<const Teacher> load_teacher(Runtime& runtime, const Config& config, const Task& task);

/// make_task, with this teacher.
Task make_taught_task(Runtime& runtime, const Config& config, const Dataset& dataset);

/// Throws ConfigError unless a run that resumes from `checkpoint` has the teacher that it had.
void check_same_teacher(const std::filesystem::path& checkpoint, const Task& task);

}  // namespace meshgrad
