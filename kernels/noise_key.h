// SPDX-License-Identifier: Apache-2.0
// What latent values are sampled by: latent_noise.h has the noise as a function of it.
#pragma once
#include <meshgrad/engine/tensor.h>

#pragma GCC visibility push(default)
namespace meshgrad {

struct NoiseKey {
  uint64_t seed = 0;
  uint32_t op = 0;    ///< numbers the samplings of a model
  bool draws = true;  ///< false: there is no noise
  /// i64 [rows]: as DropoutKey has it. Undefined: the row's index.
  Tensor row_keys = {};
};

}  // namespace meshgrad
#pragma GCC visibility pop
