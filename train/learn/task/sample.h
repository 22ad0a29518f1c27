// SPDX-License-Identifier: Apache-2.0
// What a training sample is made of: where it lies in the data, and its noise; and what a task says of
// samples and itself to reports, `plan`, `init` and `check`.
#pragma once
#include <meshgrad/train/learn/config/config.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// One sample: a frame of a trajectory; of data without time, its mesh.
struct Sample {
  int64_t trajectory = 0;  ///< within the split
  int64_t frame = 0;
  uint32_t visit = 0;  ///< how often it was drawn before
  bool operator==(const Sample&) const = default;
};

/// Frames [first, end) of a trajectory at which samples start.
struct FrameRange {
  int64_t first = 0;
  int64_t end = 0;
  int64_t size() const { return end - first; }
};

/// The samples of a split in order: of its first trajectory, then of the next ones.
struct SplitSamples {
  int64_t first_frame = 0;            ///< of each trajectory's samples
  std::vector<int64_t> starts = {0};  ///< by trajectory, and the total

  int64_t size() const { return starts.back(); }
  void add(int64_t samples) { starts.push_back(size() + samples); }
  int64_t in_trajectory(int64_t i) const {
    return starts[static_cast<size_t>(i) + 1] - starts[static_cast<size_t>(i)];
  }
  Sample at(int64_t i) const;
};

/// Training noise of a sample; none in validation and prediction.
struct NoiseOptions {
  double deviation = 0.0;  ///< standard deviation, in the unit of the noisy fields
  double gamma = 1.0;      ///< share of the noise that the target corrects (MeshDynamics)
  uint64_t seed = 0;
  std::vector<FieldNumber> fields = {};  ///< unless empty: deviations of these fields alone
  double scale = 1.0;                    ///< of all deviations, while the noise rises

  bool any() const { return deviation > 0.0 || !fields.empty(); }
  double of(std::string_view field) const {
    if (fields.empty()) return scale * deviation;
    for (const FieldNumber& number : fields)
      if (number.field == field) return scale * number.value;
    return 0.0;
  }
};

/// The noise of training samples.
NoiseOptions noise_of(const Config& config);

/// Columns of a model's input or output that belong together.
struct ColumnGroup {
  std::string name;
  int64_t width = 0;
};

struct TaskDescription {
  std::string sample;  ///< what one takes of the data: "3 frames in a row"
  /// Predictions lead from a frame to the next, so that the time between them matters.
  bool over_time = false;
  std::vector<ColumnGroup> node_inputs, edge_inputs, outputs;
};

/// What is doubtful about a configuration and its data for the task, but stops no run.
struct TaskWarning {
  std::string_view key;  ///< the key that is concerned, or "scale"
  std::string text;
};

}  // namespace meshgrad
