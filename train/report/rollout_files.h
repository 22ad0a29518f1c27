// SPDX-License-Identifier: Apache-2.0
// The files of a rollout: a series for ParaView, and pictures.
#pragma once
#include <meshgrad/train/run/evaluate.h>

namespace meshgrad {

struct RolloutFilesOptions {
  std::string split = "test";
  int64_t trajectory = 0;
  int64_t steps = 0;  ///< 0: to the end of the trajectory
  std::optional<RolloutBoundary> boundary;
  std::filesystem::path directory;
  std::function<void(int64_t done, int64_t total)> progress;
};

struct RolloutFiles {
  std::filesystem::path series;                 ///< rollout.pvd
  std::vector<std::filesystem::path> pictures;  ///< prediction, truth and error, SVG
  int64_t steps = 0;
  double rmse = 0.0;  ///< over all steps, predicted nodes and components
};

/// Rolls one trajectory out and writes rollout.pvd with one VTU a frame (fields NAME, NAME_truth, NAME_error,
/// and node_type), and pictures after the first, the tenth, the middle and the last step.
RolloutFiles write_rollout(const Predictor& predictor, const RolloutFilesOptions& options);

}  // namespace meshgrad
