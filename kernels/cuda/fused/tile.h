// SPDX-License-Identifier: Apache-2.0
// A warp's tile of rows in registers: what fused kernels on tensor cores are composed of.
//
// A tile is `bands` times 16 rows by 32 `groups` columns. Between layers it never leaves the registers: the
// sums of one product are, packed to 16 bits, the left operand of the next. To that end columns are permuted
// within each group of 32: the fragment position 8 t + 2 q + b holds column 8 q + 2 t + b, so that quad lane
// q owns eight neighbouring columns of a group, and every access to a row in global memory is one 16-byte
// vector. Weights lie in shared memory with rows and columns permuted alike (tile_weights.h).
#pragma once
#include <meshgrad/kernels/activation.h>
#include <meshgrad/kernels/cuda/device.h>

namespace meshgrad::cuda {

inline constexpr int kFusedWarps = 8;
inline constexpr int kFusedThreads = 32 * kFusedWarps;

/// How a warp holds rows of width W: 128 sums and 64 words of operands a lane at most.
template <int W>
struct TileShape {
  static constexpr int kGroups = W / 32;
  static constexpr int kBands = W == 256 ? 1 : 2;
  static constexpr int kRows = 16 * kBands;
};

/// Masked rather than divided, here and below: the compiler then knows that nothing is negative.
__device__ inline int lane_index() { return static_cast<int>(threadIdx.x & 31); }
/// The same in all lanes, as a value that the compiler knows to be: what is computed from it need not be kept
/// once a lane.
__device__ inline int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }
__device__ inline int warp_index() { return uniform(static_cast<int>(threadIdx.x / 32)); }
/// The lane's own value, which the compiler has to take for a new one: what follows from it is computed where
/// it is used instead of being kept in registers all through the products in between.
__device__ inline int renewed(int value) { return __shfl_sync(0xffffffffu, value, lane_index()); }
/// The first of the lane's eight columns in group 0.
__device__ inline int lane_column() { return 8 * (lane_index() % 4); }

/// Sums of a product, in f32. A lane has rows lane / 4 and lane / 4 + 8 of every band.
template <int bands, int groups>
struct Sums {
  float v[bands][4 * groups][4];
  /// Of the lane's rows and columns: column 0 .. 7 of its eight in a group, half 0 or 1 (8 rows on).
  __device__ float& at(int band, int half, int group, int column) {
    return v[band][4 * group + column / 2][2 * half + column % 2];
  }
  __device__ void clear() {
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int tile = 0; tile < 4 * groups; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) v[band][tile][i] = 0.0f;
  }
};

/// The left operand of a product, 16-bit pairs: two steps of 16 columns a group.
template <int bands, int groups>
struct Operand {
  uint32_t v[bands][2 * groups][4];
  /// Pair 0 .. 3 of the lane's eight columns in a group.
  __device__ uint32_t& pair(int band, int half, int group, int pair) {
    return v[band][2 * group + pair / 2][2 * (pair % 2) + half];
  }
};

/// Which rows of a tensor the lane's rows are; -1: none, reads give 0 and writes are left out.
template <int bands>
struct LaneRows {
  int v[bands][2];
};
/// A warp's tile of neighbouring rows, those below `end`.
template <int bands>
struct TileRows {
  int first, end;
  /// To be asked at each use: the shuffle makes the compiler compute rows and addresses anew, see renewed.
  __device__ LaneRows<bands> rows() const {
    const int from = uniform(first) + lane_index() / 4;
    LaneRows<bands> result;
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = from + 16 * band + 8 * half;
        result.v[band][half] = row < end ? row : -1;
      }
    return result;
  }
};
/// Rows by an index, of which lane i has that of the tile's row i.
template <int bands>
__device__ LaneRows<bands> gathered_rows(int index) {
  LaneRows<bands> rows;
#pragma unroll
  for (int band = 0; band < bands; ++band)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      rows.v[band][half] = __shfl_sync(0xffffffffu, index, 16 * band + 8 * half + lane_index() / 4);
  return rows;
}

struct Eight {
  float v[8];
};

template <class T>
__device__ float unpack(uint32_t pair, int which) {
  T value;
  value.bits = static_cast<uint16_t>(pair >> (16 * which));
  return to_float(value);
}
template <class T>
__device__ Eight unpack(const Vector<uint32_t>& words) {
  Eight result;
#pragma unroll
  for (int i = 0; i < 8; ++i) result.v[i] = unpack<T>(words.v[i / 2], i % 2);
  return result;
}

/// Eight neighbouring 16-bit values of a row as four pairs; a multiple of 16 bytes into the tensor.
template <class T>
__device__ Vector<uint32_t> load_pairs(const T* x, int64_t width, int row, int column) {
  if (row < 0) return {};
  return std::bit_cast<Vector<uint32_t>>(*reinterpret_cast<const Vector<T>*>(x + row * width + column));
}
template <class T>
__device__ void store_pairs(T* y, int64_t width, int row, int column, const Vector<uint32_t>& words) {
  if (row >= 0) *reinterpret_cast<Vector<T>*>(y + row * width + column) = std::bit_cast<Vector<T>>(words);
}
/// The same of a row of `width` < 32 values, as far as there are; at any address.
template <class T>
__device__ Vector<uint32_t> load_narrow_pairs(const T* x, int width, int row, int column) {
  Vector<uint32_t> words{};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (row >= 0 && column + i < width) {
      words.v[i / 2] |= uint32_t{x[int64_t{row} * width + column + i].bits} << (16 * (i % 2));
    }
  }
  return words;
}

template <class T, int bands, int groups>
__device__ void load_operand(Operand<bands, groups>& a, const T* x, const LaneRows<bands>& rows) {
#pragma unroll
  for (int group = 0; group < groups; ++group)
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // A vector holds one row's words, an operand's registers alternate between two rows. The selection
        // is also the one move between them; without it the compiler repeats that move at every product.
        const int row = rows.v[band][half];
        const auto words = load_pairs(x, 32 * groups, max(row, 0), 32 * group + lane_column());
#pragma unroll
        for (int i = 0; i < 4; ++i) a.pair(band, half, group, i) = row < 0 ? 0 : words.v[i];
      }
}
template <class T, int bands>
__device__ void load_narrow_operand(Operand<bands, 1>& a, const T* x, int width,
                                    const LaneRows<bands>& rows) {
  const int column = renewed(lane_column());
#pragma unroll
  for (int band = 0; band < bands; ++band)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto words = load_narrow_pairs(x, width, rows.v[band][half], column);
#pragma unroll
      for (int i = 0; i < 4; ++i) a.pair(band, half, 0, i) = words.v[i];
    }
}
/// `all_bits` is 0xffffffff, unknown to the compiler: the one move from an operand's order of registers to a
/// vector's, which it would otherwise repeat at every product.
template <class T, int bands, int groups>
__device__ void store_operand(Operand<bands, groups>& a, T* y, const LaneRows<bands>& rows,
                              uint32_t all_bits) {
#pragma unroll
  for (int group = 0; group < groups; ++group)
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Vector<uint32_t> words;
#pragma unroll
        for (int i = 0; i < 4; ++i) words.v[i] = a.pair(band, half, group, i) & all_bits;
        store_pairs(y, 32 * groups, rows.v[band][half], 32 * group + lane_column(), words);
      }
}

/// Rounds to storage: the next product's operand.
template <class T, int bands, int groups>
__device__ void to_operand(Sums<bands, groups>& sums, Operand<bands, groups>& a) {
#pragma unroll
  for (int group = 0; group < groups; ++group)
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          a.pair(band, half, group, i) =
              pack<T>(sums.at(band, half, group, 2 * i), sums.at(band, half, group, 2 * i + 1));
}

/// The lane's eight columns of a vector of W floats in shared memory.
__device__ inline Eight lane_values(const float* vector, int group) {
  const auto* from = reinterpret_cast<const Vector<float>*>(vector + 32 * group + lane_column());
  Eight result;
#pragma unroll
  for (int i = 0; i < 8; ++i) result.v[i] = from[i / 4].v[i % 4];
  return result;
}

/// Every row = bias.
template <int bands, int groups>
__device__ void start(Sums<bands, groups>& sums, const float* bias) {
#pragma unroll
  for (int group = 0; group < groups; ++group) {
    const Eight values = lane_values(bias, group);
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 8; ++i) sums.at(band, half, group, i) = values.v[i];
  }
}

template <class T, int bands, int groups>
__device__ void add_rows(Sums<bands, groups>& sums, const T* x, const LaneRows<bands>& rows) {
#pragma unroll
  for (int group = 0; group < groups; ++group)
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Eight values =
            unpack<T>(load_pairs(x, 32 * groups, rows.v[band][half], 32 * group + lane_column()));
#pragma unroll
        for (int i = 0; i < 8; ++i) sums.at(band, half, group, i) += values.v[i];
      }
}
template <class T, int bands, int groups>
__device__ void store_rows(Sums<bands, groups>& sums, T* y, const LaneRows<bands>& rows) {
#pragma unroll
  for (int group = 0; group < groups; ++group)
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Vector<uint32_t> words;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          words.v[i] = pack<T>(sums.at(band, half, group, 2 * i), sums.at(band, half, group, 2 * i + 1));
        }
        store_pairs(y, 32 * groups, rows.v[band][half], 32 * group + lane_column(), words);
      }
}
/// Rows of `width` <= 32 values, the first of the group; with `add`, to what is there.
template <class T, int bands>
__device__ void store_narrow_rows(Sums<bands, 1>& sums, T* y, int width, const LaneRows<bands>& rows,
                                  bool add = false) {
  const int column = renewed(lane_column());
#pragma unroll
  for (int band = 0; band < bands; ++band)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int row = rows.v[band][half];
        if (row < 0 || column + i >= width) continue;
        T* to = y + int64_t{row} * width + column + i;
        *to = to_storage<T>(sums.at(band, half, 0, i) + (add ? to_float(*to) : 0.0f));
      }
}

template <int bands, int groups>
__device__ void relu(Sums<bands, groups>& sums) {
#pragma unroll
  for (int band = 0; band < bands; ++band)
#pragma unroll
    for (int tile = 0; tile < 4 * groups; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = sums.v[band][tile][i];
        x = x < 0.0f ? 0.0f : x;  // a NaN stays one, so that a broken run is noticed
      }
}

/// One bit a sum: whether relu let it through. Words of a lane lie 32 apart in shared memory.
template <int bands, int groups>
struct ReluMask {
  static constexpr int kWords = bands * groups / 2;
  static constexpr int kWarpWords = 32 * kWords;
};
template <int bands, int groups>
__device__ void save_mask(Sums<bands, groups>& sums, uint32_t* mask) {
#pragma unroll
  for (int word = 0; word < ReluMask<bands, groups>::kWords; ++word) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int k = 32 * word + i;
      if (!(sums.v[k / (16 * groups)][k / 4 % (4 * groups)][k % 4] <= 0.0f)) bits |= 1u << i;
    }
    mask[32 * word + lane_index()] = bits;
  }
}
template <int bands, int groups>
__device__ void apply_mask(Sums<bands, groups>& sums, const uint32_t* mask) {
#pragma unroll
  for (int word = 0; word < ReluMask<bands, groups>::kWords; ++word) {
    const uint32_t bits = mask[32 * word + lane_index()];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int k = 32 * word + i;
      if ((bits & (1u << i)) == 0) sums.v[k / (16 * groups)][k / 4 % (4 * groups)][k % 4] = 0.0f;
    }
  }
}

/// A value a row of the lane's.
template <int bands>
struct RowValues {
  float v[bands][2];
};
/// Adds up the four lanes that share a row.
template <int bands>
__device__ void sum_quads(RowValues<bands>& values) {
#pragma unroll
  for (int band = 0; band < bands; ++band)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      values.v[band][half] += __shfl_xor_sync(0xffffffffu, values.v[band][half], 1);
      values.v[band][half] += __shfl_xor_sync(0xffffffffu, values.v[band][half], 2);
    }
}

/// Rows to mean 0 (layer norm alone) and mean square 1; returns what they were multiplied by.
template <int bands, int groups>
__device__ RowValues<bands> normalize(Sums<bands, groups>& sums, Norm norm, float epsilon) {
  constexpr float kShare = 1.0f / (32 * groups);
  RowValues<bands> scale{};
  if (norm == Norm::layer) {
    RowValues<bands> mean{};
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int i = 0; i < 16 * groups; ++i) mean.v[band][i / 2 % 2] += sums.v[band][i / 4][i % 4];
    sum_quads(mean);
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int i = 0; i < 16 * groups; ++i) sums.v[band][i / 4][i % 4] -= kShare * mean.v[band][i / 2 % 2];
  }
#pragma unroll
  for (int band = 0; band < bands; ++band)
#pragma unroll
    for (int i = 0; i < 16 * groups; ++i) {
      const float x = sums.v[band][i / 4][i % 4];
      scale.v[band][i / 2 % 2] += x * x;
    }
  sum_quads(scale);
#pragma unroll
  for (int band = 0; band < bands; ++band) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      scale.v[band][half] = 1.0f / sqrtf(kShare * scale.v[band][half] + epsilon);
#pragma unroll
    for (int i = 0; i < 16 * groups; ++i) sums.v[band][i / 4][i % 4] *= scale.v[band][i / 2 % 2];
  }
  return scale;
}
/// sums * gain + bias; a null bias adds nothing.
template <int bands, int groups>
__device__ void scale_columns(Sums<bands, groups>& sums, const float* gain, const float* bias) {
#pragma unroll
  for (int group = 0; group < groups; ++group) {
    const Eight factor = lane_values(gain, group);
    const Eight term = bias == nullptr ? Eight{} : lane_values(bias, group);
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& x = sums.at(band, half, group, i);
          x = x * factor.v[i] + term.v[i];
        }
  }
}

/// Adds the warp's sums of a group's columns, of which each lane brings its rows' share, to `total` (the
/// warp's own, in shared memory). Halving: a lane passes on what the other half of the lanes finishes.
__device__ inline void add_column_sums(const Eight& mine, float* total) {
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
template <int bands, int groups>
__device__ void add_column_sums(Sums<bands, groups>& sums, float* total) {
#pragma unroll
  for (int group = 0; group < groups; ++group) {
    Eight mine{};
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int i = 0; i < 8; ++i) mine.v[i] += sums.at(band, 0, group, i) + sums.at(band, 1, group, i);
    add_column_sums(mine, total + 32 * group);
  }
}

}  // namespace meshgrad::cuda
