// SPDX-License-Identifier: Apache-2.0
// What a training sample is made of: where it lies in the data, and its noise.
#pragma once
#include <cstdint>

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

/// Training noise of a sample; none in validation and prediction.
struct NoiseOptions {
  double deviation = 0.0;  ///< standard deviation, in the unit of the noisy fields
  double gamma = 1.0;      ///< share of the noise that the target corrects (MeshDynamics)
  uint64_t seed = 0;
};

}  // namespace meshgrad
