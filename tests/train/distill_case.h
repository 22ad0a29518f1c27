// SPDX-License-Identifier: Apache-2.0
// Teachers and their students, of each task that has them.
#pragma once
#include "train/graph_case.h"
#include "train/small_run.h"
#include "train/steady_case.h"

namespace meshgrad::test {

inline constexpr TaskName kTasksOfStudents[] = {TaskName::mesh_dynamics, TaskName::steady_field,
                                                TaskName::node_classification,
                                                TaskName::graph_classification};

inline std::filesystem::path last_checkpoint_of(const Config& config) {
  return std::filesystem::path(config.run.dir) / "checkpoints" / "last.safetensors";
}

inline Config config_of(const std::filesystem::path& folder, TaskName task, int graphs = 30) {
  Config config = task == TaskName::steady_field    ? steady_config(folder)
                  : task == TaskName::mesh_dynamics ? small_config(folder, pack_waves(folder))
                  : task == TaskName::node_classification
                      ? class_config(folder, pack_rings(folder))
                      : graph_config(folder, pack_graphs(folder, small_graphs(graphs)), task);
  config.task.name = task;
  config.train.steps = 6;
  config.train.accumulate = 1;
  config.train.validate_every = 3;
  config.train.checkpoint_every = 0;
  config.train.log_every = 1;
  return config;
}

/// A trained teacher in FOLDER/teacher, wider than its student, whose configuration is returned. `noise`: of
/// both, where the task has any.
inline Config taught_config(const std::filesystem::path& folder, TaskName task, bool noise = true) {
  Config student = config_of(folder, task);
  if (!noise) student.train.noise = 0.0;
  Config teacher = student;
  teacher.run.dir = (folder / "teacher").string();
  teacher.run.seed = 11;
  teacher.model.width *= 2;
  train_here(teacher);
  student.distill.teacher = teacher.run.dir;
  return student;
}

}  // namespace meshgrad::test
