// SPDX-License-Identifier: Apache-2.0
// Fields of which less is kept than they have room for: vectors in a plane have two components where the
// third is empty, and what repeats in all frames is static; in all trajectories, or in none.
#pragma once
#include <set>
#include <string>
#include <vector>

#include <meshgrad/train/convert/sources/trajectory_source.h>

namespace meshgrad {

/// Thrown for a field that was narrowed and should not have been: a later trajectory has more in it.
struct WiderField {
  std::string name;
};

class FieldWidths {
 public:
  /// `whole` are fields that stay as they are.
  explicit FieldWidths(std::set<std::string> whole) : whole_(std::move(whole)) {}

  /// Narrows the fields of a trajectory as those of the first were. A field that repeats becomes static only
  /// beside another that changes, and positions that repeat go. Throws WiderField.
  void narrow(RawTrajectory& trajectory);
  /// One line for each field that was narrowed over time, with `place`.
  std::vector<std::string> notes(const std::string& place) const;

 private:
  std::set<std::string> whole_, flat_, still_;
  bool first_ = true;
};

}  // namespace meshgrad
