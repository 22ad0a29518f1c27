// SPDX-License-Identifier: Apache-2.0
// A dropout of a model: dropout.h has the function of it that says which values are kept.
#pragma once
#include <meshgrad/engine/tensor.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Kept values are divided by 1 - rate, so that the mean stays.
struct DropoutKey {
  uint64_t seed = 0;
  uint32_t op = 0;    ///< numbers the dropouts of a model
  double rate = 0.0;  ///< chance that a value is dropped, in [0, 1); 0: all are kept, and nothing is drawn
  /// i64 [1], in device memory, so that a captured step replays with new masks. Undefined: 0.
  Tensor step = {};
  /// i64 [rows]: a key for each row, such as a hash of (sample, visit, node in graph): the mask of a graph
  /// then does not depend on which graphs share its batch. Undefined: the row's index.
  Tensor row_keys = {};
};

}  // namespace meshgrad
#pragma GCC visibility pop
