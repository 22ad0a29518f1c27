// SPDX-License-Identifier: Apache-2.0
// A warp's tile of rows in registers: the building block of the fused tensor-core kernels.
//
// A tile is `bands` bands of 16 rows by `groups` groups of 32 columns. Between layers it never leaves the
// registers: the accumulators of one multiplication, packed to 16 bits, are the left operand of the next
// without any exchange between lanes, because the d and a fragments of mma.m16n8k16 (device.h) have the same
// rows and columns in the same lanes. FlashAttention-2 chains its two multiplications in the same way (Dao,
// 2023).
//
// Columns are permuted within each group of 32. With quad lane q = lane % 4, mma column tile t = 0 .. 3 of
// the group and b = 0, 1, the fragment position 8 t + 2 q + b holds column 8 q + 2 t + b:
//
//   position  0 1  2 3  4 5   6 7   | 8 9  10 11 12 13 14 15 | 16 .. 23 | 24 .. 31
//   column    0 1  8 9 16 17 24 25  | 2 3  10 11 18 19 26 27 | 4 5 ..   | 6 7 ..
//   q         0    1   2     3        0    1     2     3
//
// so a lane holds eight neighbouring columns, 8 q .. 8 q + 7, of rows lane / 4 and lane / 4 + 8 of each band,
// and accesses a row in global memory as one 16-byte vector. A warp's access is eight rows of 64 contiguous
// bytes. Weights in shared memory have rows and columns permuted in the same way (tile_weights.h).
#pragma once
#include <meshgrad/kernels/activation.h>
#include <meshgrad/kernels/cuda/device.h>

namespace meshgrad::cuda {

inline constexpr int kFusedWarps = 8;
inline constexpr int kFusedThreads = 32 * kFusedWarps;

/// A warp's tile of width W: at most 128 accumulators and 64 operand registers per lane, of the 255 that a
/// thread may have. Two bands halve the reads of weights from shared memory per row. Of width 256 only one
/// band fits; at width 128 two would double the code, whose loop then has more instructions than the caches
/// hold.
template <int W>
struct TileShape {
  static constexpr int kGroups = W / 32;
  static constexpr int kBands = W == 64 ? 2 : 1;
  static constexpr int kRows = 16 * kBands;
};

/// Blocks of a fused kernel on a multiprocessor: the tile of width 64 takes half of the registers.
template <int W>
inline constexpr int kFusedBlocks = W == 64 ? 2 : 1;

/// A mask instead of %, here and below: the compiler then knows that the result is not negative.
__device__ inline int lane_index() { return static_cast<int>(threadIdx.x & 31); }
/// Lane 0's value in all lanes, for values that are equal anyway: it tells the compiler so, and what is
/// computed from it need not be held once per lane.
__device__ inline int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }
__device__ inline int warp_index() { return uniform(static_cast<int>(threadIdx.x / 32)); }
/// The lane's own value, opaque to the compiler: what depends on it is recomputed where it is used, instead
/// of occupying registers throughout the multiplications in between.
__device__ inline int opaque(int value) { return __shfl_sync(0xffffffffu, value, lane_index()); }
/// The first of the lane's eight columns in group 0.
__device__ inline int lane_column() { return 8 * (lane_index() % 4); }

/// Accumulators of a multiplication, f32: v[band][mma column tile][register of the d fragment].
template <int bands, int groups>
struct Sums {
  float v[bands][4 * groups][4];
  /// Row lane / 4 + 8 half of the band, column 8 q + `column` (0 .. 7) of the group: tile t = column / 2 and
  /// b = column % 2 of the table above.
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

/// The left operand of a multiplication, 16-bit pairs: v[band][k step of 16][register of the a fragment], two
/// steps per group.
template <int bands, int groups>
struct Operand {
  uint32_t v[bands][2 * groups][4];
  /// Columns 8 q + 2 pair and the next, pair = 0 .. 3. Column tiles 2 s and 2 s + 1 are the low and the high
  /// eight columns of step s, which the a fragment has in registers 0, 1 and 2, 3.
  __device__ uint32_t& pair(int band, int half, int group, int pair) {
    return v[band][2 * group + pair / 2][2 * (pair % 2) + half];
  }
};

/// Rows of a tensor that the lane's rows of a tile are; -1: none, loads give 0 and stores do nothing. 32-bit
/// to save registers (fits_int32 in fused_layers.h); they are multiplied by the width in 64 bits.
template <int bands>
struct LaneRows {
  int v[bands][2];
  __device__ LaneRows<1> band(int which) const { return {{{v[which][0], v[which][1]}}}; }
};
/// A warp's tile of consecutive rows, as far as they are below `end`.
template <int bands>
struct TileRows {
  int first, end;
  __device__ bool empty() const { return first >= end; }
  __device__ bool full() const { return first + 16 * bands <= end; }
  /// Call it at each use instead of storing the result: the shuffle in uniform() makes the compiler recompute
  /// rows and addresses there, as opaque() does.
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
  /// The same with the last row instead of missing ones, for loads without a condition. Not of an empty tile.
  __device__ LaneRows<bands> existing() const {
    const int from = uniform(first) + lane_index() / 4;
    LaneRows<bands> result;
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half) result.v[band][half] = min(from + 16 * band + 8 * half, end - 1);
    return result;
  }
};
/// Rows by index, where lane i has the index of the tile's row i: each lane receives those of its own rows.
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

/// The lane's columns of one row in one group.
struct EightFloats {
  float v[8];
};

template <class T>
__device__ float unpack(uint32_t pair, int which) {
  // The high half of a bfloat16 pair is in place, which the compiler does not see.
  if constexpr (dtype_of<T>() == DType::bf16) {
    return std::bit_cast<float>(which == 0 ? pair << 16 : pair & 0xffff0000u);
  } else {
    T value;
    value.bits = static_cast<uint16_t>(pair >> (16 * which));
    return to_float(value);
  }
}
template <class T>
__device__ EightFloats unpack(const Vector<uint32_t>& words) {
  EightFloats result;
#pragma unroll
  for (int i = 0; i < 8; ++i) result.v[i] = unpack<T>(words.v[i / 2], i % 2);
  return result;
}

/// Eight neighbouring 16-bit values of a row as four pairs, one 16-byte access: the base, the width and the
/// column must be multiples of 16 bytes.
template <class T>
__device__ Vector<uint32_t> load_pairs(const T* x, int64_t width, int row, int column) {
  if (row < 0) return {};
  return std::bit_cast<Vector<uint32_t>>(*reinterpret_cast<const Vector<T>*>(x + row * width + column));
}
template <bool evict_first = false, class T>
__device__ void store_pairs(T* y, int64_t width, int row, int column, const Vector<uint32_t>& words) {
  if (row < 0) return;
  auto* const to = reinterpret_cast<Vector<T>*>(y + row * width + column);
  if constexpr (evict_first) {
    store_evict_first(to, std::bit_cast<Vector<T>>(words));
  } else {
    *to = std::bit_cast<Vector<T>>(words);
  }
}
/// The same of a row of any width, value by value at any alignment; 0 for columns behind the width.
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

/// Rows of a band as they are loaded, four registers of one row each. A loaded vector stays where it arrives,
/// so that all loads can be in flight together; an Operand alternates between two rows.
template <int groups>
struct LoadedRows {
  Vector<uint32_t> v[2][groups];
  /// Both rows must exist.
  template <class T>
  __device__ void load(const T* x, const LaneRows<1>& rows) {
#pragma unroll
    for (int group = 0; group < groups; ++group)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const T* const row = x + int64_t{rows.v[0][half]} * (32 * groups) + 32 * group;
        v[half][group] =
            std::bit_cast<Vector<uint32_t>>(*reinterpret_cast<const Vector<T>*>(row + lane_column()));
      }
  }
  /// Zeros instead of the rows that are -1.
  __device__ void clear_missing(const LaneRows<1>& rows) {
#pragma unroll
    for (int group = 0; group < groups; ++group)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i) v[half][group].v[i] = rows.v[0][half] < 0 ? 0 : v[half][group].v[i];
  }
  /// Adds other rows, rounding to storage.
  template <class T>
  __device__ void add(const LoadedRows& more) {
#pragma unroll
    for (int group = 0; group < groups; ++group)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          v[half][group].v[i] = add_pairs<T>(v[half][group].v[i], more.v[half][group].v[i]);
  }
};
/// Asks for one row a lane to be brought into the L2 cache. Nothing waits for it.
template <int W, class T>
__device__ void prefetch_row(const T* x, int row) {
#pragma unroll
  for (int column = 0; column < W; column += 64) prefetch_l2(x + int64_t{row} * W + column);
}

template <class T, int bands, int groups>
__device__ void load_operand(Operand<bands, groups>& a, const T* x, const LaneRows<bands>& rows) {
#pragma unroll
  for (int group = 0; group < groups; ++group)
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // A loaded vector has four registers of one row, while an a fragment alternates between two rows. The
        // selection by row < 0 doubles as the move between the two; without it the compiler repeats the move
        // at every multiplication. Row 0 always exists here, so the load itself needs no branch.
        const int row = rows.v[band][half];
        const auto words = load_pairs(x, 32 * groups, max(row, 0), 32 * group + lane_column());
#pragma unroll
        for (int i = 0; i < 4; ++i) a.pair(band, half, group, i) = row < 0 ? 0 : words.v[i];
      }
}
template <class T, int bands>
__device__ void load_narrow_operand(Operand<bands, 1>& a, const T* x, int width,
                                    const LaneRows<bands>& rows) {
  const int column = opaque(lane_column());
#pragma unroll
  for (int band = 0; band < bands; ++band)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto words = load_narrow_pairs(x, width, rows.v[band][half], column);
#pragma unroll
      for (int i = 0; i < 4; ++i) a.pair(band, half, 0, i) = words.v[i];
    }
}
/// `all_bits` is 0xffffffff, a kernel argument whose value the compiler does not know. The AND with it is the
/// move from an operand's order of registers to a vector's, which would otherwise be repeated at every
/// multiplication. `evict_first`: rows that are not read before the kernel ends, and should not take the L2
/// cache from those that are.
template <bool evict_first = false, class T, int bands, int groups>
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
        store_pairs<evict_first>(y, 32 * groups, rows.v[band][half], 32 * group + lane_column(), words);
      }
}

/// Rounds the accumulators to storage as the next multiplication's left operand, within each lane.
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

/// The lane's eight columns of a vector of W floats in shared memory. Two 16-byte reads; the eight lanes of
/// equal q read the same address, which is a broadcast.
__device__ inline EightFloats lane_values(const float* vector, int group) {
  const auto* from = reinterpret_cast<const Vector<float>*>(vector + 32 * group + lane_column());
  EightFloats result;
#pragma unroll
  for (int i = 0; i < 8; ++i) result.v[i] = from[i / 4].v[i % 4];
  return result;
}

/// Sets every row to the bias: accumulators then start from it, without an addition at the end.
template <int bands, int groups>
__device__ void start(Sums<bands, groups>& sums, const float* bias) {
#pragma unroll
  for (int group = 0; group < groups; ++group) {
    const EightFloats values = lane_values(bias, group);
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 8; ++i) sums.at(band, half, group, i) = values.v[i];
  }
}

/// Adds a band's rows to the sums.
template <class T, int bands, int groups>
__device__ void add_loaded(Sums<bands, groups>& sums, int band, const LoadedRows<groups>& rows) {
#pragma unroll
  for (int group = 0; group < groups; ++group)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const EightFloats values = unpack<T>(rows.v[half][group]);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums.at(band, half, group, i) += values.v[i];
    }
}
/// Adds the tile's rows of x to the sums, of which missing rows take any values.
template <class T, int bands, int groups>
__device__ void add_rows(Sums<bands, groups>& sums, const T* x, const TileRows<bands>& tile) {
  if (tile.empty()) return;
  const LaneRows<bands> rows = tile.existing();
#pragma unroll
  for (int band = 0; band < bands; ++band) {
    LoadedRows<groups> loaded;
    loaded.load(x, rows.band(band));
    add_loaded<T>(sums, band, loaded);
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
/// Stores the first `width` <= 32 columns as rows of that width; with `add`, adds them to the rows there.
template <class T, int bands>
__device__ void store_narrow_rows(Sums<bands, 1>& sums, T* y, int width, const LaneRows<bands>& rows,
                                  bool add = false) {
  const int column = opaque(lane_column());
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

/// One value per row of the lane, alike in the four lanes of a quad after sum_quads.
template <int bands>
struct RowValues {
  float v[bands][2];
};
/// Sums over the four lanes of a quad, which share a row; all four receive the same bits.
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

/// Normalises each row to mean 0 (LayerNorm only) and mean square 1; returns the factor 1 / sqrt(var +
/// epsilon) of each row. The mean is subtracted before squaring: mean(x^2) - mean(x)^2 would cancel. In
/// v[.][.][i], registers 0, 1 belong to row half 0 and 2, 3 to half 1, hence i / 2 % 2.
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
      scale.v[band][half] = inverse_root(kShare * scale.v[band][half] + epsilon);
#pragma unroll
    for (int i = 0; i < 16 * groups; ++i) sums.v[band][i / 4][i % 4] *= scale.v[band][i / 2 % 2];
  }
  return scale;
}
/// sums = sums * gain + bias by column; a null bias adds 0.
template <int bands, int groups>
__device__ void scale_columns(Sums<bands, groups>& sums, const float* gain, const float* bias) {
#pragma unroll
  for (int group = 0; group < groups; ++group) {
    const EightFloats factor = lane_values(gain, group);
    const EightFloats term = bias == nullptr ? EightFloats{} : lane_values(bias, group);
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

}  // namespace meshgrad::cuda
