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

/// Of a field on nodes. By some trajectories of the training split known: one value on each mesh (a
/// condition), or 0 but on nodes of one type other than 0, which are fewer than the rest (a load). Else by
/// its name a result: a word such as "stress", "displacement", "pressure", "velocity" or "temperature", or
/// the name u, v, w, p or T; or known: a word such as "inlet", "boundary", "applied" or "load"; with words of
/// both kinds unknown.
FieldRole role_of(const Dataset& dataset, const FieldInfo& field);

/// By its name, a value that follows from where the nodes are: DeepMind's plate has "stress".
bool follows_positions(const std::string& name);

/// Node types of the training split at which a target has to be predicted. Over time: types at which it
/// changes. Else types at which it varies and is none of the inputs.
std::vector<int64_t> types_to_predict(const Dataset& dataset, const std::vector<std::string>& inputs,
                                      const std::vector<std::string>& targets, bool over_time);

}  // namespace meshgrad
