// SPDX-License-Identifier: Apache-2.0
// Weights of fused kernels in shared memory, and the multiplication of a warp's tile by them.
//
// A matrix [rows, columns] is padded with zeros to multiples of 32. Row r is stored as row position_of(r) of
// C columns (the padded number), and its columns are permuted in the same way (tile.h). Chunk c of a row, 16
// bytes or 8 values, is stored as chunk c ^ swizzle(row):
//
//   C = 64  a row is 128 bytes, all 32 banks once. Unswizzled, chunk c of every row would be in the same 4
//           banks, an 8-way conflict for ldmatrix, which reads one chunk of eight neighbouring rows at once.
//           With c ^ (row & 7), the eight rows have their chunks in eight different groups of 4 banks.
//   C > 64  the same within each 128 bytes of a row.
//   C = 32  two rows in 128 bytes: rows 2 i and 2 i + 1 differ in banks already, c ^ (row / 2 & 3) separates
//           the four pairs.
//
// One copy serves forward and backward: x W reads its 8x8 matrices transposed, d_z W^T as they are stored.
#pragma once
#include <meshgrad/kernels/cuda/fused/tile.h>

namespace meshgrad::cuda {

template <class T>
struct WeightMatrix {
  const T* data;
  int rows, columns;
};

/// The position of a column (or row) of a weight: with column 8 q + 2 t + b of its group, 8 t + 2 q + b.
__device__ inline int position_of(int column) {
  return (column & ~31) + 8 * (column / 2 % 4) + 2 * (column / 8 % 4) + column % 2;
}

/// The swizzle of a row of C values.
template <int C>
__device__ int swizzle(int row) {
  if constexpr (C == 32) {
    return row >> 1 & 3;
  } else {
    return row & 7;
  }
}
/// The offset in words of chunk `even` + `odd` of a row; `even` is even and known at compile time, `odd` is 0
/// or 1 and depends on the lane like the swizzle. XOR acts on the low three bits of the chunk only, so a lane
/// needs four addresses at most, and the rest is an immediate offset of the load.
__device__ inline int chunk_words(int even, int odd, int row_swizzle) {
  return 4 * ((even % 8) ^ (odd ^ row_swizzle)) + 4 * (even / 8 * 8);
}

/// Eight values of a row of the matrix in memory, as four pairs; zeros in the padding. `few_rows`: the matrix
/// may have fewer rows than are read; `few_columns`: so with columns.
template <bool few_rows, bool few_columns, class T>
__device__ Vector<uint32_t> read_weight(const WeightMatrix<T>& matrix, int row, int column) {
  if (few_rows && row >= matrix.rows) return {};
  if constexpr (few_columns) {
    if (column >= matrix.columns) return {};
    if (matrix.columns % 8 != 0) return load_narrow_pairs(matrix.data, matrix.columns, row, column);
  }
  return load_pairs(matrix.data, matrix.columns, row, column);
}
/// Stores them in a matrix of padded row width C. The columns 8 q .. 8 q + 7 are words q of four neighbouring
/// chunks: pair t is in chunk t of the group, and (4 group + t) ^ swizzle = (4 group ^ swizzle) ^ t. The
/// layout is that of the loads, which are free of bank conflicts; these stores have 2-way conflicts.
template <int C>
__device__ void place_weight(uint32_t* shared, int row, int column, const Vector<uint32_t>& words) {
  const int to = position_of(row);
  const int chunk = position_of(column) / 8 ^ swizzle<C>(to);
  uint32_t* first = shared + C / 2 * to + column / 8 % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) first[4 * (chunk ^ i)] = words.v[i];
}

/// sums += a W for the 32 rows of W at `rows`, which are the k range of group `group` of a. Two k steps of 16
/// rows; one ldmatrix.x4 loads two column tiles, and its addresses are
///
///   lanes  0 .. 15  rows 16 step + 0 .. 15, chunk 2 pair      r[0], r[1]: b of column tile 2 pair
///   lanes 16 .. 31  the same rows,          chunk 2 pair + 1  r[2], r[3]: b of column tile 2 pair + 1
///
/// The b fragment has neighbouring k in a register, W has neighbouring columns: hence transposed. Every load
/// is used by all bands.
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
/// Group `group` of sums += d_z W^T for the 32 rows of W at `rows`, which are the columns of that group. The
/// k range is W's columns, which are neighbours in memory as in the b fragment: not transposed. Addresses of
/// one ldmatrix.x4:
///
///   lanes  0 ..  7  rows 16 pair + 0 .. 7,   chunk 2 step      r[0]: b[0] of column tile 2 pair
///   lanes  8 .. 15  the same rows,           chunk 2 step + 1  r[1]: b[1]
///   lanes 16 .. 23  rows 16 pair + 8 .. 15,  chunk 2 step      r[2]: b[0] of column tile 2 pair + 1
///   lanes 24 .. 31  the same rows,           chunk 2 step + 1  r[3]: b[1]
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

/// The matrices of one call, and their offsets in shared memory in words (unused when they are streamed).
template <class T>
struct WeightSet {
  WeightMatrix<T> matrices[kMaxFusedMatrices];
  int first_word[kMaxFusedMatrices];
  int count;
};

// Weights are used through begin(matrix), then acquire and release for each group of 32 rows. W = 64 keeps
// all matrices in shared memory, W = 256 streams them, W = 128 has both (weight_place in fused.h). Both
// multiply in the same order, so the bits are the same.

/// All matrices in shared memory for the whole kernel: acquire is an address, and warps never wait for one
/// another.
template <class T, int W, bool narrow>
class ResidentWeights {
 public:
  /// Called by every thread of the block; a barrier must follow before acquire.
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
      place_weight<C>(shared_ + set_.first_word[matrix], row, column,
                      read_weight<narrow, narrow>(from, row, column));
    }
  }
  const WeightSet<T>& set_;
  uint32_t* shared_;
};

/// Slices of 32 rows of W values through two buffers in shared memory. All warps of the block multiply by the
/// same slice at the same time, so every one of them must take part in every multiplication, also without
/// rows. Slice g + 1 is prefetched into registers while slice g is multiplied:
///
///   begin      load 0, store 0 in buffer A
///   acquire 0  barrier; start loading 1    multiply A    release 0  store 1 in buffer B
///   acquire 1  barrier; start loading 2    multiply B    release 1  store 2 in buffer A
///
/// A matrix with at most 32 columns is one slice in all (C = 32): 256 rows of 32 values.
template <class T, int W, bool narrow>
class StreamedWeights {
 public:
  static constexpr int kSliceWords = 16 * W;
  static constexpr int kVectors = 4 * W / kFusedThreads;  // 16-byte vectors of a slice per thread
  __device__ StreamedWeights(const WeightSet<T>& set, uint32_t* shared) : set_(set), shared_(shared) {}
  template <int C>
  __device__ void begin(int matrix) {
    prefetch<C>(matrix, 0);
    store_prefetched<C>();
  }
  /// The barrier orders both ways: this slice is completely stored, and no warp reads the one before it any
  /// more, whose buffer release() overwrites. That one barrier per slice suffices is why there are two
  /// buffers.
  template <int C>
  __device__ const uint32_t* acquire(int matrix, int group, int groups) {
    if (C == W || group == 0) {
      __syncthreads();
      current_ = shared_ + slot_ * kSliceWords;
      slot_ ^= 1;
      if (C == W && group + 1 < groups) prefetch<C>(matrix, group + 1);
    }
    return C == W ? current_ : current_ + group * (16 * C);
  }
  template <int C>
  __device__ void release(int, int group, int groups) {
    if (C == W && group + 1 < groups) store_prefetched<C>();
  }

 private:
  template <int C>
  __device__ void prefetch(int matrix, int group) {
    const int thread = opaque(static_cast<int>(threadIdx.x)) & (kFusedThreads - 1);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int i = k * kFusedThreads + thread;
      prefetched_[k] =
          read_weight<narrow, C != W>(set_.matrices[matrix], 32 * group + i / (C / 8), 8 * (i % (C / 8)));
    }
  }
  template <int C>
  __device__ void store_prefetched() {
    const int thread = opaque(static_cast<int>(threadIdx.x)) & (kFusedThreads - 1);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int i = k * kFusedThreads + thread;
      place_weight<C>(shared_ + slot_ * kSliceWords, i / (C / 8), 8 * (i % (C / 8)), prefetched_[k]);
    }
  }
  const WeightSet<T>& set_;
  uint32_t* shared_;
  const uint32_t* current_ = nullptr;
  int slot_ = 0;
  Vector<uint32_t> prefetched_[kVectors];
};

/// Three matrices of 128 x 128 are 96 KiB, of 256 x 256 they are 384 KiB; a block has 99 to 227 KiB.
template <class T, int W, bool narrow, bool streamed>
using FusedWeights =
    std::conditional_t<streamed, StreamedWeights<T, W, narrow>, ResidentWeights<T, W, narrow>>;

/// sums += a W, with W in slices of 32 rows: `a` has one group for each.
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
/// sums += d_z W^T: each slice of 32 rows yields one group of the result.
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
