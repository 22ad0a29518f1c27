// SPDX-License-Identifier: Apache-2.0
// The baseline of steady fields that asks for no learning: the solution of the most similar training case.
#pragma once
#include <meshgrad/train/learn/task/mesh_task.h>

#include <vector>

namespace meshgrad {

/// Cases are alike by what the model reads, over their nodes: mean and standard deviation of each input
/// column (conditions of a mesh, shares of node types), and by their extents; each in standard deviations
/// over the cases. At most kMostCases of the training split are read, evenly spread.
class NearestCase {
 public:
  static constexpr int64_t kMostCases = 1000;

  /// Of a task without time, which outlives it.
  explicit NearestCase(const MeshTask& task);
  /// [nodes, outputs]: at each node the targets of the nearest case's node that is nearest by position, where
  /// both lie alike. A case is not its own nearest. Empty without positions, and without another case.
  std::vector<float> values(const TrajectoryView& mesh, int64_t t) const;

 private:
  struct Case {
    int64_t trajectory = 0, frame = 0;
    uint64_t id = 0;
    std::vector<double> numbers;
  };
  std::vector<double> numbers_of(const TrajectoryView& mesh, int64_t t) const;

  const MeshTask& task_;
  std::vector<Case> cases_;
  std::vector<double> units_;  // of the numbers
};

}  // namespace meshgrad
