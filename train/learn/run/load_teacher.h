// SPDX-License-Identifier: Apache-2.0
// From distill.teacher to a Teacher, and trained models of this run's task in general.
#pragma once
#include <meshgrad/train/learn/task/task.h>

#include <cstdint>
#include <filesystem>
#include <memory>

namespace meshgrad {

/// A trained model with its normalisers; `hash` names its checkpoint.
struct TaskModel {
  Model model;
  ModelSizes sizes;
  Normalizers normalizers;
  std::string hash;
};

/// Where the weights of a loaded model are: in the runtime's memory, in host memory that a GPU copies from,
/// or in none, after they were checked.
enum class WeightsIn : uint8_t { device, host, none };

/// The model that the value of `key` names, in config.precision, without gradients. Throws ConfigError for
/// that key where there is no such checkpoint, and for a model of another task, of other fields, or of data
/// with another dt or other offsets; DataError for a damaged checkpoint, and for one with other numbers of
/// inputs, identifiers or classes.
TaskModel load_model_of_task(Runtime& runtime, const Config& config, const Task& task, const char* key,
                             const std::string& value, WeightsIn in = WeightsIn::device);

/// The teacher of this task, with distill.cache without memory for its model (open_teacher_cache); null where
/// distill.teacher is empty. Throws what load_model_of_task throws.
std::shared_ptr<const Teacher> load_teacher(Runtime& runtime, const Config& config, const Task& task);

/// make_task, with this teacher.
Task make_taught_task(Runtime& runtime, const Config& config, const Dataset& dataset);

/// Throws ConfigError unless a run that resumes from `checkpoint` has the teacher that it had.
void check_same_teacher(const std::filesystem::path& checkpoint, const Task& task);

}  // namespace meshgrad
