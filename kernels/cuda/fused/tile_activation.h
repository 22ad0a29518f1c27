// SPDX-License-Identifier: Apache-2.0
// The activation between two layers of a warp's tile: relu on the operand's packed pairs, and its derivative
// as one bit per value.
#pragma once
#include <meshgrad/kernels/cuda/fused/tile.h>

namespace meshgrad::cuda {

/// Rounds z to storage as the operand h of the next layer, and applies relu to the pairs: relu commutes with
/// the rounding. A NaN stays a NaN, so that a diverged run is noticed.
template <class T, int bands, int groups>
__device__ void activate(Sums<bands, groups>& z, Operand<bands, groups>& h) {
  to_operand<T>(z, h);
#pragma unroll
  for (int band = 0; band < bands; ++band)
#pragma unroll
    for (int step = 0; step < 2 * groups; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) h.v[band][step][i] = relu_pairs<T>(h.v[band][step][i]);
}

/// The derivative of relu instead of a recomputed z: mask[word][lane] in shared memory, so that a warp writes
/// and reads 32 different banks. Each lane reads only what it wrote: no barrier. The bits j and 16 + j of
/// word w belong to the halves of pair 16 w + j, in the order of Operand::v. It is the derivative at the
/// rounded z, as if z had been stored. The bit of a NaN is set, so that its gradient is not hidden.
template <int bands, int groups>
struct ReluMask {
  static constexpr int kWords = bands * groups / 2;
  static constexpr int kWarpWords = 32 * kWords;
};
/// From h = relu(z), whose halves are positive, 0, or a NaN of positive sign (relu_pairs): adding 0x7fff
/// carries into the sign bit of a half unless it is 0, and never out of it.
template <int bands, int groups>
__device__ void save_mask(const Operand<bands, groups>& h, uint32_t* mask) {
#pragma unroll
  for (int word = 0; word < ReluMask<bands, groups>::kWords; ++word) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int k = 16 * word + i;
      const uint32_t pair = h.v[k / (8 * groups)][k / 4 % (2 * groups)][k % 4];
      bits = bits >> 1 | ((pair + 0x7fff7fffu) & 0x80008000u);
    }
    mask[32 * word + lane_index()] = bits;
  }
}
/// Register i of an operand's step holds columns of accumulators 2 (i % 2) and the next of the step's column
/// tile i / 2: see the fragments of multiply_add.
template <int bands, int groups>
__device__ void apply_mask(Sums<bands, groups>& sums, const uint32_t* mask) {
#pragma unroll
  for (int word = 0; word < ReluMask<bands, groups>::kWords; ++word) {
    const uint32_t bits = mask[32 * word + lane_index()];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int k = 16 * word + i % 16;
      float(&tile)[4] = sums.v[k / (8 * groups)][2 * (k / 4 % (2 * groups)) + k % 4 / 2];
      if ((bits & (1u << i)) == 0) tile[2 * (k % 2) + i / 16] = 0.0f;
    }
  }
}

}  // namespace meshgrad::cuda
