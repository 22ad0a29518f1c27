// SPDX-License-Identifier: Apache-2.0
// How far the data that a model predicts on are from those that it was trained on.
#pragma once
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace meshgrad {

/// "0 to 3.2", with the digits that tell the two apart.
std::string range_text(const SeenRange& range);

class SeenRanges {
 public:
  /// Values [rows, components] of a field that a prediction reads.
  void add(const std::string& field, std::span<const double> values, size_t components);
  /// Its nodes and the lengths of its edges.
  void add(const MeshView& mesh);

  /// Adds a line for each component of a field that is beyond its range in training by more than a tenth of
  /// the range, and for numbers of nodes and mean lengths of edges beyond it by a factor of 1.5. One line
  /// where the checkpoint has no ranges.
  void note(const std::optional<TrainingRanges>& trained, std::set<std::string>& notes) const;

 private:
  std::map<std::string, std::vector<SeenRange>> fields_;  // by component
  std::optional<SeenRange> nodes_;
  std::optional<SeenRange> edge_length_;  // mean of a mesh
};

}  // namespace meshgrad
