// SPDX-License-Identifier: Apache-2.0
// What a task says of itself to reports, `plan`, `init` and `check`.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// Columns of a model's input or output that belong together.
struct ColumnGroup {
  std::string name;
  int64_t width = 0;
};

struct TaskDescription {
  std::string sample;  ///< what one takes of the data: "3 frames in a row"
  bool over_time =
      false;  ///< predictions lead from a frame to the next, so that the time between them matters
  std::vector<ColumnGroup> node_inputs, edge_inputs, outputs;
};

/// What is doubtful about a configuration and its data for the task, but stops no run.
struct TaskWarning {
  std::string_view key;  ///< the key that is concerned, or "scale"
  std::string text;
};

}  // namespace meshgrad
