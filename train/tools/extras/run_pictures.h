// SPDX-License-Identifier: Apache-2.0
// Predictions of a trained model as pictures in memory, for a report.
#pragma once
#include <meshgrad/train/embed/predictor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace meshgrad {

struct RunPicture {
  std::string caption;  ///< "velocity, step 10 of a rollout"
  std::string svg;      ///< prediction, truth and error (draw_comparison)
};

/// At most `count` pictures of the first target field: of evenly spaced steps of a rollout of the split's
/// first trajectory, the first and the last included; of steady fields, of the split's first meshes. Throws
/// ConfigError for an unknown split, and for one without anything to predict.
std::vector<RunPicture> draw_predictions(const Predictor& predictor, const std::string& split, int64_t count);

}  // namespace meshgrad
