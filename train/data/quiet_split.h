// SPDX-License-Identifier: Apache-2.0
// Whether a split changes so little over time that errors on it say nothing about a model.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <meshgrad/train/data/dataset.h>

namespace meshgrad {

/// A split is quiet when its fields change this many times less from frame to frame than in training.
/// Predicting that nothing changes has then a tenth of the error it has in training, and a model that was
/// trained for the larger changes looks bad beside it, however well it was trained.
constexpr double kQuietSplitRatio = 10.0;

/// The root mean square of one frame's change x[t + 1] - x[t] of a field: the error of predicting that
/// nothing changes.
struct SplitChange {
  std::string field;
  double split = 0;     ///< in the split, over a sample of its frames
  double training = 0;  ///< in the split that the statistics were taken from

  double ratio() const { return training / split; }  ///< infinite when nothing changes
};

/// The field of `fields` with the largest ratio, if that is at least kQuietSplitRatio, over nodes of `types`.
/// Reads at most 16 trajectories of the split, evenly spread, and 16 pairs of frames of each. Nothing for
/// fields that are not f32 over frames on nodes, and for a split without a pair of frames. Throws ConfigError
/// for an unknown split or field.
std::optional<SplitChange> quiet_split(const Dataset& dataset, std::string_view split,
                                       const std::vector<std::string>& fields, const NodeTypeSet& types);

/// One line for a log: what quiet_split found, and what follows from it.
std::string quiet_split_warning(std::string_view split, const SplitChange& change);

}  // namespace meshgrad
