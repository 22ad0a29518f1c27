// SPDX-License-Identifier: Apache-2.0
// The vector primitives of the CPU kernels: row operations on tiles of rows that stay in cache (products.h
// has the matrix products). Compiled once per instruction set by Google Highway and picked at run time.
#pragma once
#include <meshgrad/engine/dtype.h>
#include <meshgrad/kernels/activation.h>

#include <cstdint>
#include <type_traits>

namespace meshgrad::cpu {

/// Columns of a tile buffer are padded to this, so that vectors may run past the width.
inline constexpr int64_t kPad = 64;
constexpr int64_t padded(int64_t width) { return (width + kPad - 1) / kPad * kPad; }

/// bfloat16 in memory that products read as float, like half: for CPUs that do not multiply pairs of them.
struct WideBfloat16 : bfloat16 {
  using bfloat16::bfloat16;
};
static_assert(sizeof(WideBfloat16) == sizeof(bfloat16) && std::is_trivially_copyable_v<WideBfloat16>);
template <class S>
inline constexpr bool kIsBfloat16 = std::is_base_of_v<bfloat16, S>;

/// What the matrix products of a storage type S read: bfloat16 itself, in pairs; everything else in the type
/// it is summed in.
template <class S>
using Operand = std::conditional_t<std::is_same_v<S, bfloat16>, bfloat16, Accumulator<S>>;
/// Terms of a sum that a product takes in one step. In pairs, A's two terms lie side by side, and so do B's
/// of one column.
template <class S>
inline constexpr int64_t kDepth = std::is_same_v<S, bfloat16> ? 2 : 1;
/// Rows that travel together through all layers. 96 are a multiple of the 6 rows that a product holds in
/// registers, and enough that a weight's gradient is not read and written for little; their tiles stay in the
/// second cache. 64 of bfloat16 fill AMX's registers as rows and, in pairs, as steps.
template <class S>
inline constexpr int64_t kTileRows = kDepth<S> == 2 ? 64 : 96;

/// Rows of storage that are added up: row index[i] for row i, or row i itself (null). No rows: zeros.
template <class S>
struct Gathered {
  const S* rows = nullptr;
  const int32_t* index = nullptr;
};

/// Where y = norm(z) * gain + bias goes. Null: not wanted.
template <class S>
struct NormResult {
  using T = Accumulator<S>;
  const S* residual = nullptr;  ///< [rows, width]
  S* out = nullptr;             ///< [rows, width]: y, with the residual if there is one
  T* tile = nullptr;            ///< y
  int64_t tile_row = 0;
  bool residual_in_tile = false;  ///< there, too
};

/// One table per instruction set and storage type S; T is what S is summed in. "Tile" arguments are buffers
/// of T with a leading dimension of at least padded(width); columns behind the width may hold anything and
/// may be overwritten. Other pointers are exact. S may be T: then conversions are copies.
template <class S>
struct TileOps {
  using T = Accumulator<S>;
  const char* isa;

  /// y = act(z), and d_z = d_h * act'(z) in place of d_h.
  void (*activate)(Activation, int64_t rows, int64_t width, const S* z, int64_t z_row, T* y, int64_t y_row);
  void (*activate_backward)(Activation, int64_t rows, int64_t width, const S* z, int64_t z_row, T* d,
                            int64_t d_row);
  void (*norm)(Norm, int64_t rows, int64_t width, const T* z, int64_t z_row, const T* gain, const T* bias,
               T epsilon, const NormResult<S>&);
  /// d_z from d_y (may be the same tile); adds to d_gain, d_bias and, unless it is null, d_z_sums.
  void (*norm_backward)(Norm, int64_t rows, int64_t width, const S* z, int64_t z_row, const T* gain,
                        T epsilon, const T* d_y, int64_t d_y_row, T* d_z, int64_t d_z_row, T* d_gain,
                        T* d_bias, T* d_z_sums);

  /// Between storage and tiles, row by row: y = x, and y += x, rounded where y is storage.
  void (*load)(int64_t rows, int64_t width, const S* x, int64_t x_row, T* y, int64_t y_row);
  void (*store)(int64_t rows, int64_t width, const T* x, int64_t x_row, S* y, int64_t y_row);
  void (*add)(int64_t rows, int64_t width, const S* x, int64_t x_row, T* y, int64_t y_row);
  void (*add_to_stored)(int64_t rows, int64_t width, const T* x, int64_t x_row, S* y, int64_t y_row);
  /// y = y (with `accumulate`) + rows index[0..count) of x, or its first rows (null): in that order, rounded
  /// once.
  void (*sum_rows)(int64_t count, const int32_t* index, int64_t width, const S* x, int64_t x_row,
                   bool accumulate, S* y);
  /// y[i] = start (a row of a tile, or null for zeros) + a[i] + b[i].
  void (*gather_sum)(int64_t rows, int64_t width, const T* start, Gathered<S> a, Gathered<S> b, T* y,
                     int64_t y_row);

  /// Rows 2r and 2r + 1 of x, or of act(x), side by side: y[r * y_row + 2 j] and the one behind; an odd last
  /// row is paired with zeros. For products over rows, in bfloat16; null elsewhere.
  void (*pair_rows)(int64_t rows, int64_t width, const T* x, int64_t x_row, Operand<S>* y, int64_t y_row);
  void (*pair_activated_rows)(Activation, int64_t rows, int64_t width, const S* x, int64_t x_row,
                              Operand<S>* y, int64_t y_row);
};

/// The best table for this CPU.
template <class S>
const TileOps<S>& tile_ops();
template <>
const TileOps<float>& tile_ops<float>();
template <>
const TileOps<double>& tile_ops<double>();
template <>
const TileOps<half>& tile_ops<half>();
template <>
const TileOps<bfloat16>& tile_ops<bfloat16>();
template <>
const TileOps<WideBfloat16>& tile_ops<WideBfloat16>();

}  // namespace meshgrad::cpu
