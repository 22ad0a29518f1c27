// SPDX-License-Identifier: Apache-2.0
// Which values dropout keeps. A pure function of (seed, op, step, key of the row, column), by Philox: it does
// not depend on the device, on recomputation, on capacities or on what else is in the batch, and forward and
// backward ask it again instead of saving a mask. Srivastava et al., "Dropout: a simple way to prevent neural
// networks from overfitting" (2014). Host and device call the same functions.
#pragma once
#include <meshgrad/engine/random.h>
#include <meshgrad/kernels/dropout_key.h>

#include <algorithm>

namespace meshgrad {

/// A DropoutKey as kernels take it.
struct DropoutMask {
  uint64_t seed = 0;
  const int64_t *step = nullptr, *row_keys = nullptr;  // or null
  uint32_t op = 0;
  uint32_t dropped_below = 0;  // a value is dropped when its 32 random bits are below this
  double scale = 1.0;          // of kept values

  constexpr bool drops() const { return dropped_below != 0; }
  /// Read once by each thread: it loads the step.
  constexpr RandomKey key() const {
    return {mixed_bits(mixed_bits(seed) ^ (step != nullptr ? static_cast<uint64_t>(*step) : 0))};
  }
  constexpr uint64_t row_key(int64_t row) const {
    return static_cast<uint64_t>(row_keys != nullptr ? row_keys[row] : row);
  }
  /// Bit i: whether column 4 block + i is kept. One Philox call.
  constexpr uint32_t keep_four(RandomKey key, uint64_t row_key, int64_t block) const {
    const auto bits = philox(key, {static_cast<uint32_t>(row_key), static_cast<uint32_t>(row_key >> 32),
                                   static_cast<uint32_t>(block), op});
    uint32_t kept = 0;
    for (uint32_t i = 0; i < 4; ++i) kept |= (bits[i] >= dropped_below ? 1u : 0u) << i;
    return kept;
  }
};

inline DropoutMask mask_of(const DropoutKey& key) {
  return {.seed = key.seed,
          .step = key.step.data_or_null<int64_t>(),
          .row_keys = key.row_keys.data_or_null<int64_t>(),
          .op = key.op,
          .dropped_below = static_cast<uint32_t>(std::min(key.rate * 0x1p32, 0x1p32 - 1.0)),
          .scale = 1.0 / (1.0 - key.rate)};
}

/// Whether the value in this row and column is kept; columns are below 2^34.
constexpr bool keep(const DropoutMask& mask, int64_t row, int64_t column) {
  return (mask.keep_four(mask.key(), mask.row_key(row), column / 4) >> (column % 4) & 1u) != 0;
}

}  // namespace meshgrad
