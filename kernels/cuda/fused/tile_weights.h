// SPDX-License-Identifier: Apache-2.0
// Weights of fused kernels in shared memory, and the products of a warp's tile with them.
//
// A matrix [rows, columns] is padded to whole groups of 32 and lies there with rows and columns permuted as
// tile.h says, its 16-byte chunks swizzled so that eight neighbouring rows never meet in a bank. One copy
// serves both directions: x W reads its 8x8 pieces transposed, d_z W^T as they are.
#pragma once
#include <meshgrad/kernels/cuda/fused/tile.h>

namespace meshgrad::cuda {

template <class T>
struct WeightMatrix {
  const T* data;
  int rows, columns;
};

/// Where a column (or row) of a weight goes.
__device__ inline int position_of(int column) {
  return (column & ~31) + 8 * (column / 2 % 4) + 2 * (column / 8 % 4) + column % 2;
}

/// The swizzle of a row of C values: its chunk c lies at c ^ swizzle, which is below 8.
template <int C>
__device__ int swizzle(int row) {
  if constexpr (C == 32) {
    return row >> 1 & 3;
  } else {
    return row & 7;
  }
}
/// Words before chunk `even` + `odd` of a row: written so that rows of many chunks share few addresses.
__device__ inline int chunk_words(int even, int odd, int row_swizzle) {
  return 4 * ((even % 8) ^ (odd ^ row_swizzle)) + 4 * (even / 8 * 8);
}

/// Eight values of a row, as four pairs; zeros behind the matrix, which only a narrow one has.
template <bool narrow, class T>
__device__ Vector<uint32_t> read_weight(const WeightMatrix<T>& matrix, int row, int column) {
  if constexpr (narrow) {
    if (row >= matrix.rows || column >= matrix.columns) return {};
    if (matrix.columns % 8 != 0) return load_narrow_pairs(matrix.data, matrix.columns, row, column);
  }
  return load_pairs(matrix.data, matrix.columns, row, column);
}
/// Puts them into a matrix of padded row width C.
template <int C>
__device__ void place_weight(uint32_t* shared, int row, int column, const Vector<uint32_t>& words) {
  const int to = position_of(row);
  const int chunk = position_of(column) / 8 ^ swizzle<C>(to);
  uint32_t* first = shared + C / 2 * to + column / 8 % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) first[4 * (chunk ^ i)] = words.v[i];
}

/// sums += a W for 32 rows of W, `rows`, which face group `group` of a.
template <class T, int bands, int in_groups, int out_groups>
__device__ void multiply_slice(Sums<bands, out_groups>& sums, const Operand<bands, in_groups>& a, int group,
                               const uint32_t* rows) {
  constexpr int kColumns = 32 * out_groups;
  const int lane = lane_index();
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const int row = 16 * step + lane % 16;
#pragma unroll
    for (int pair = 0; pair < 2 * out_groups; ++pair) {
      uint32_t r[4];
      load_matrices_transposed(
          r, rows + kColumns / 2 * row + chunk_words(2 * pair, lane / 16, swizzle<kColumns>(row)));
      const uint32_t left[2] = {r[0], r[1]};
      const uint32_t right[2] = {r[2], r[3]};
#pragma unroll
      for (int band = 0; band < bands; ++band) {
        multiply_add<T>(sums.v[band][2 * pair], a.v[band][2 * group + step], left);
        multiply_add<T>(sums.v[band][2 * pair + 1], a.v[band][2 * group + step], right);
      }
    }
  }
}
/// Group `group` of sums += d_z W^T for 32 rows of W, `rows`.
template <class T, int bands, int in_groups, int out_groups>
__device__ void multiply_transposed_slice(Sums<bands, in_groups>& sums, const Operand<bands, out_groups>& d_z,
                                          int group, const uint32_t* rows) {
  constexpr int kColumns = 32 * out_groups;
  const int lane = lane_index();
#pragma unroll
  for (int step = 0; step < 2 * out_groups; ++step) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int row = 16 * pair + 8 * (lane / 16) + lane % 8;
      uint32_t r[4];
      load_matrices(r,
                    rows + kColumns / 2 * row + chunk_words(2 * step, lane / 8 % 2, swizzle<kColumns>(row)));
      const uint32_t left[2] = {r[0], r[1]};
      const uint32_t right[2] = {r[2], r[3]};
#pragma unroll
      for (int band = 0; band < bands; ++band) {
        multiply_add<T>(sums.v[band][4 * group + 2 * pair], d_z.v[band][step], left);
        multiply_add<T>(sums.v[band][4 * group + 2 * pair + 1], d_z.v[band][step], right);
      }
    }
  }
}

inline constexpr int kMaxFusedMatrices = 6;

/// The matrices of one call, and where those that stay in shared memory begin there, in words.
template <class T>
struct WeightSet {
  WeightMatrix<T> matrices[kMaxFusedMatrices];
  int first_word[kMaxFusedMatrices];
  int count;
};

/// All matrices in shared memory: warps go their own ways.
template <class T, int W, bool narrow>
class ResidentWeights {
 public:
  /// Every thread of the block; a barrier has to follow.
  __device__ ResidentWeights(const WeightSet<T>& set, uint32_t* shared) : set_(set), shared_(shared) {
    for (int i = 0; i < set.count; ++i) {
      if (!narrow || set.matrices[i].columns == W) {
        fill<W>(i);
      } else {
        fill<32>(i);
      }
    }
  }
  template <int C>
  __device__ void begin(int) {}
  template <int C>
  __device__ const uint32_t* acquire(int matrix, int group, int) {
    return shared_ + set_.first_word[matrix] + group * (16 * C);
  }
  template <int C>
  __device__ void release(int, int, int) {}

 private:
  template <int C>
  __device__ void fill(int matrix) {
    const WeightMatrix<T>& from = set_.matrices[matrix];
    const int vectors = (from.rows + 31) / 32 * 32 * (C / 8);
    for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kFusedThreads) {
      const int row = i / (C / 8);
      const int column = 8 * (i % (C / 8));
      place_weight<C>(shared_ + set_.first_word[matrix], row, column, read_weight<narrow>(from, row, column));
    }
  }
  const WeightSet<T>& set_;
  uint32_t* shared_;
};

/// Slices of W times 32 values through a ring of two: the block's warps go in step, and every one of them
/// takes part in every product. A slice is read ahead into registers while its predecessor is multiplied.
template <class T, int W, bool narrow>
class StreamedWeights {
 public:
  static constexpr int kSliceWords = 16 * W;
  static constexpr int kVectors = 4 * W / kFusedThreads;  // of a slice, a thread's
  __device__ StreamedWeights(const WeightSet<T>& set, uint32_t* shared) : set_(set), shared_(shared) {}
  template <int C>
  __device__ void begin(int matrix) {
    fetch<C>(matrix, 0);
    deposit<C>();
  }
  /// After the barrier nobody reads the slice before this one any more: its place is the next one's.
  template <int C>
  __device__ const uint32_t* acquire(int matrix, int group, int groups) {
    if (C == W || group == 0) {
      __syncthreads();
      current_ = shared_ + turn_ * kSliceWords;
      turn_ ^= 1;
      if (C == W && group + 1 < groups) fetch<C>(matrix, group + 1);
    }
    return C == W ? current_ : current_ + group * (16 * C);
  }
  template <int C>
  __device__ void release(int, int group, int groups) {
    if (C == W && group + 1 < groups) deposit<C>();
  }

 private:
  template <int C>
  __device__ void fetch(int matrix, int group) {
    const int thread = renewed(static_cast<int>(threadIdx.x)) & (kFusedThreads - 1);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int i = k * kFusedThreads + thread;
      ahead_[k] = read_weight<narrow>(set_.matrices[matrix], 32 * group + i / (C / 8), 8 * (i % (C / 8)));
    }
  }
  template <int C>
  __device__ void deposit() {
    const int thread = renewed(static_cast<int>(threadIdx.x)) & (kFusedThreads - 1);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int i = k * kFusedThreads + thread;
      place_weight<C>(shared_ + turn_ * kSliceWords, i / (C / 8), 8 * (i % (C / 8)), ahead_[k]);
    }
  }
  const WeightSet<T>& set_;
  uint32_t* shared_;
  const uint32_t* current_ = nullptr;
  int turn_ = 0;
  Vector<uint32_t> ahead_[kVectors];
};

/// Three 128 x 128 matrices fit into a block's shared memory, one of 256 x 256 does not.
template <class T, int W, bool narrow>
using FusedWeights =
    std::conditional_t<W == 256, StreamedWeights<T, W, narrow>, ResidentWeights<T, W, narrow>>;

/// sums += a W.
template <class T, int bands, int in_groups, int out_groups, class Weights>
__device__ void multiply(Sums<bands, out_groups>& sums, const Operand<bands, in_groups>& a, Weights& weights,
                         int matrix) {
  constexpr int kColumns = 32 * out_groups;
  weights.template begin<kColumns>(matrix);
#pragma unroll
  for (int group = 0; group < in_groups; ++group) {
    multiply_slice<T>(sums, a, group, weights.template acquire<kColumns>(matrix, group, in_groups));
    weights.template release<kColumns>(matrix, group, in_groups);
  }
}
/// sums += d_z W^T.
template <class T, int bands, int in_groups, int out_groups, class Weights>
__device__ void multiply_transposed(Sums<bands, in_groups>& sums, const Operand<bands, out_groups>& d_z,
                                    Weights& weights, int matrix) {
  constexpr int kColumns = 32 * out_groups;
  weights.template begin<kColumns>(matrix);
#pragma unroll
  for (int group = 0; group < in_groups; ++group) {
    multiply_transposed_slice<T>(sums, d_z, group,
                                 weights.template acquire<kColumns>(matrix, group, in_groups));
    weights.template release<kColumns>(matrix, group, in_groups);
  }
}

}  // namespace meshgrad::cuda
