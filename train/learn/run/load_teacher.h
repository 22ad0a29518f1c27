// SPDX-License-Identifier: Apache-2.0
// From distill.teacher to a Teacher.
#pragma once
#include <meshgrad/train/learn/task/task.h>

#include <filesystem>
#include <memory>

namespace meshgrad {

/// The teacher of this task in config.precision on the runtime's device, with distill.cache without memory
/// for its model (open_teacher_cache); null where distill.teacher is empty. Throws ConfigError where there is
/// no such checkpoint, and for a model of another task, of other fields, or of data with another dt or other
/// offsets; DataError for a damaged checkpoint, and for one with other numbers of inputs, identifiers or
/// classes.
std::shared_ptr<const Teacher> load_teacher(Runtime& runtime, const Config& config, const Task& task);

/// make_task, with this teacher.
Task make_taught_task(Runtime& runtime, const Config& config, const Dataset& dataset);

/// Throws ConfigError unless a run that resumes from `checkpoint` has the teacher that it had.
void check_same_teacher(const std::filesystem::path& checkpoint, const Task& task);

}  // namespace meshgrad
