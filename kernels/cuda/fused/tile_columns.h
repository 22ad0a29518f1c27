// SPDX-License-Identifier: Apache-2.0
// Sums over the rows of a warp's tile: by shuffles, or through shared memory.
#pragma once
#include <meshgrad/kernels/cuda/fused/tile.h>

namespace meshgrad::cuda {

/// Sums a group's 32 columns over the warp and adds them to `total` (the warp's own, in shared memory).
/// `mine` has the lane's eight columns summed over its own rows; the eight lanes of equal q share those
/// columns. Recursive halving: at distances of 16, 8 and 4 lanes a lane keeps half of its columns and sends
/// the half that its partner keeps, 4 + 2 + 1 = 7 shuffles instead of 8 x 3. In the end lane 4 r + q has the
/// sum of column 8 q + r, and the 32 lanes add to 32 different banks.
__device__ inline void add_column_sums(const EightFloats& mine, float* total) {
  const int row = lane_index() / 4;
  float four[4], two[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool upper = (row & 4) != 0;
    const float sent = upper ? mine.v[i] : mine.v[i + 4];
    four[i] = (upper ? mine.v[i + 4] : mine.v[i]) + __shfl_xor_sync(0xffffffffu, sent, 16);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool upper = (row & 2) != 0;
    const float sent = upper ? four[i] : four[i + 2];
    two[i] = (upper ? four[i + 2] : four[i]) + __shfl_xor_sync(0xffffffffu, sent, 8);
  }
  const bool upper = (row & 1) != 0;
  const float sent = upper ? two[0] : two[1];
  const float sum = (upper ? two[1] : two[0]) + __shfl_xor_sync(0xffffffffu, sent, 4);
  total[lane_column() + row] += sum;
}
/// The lane's columns of a group, summed over its own rows.
template <int bands, int groups>
__device__ EightFloats own_column_sums(Sums<bands, groups>& sums, int group) {
  EightFloats mine{};
#pragma unroll
  for (int band = 0; band < bands; ++band)
#pragma unroll
    for (int i = 0; i < 8; ++i) mine.v[i] += sums.at(band, 0, group, i) + sums.at(band, 1, group, i);
  return mine;
}
template <int bands, int groups>
__device__ void add_column_sums(Sums<bands, groups>& sums, float* total) {
#pragma unroll
  for (int group = 0; group < groups; ++group)
    add_column_sums(own_column_sums(sums, group), total + 32 * group);
}

struct alignas(8) TwoFloats {
  float a, b;
};
/// Eight rows of up to W floats in a warp's own shared memory: in a tile, eight neighbouring rows are in
/// eight different lanes (lane / 4), while an ordered sum needs all rows of a column in one lane. Two floats
/// of padding: writing, lanes 4 r + q of a half-warp store 8 bytes at bank 2 r + 8 q + i (mod 32), 16
/// different pairs of banks; reading, a warp takes 256 contiguous bytes of one row. Neither conflicts, and
/// rows stay 8-byte aligned.
template <int W>
struct StagedRows {
  static constexpr int kRow = W + 2;
  static constexpr int kFloats = 8 * kRow;
  float* v;
  /// A group's columns of the lane's row, as columns `at` to at + 31.
  __device__ void put(const EightFloats& mine, int at) {
    float* to = v + kRow * (lane_index() / 4) + lane_column() + at;
#pragma unroll
    for (int i = 0; i < 8; i += 2) *reinterpret_cast<TwoFloats*>(to + i) = {mine.v[i], mine.v[i + 1]};
  }
  __device__ TwoFloats get(int row, int column) const {
    return *reinterpret_cast<const TwoFloats*>(v + kRow * row + column);
  }
  /// Adds the sums of columns 64 run + 2 lane and the next to `total` + to_next run, which are the lane's
  /// own. The order, and so the bits, are those of add_column_sums, which takes twice as many instructions.
  template <int runs>
  __device__ void add_columns(float* total, int to_next) const {
    __syncwarp();  // other lanes' columns are there
#pragma unroll
    for (int run = 0; run < runs; ++run) {
      const int column = 64 * run + 2 * lane_index();
      TwoFloats sum[2];  // of the even rows, of the odd ones
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const TwoFloats a = get(odd, column), b = get(odd + 4, column);
        const TwoFloats c = get(odd + 2, column), d = get(odd + 6, column);
        sum[odd] = {(a.a + b.a) + (c.a + d.a), (a.b + b.b) + (c.b + d.b)};
      }
      auto* const to = reinterpret_cast<TwoFloats*>(total + to_next * run);
      const TwoFloats before = *to;
      *to = {before.a + (sum[0].a + sum[1].a), before.b + (sum[0].b + sum[1].b)};
    }
    __syncwarp();  // and read, before they are overwritten
  }
};

}  // namespace meshgrad::cuda
