// SPDX-License-Identifier: Apache-2.0
// Standard normal noise of latent values: a pure function of (seed, op, key of the row, column), by Philox
// and the Box-Muller transform. As with dropout, forward and backward ask it again instead of saving it. Host
// and device draw the same bits by these functions.
#pragma once
#include <meshgrad/engine/random.h>
#include <meshgrad/kernels/noise_key.h>

namespace meshgrad {

/// A NoiseKey as kernels take it.
struct LatentNoise {
  RandomKey key;
  uint32_t op = 0;
  const int64_t* row_keys = nullptr;  // or null
  bool draws = true;                  // false: all noise is 0

  constexpr uint64_t row_key(int64_t row) const {
    return static_cast<uint64_t>(row_keys != nullptr ? row_keys[row] : row);
  }
  /// 64 random bits for a pair of columns, 2 pair and the next: of its radius, then of its angle.
  constexpr std::array<uint32_t, 2> bits(uint64_t row_key, int64_t pair) const {
    const auto four = philox(key, {static_cast<uint32_t>(row_key), static_cast<uint32_t>(row_key >> 32),
                                   static_cast<uint32_t>(pair / 2), op});
    return pair % 2 == 0 ? std::array<uint32_t, 2>{four[0], four[1]}
                         : std::array<uint32_t, 2>{four[2], four[3]};
  }
};

inline LatentNoise latent_noise(const NoiseKey& key) {
  constexpr uint64_t kNotDropout = 0x6c6174656e74;  // dropout draws by the same rows
  return {.key = {mixed_bits(mixed_bits(key.seed) ^ kNotDropout)},
          .op = key.op,
          .row_keys = key.row_keys.data_or_null<int64_t>(),
          .draws = key.draws};
}

}  // namespace meshgrad
