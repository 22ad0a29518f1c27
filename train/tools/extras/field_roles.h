// SPDX-License-Identifier: Apache-2.0
// Which fields of data without time are known before the solution, and where a solution has to be predicted:
// as the data and names tell it.
#pragma once
#include <meshgrad/train/data/dataset.h>

#include <string>
#include <vector>

namespace meshgrad {

struct FieldRole {
  enum class Kind { known, result, unknown };
  Kind kind = Kind::unknown;
  std::string why;  ///< for people; empty for an unknown one
};

/// Of a field on nodes, by some trajectories of the training split. Known: one value on each mesh (a
/// condition), 0 but on nodes of one type (a load or boundary values), or a name such as "inlet_velocity" or
/// "source". A result: a name such as "stress", "displacement", "u", "pressure", "velocity" or "temperature".
FieldRole role_of(const Dataset& dataset, const FieldInfo& field);

/// Node types of the training split at which a target has to be predicted. Over time: types at which it
/// changes. Else types at which it varies and is none of the inputs.
std::vector<int64_t> types_to_predict(const Dataset& dataset, const std::vector<std::string>& inputs,
                                      const std::vector<std::string>& targets, bool over_time);

}  // namespace meshgrad
