// SPDX-License-Identifier: Apache-2.0
// What a configuration makes of its data, and what is doubtful about the two together.
#pragma once
#include <meshgrad/train/convert/data_check.h>
#include <meshgrad/train/learn/task/sample.h>
#include <meshgrad/train/tools/extras/reach.h>
#include <meshgrad/train/tools/program/memory_plan.h>

#include <optional>
#include <string>
#include <vector>

namespace meshgrad {

struct ConfigSummary {
  TaskDescription columns;
  int64_t train_samples = 0, valid_samples = 0;
  std::optional<MemoryPlan> memory;  ///< absent where the device's memory is not known
  std::optional<MeshReach> reach;    ///< of tasks on meshes
  /// Of the training split's nodes, those that are predicted; of tasks on meshes.
  std::optional<double> predicted_share;
  std::vector<Finding> findings;  ///< errors first
};

/// Throws ConfigError for fields, splits and node types that do not fit the data. Finds training splits
/// without a sample and trajectories that have none, too few trajectories to validate on, predicted node
/// types that the data lacks, inputs that messages do not carry to all nodes (reach.h), targets that vary
/// where they are not predicted, noise and scales that are unusual, and steps that do not fit in memory. The
/// data set is the one that `config` names.
ConfigSummary check_config(const Config& config, const Dataset& dataset);

}  // namespace meshgrad
