// SPDX-License-Identifier: Apache-2.0
// The vector primitives of the CPU kernels: row operations on tiles of rows that stay in cache (matrix
// multiplication is in gemm.h). Compiled once per instruction set by Google Highway; isa() picks one at run
// time.
#pragma once
#include <meshgrad/engine/dtype.h>
#include <meshgrad/kernels/activation.h>

#include <cstdint>
#include <type_traits>

namespace meshgrad::cpu {

/// Columns of a tile buffer are padded to this, so that vectors may run past the width.
inline constexpr int64_t kPad = 64;
constexpr int64_t padded(int64_t width) { return (width + kPad - 1) / kPad * kPad; }

/// bfloat16 in memory that matrix multiplication widens to float, like half: for CPUs without bfloat16 dot
/// products.
struct WideBfloat16 : bfloat16 {
  using bfloat16::bfloat16;
};
static_assert(sizeof(WideBfloat16) == sizeof(bfloat16) && std::is_trivially_copyable_v<WideBfloat16>);
template <class S>
inline constexpr bool kIsBfloat16 = std::is_base_of_v<bfloat16, S>;

/// The element type that matrix multiplication reads for a storage type S: bfloat16 itself, in pairs;
/// otherwise the accumulation type.
template <class S>
using Operand = std::conditional_t<std::is_same_v<S, bfloat16>, bfloat16, Accumulator<S>>;
/// Terms of a sum that one step of a matrix multiplication takes. In pairs (2), two consecutive terms of a
/// row of A are adjacent in memory, and so are those of a column of B.
template <class S>
inline constexpr int64_t kDepth = std::is_same_v<S, bfloat16> ? 2 : 1;
/// Rows of a tile, which passes through all layers. 96 is a multiple of the 6 rows that a register block
/// holds, and large enough to amortise reading and writing a weight's gradient per tile; the tiles fit in the
/// L2 cache. 64 rows of bfloat16 fill AMX's tile registers both as rows and, in pairs, as steps.
template <class S>
inline constexpr int64_t kTileRows = kDepth<S> == 2 ? 64 : 96;

/// Rows in storage, gathered: row i is rows[index[i]], or rows[i] (index null), or zeros (rows null).
template <class S>
struct Gathered {
  const S* rows = nullptr;
  const int32_t* index = nullptr;
};

/// A sum of rows. Item i is, with k = order[i], the row index[k] times weights[k]; null: k = i, row k, 1.
struct RowSum {
  bool accumulate = false;  ///< adds to what is there
  bool mean = false;        ///< divides by the number of items, if there is one
  const int32_t* order = nullptr;
  const int32_t* index = nullptr;
  const float* weights = nullptr;
};

/// Outputs of y = norm(z) * gain + bias. Null: not written.
template <class S>
struct NormResult {
  using T = Accumulator<S>;
  const S* residual = nullptr;    ///< [rows, width]
  S* out = nullptr;               ///< [rows, width]: y, plus the residual if there is one
  T* tile = nullptr;              ///< y, in the accumulation type
  int64_t tile_row = 0;           ///< its leading dimension
  bool residual_in_tile = false;  ///< adds the residual in `tile`, too
};

/// One table per instruction set and storage type S, with accumulation type T. `x_row` is the leading
/// dimension of x: the elements from one row to the next. "Tile" arguments are buffers of T with a leading
/// dimension of at least padded(width); columns past the width are undefined and may be overwritten. All
/// other pointers are accessed exactly. S may be T: conversions are then copies.
template <class S>
struct RowOps {
  using T = Accumulator<S>;
  const char* isa;

  /// y = act(z); and in place of d_h, d_z = d_h * act'(z).
  void (*activate)(Activation, int64_t rows, int64_t width, const S* z, int64_t z_row, T* y, int64_t y_row);
  void (*activate_backward)(Activation, int64_t rows, int64_t width, const S* z, int64_t z_row, T* d,
                            int64_t d_row);
  /// Each row by two passes over z in cache: statistics, then the result.
  void (*norm)(Norm, int64_t rows, int64_t width, const T* z, int64_t z_row, const T* gain, const T* bias,
               T epsilon, const NormResult<S>&);
  /// d_z from d_y, which may be the same tile. Adds to d_gain, to d_bias and to d_z_sums (column sums of d_z,
  /// the gradient of the bias before the norm); the last two may be null.
  void (*norm_backward)(Norm, int64_t rows, int64_t width, const S* z, int64_t z_row, const T* gain,
                        T epsilon, const T* d_y, int64_t d_y_row, T* d_z, int64_t d_z_row, T* d_gain,
                        T* d_bias, T* d_z_sums);

  /// Between storage and tiles, row by row: y = x (load, store) and y += x; rounded when y is storage.
  void (*load)(int64_t rows, int64_t width, const S* x, int64_t x_row, T* y, int64_t y_row);
  void (*store)(int64_t rows, int64_t width, const T* x, int64_t x_row, S* y, int64_t y_row);
  void (*add)(int64_t rows, int64_t width, const S* x, int64_t x_row, T* y, int64_t y_row);
  void (*add_to_stored)(int64_t rows, int64_t width, const T* x, int64_t x_row, S* y, int64_t y_row);
  /// y = the sum over items begin <= i < end of rows of x: in that order, rounded once, or not (wide).
  void (*sum_rows)(const RowSum&, int64_t begin, int64_t end, int64_t width, const S* x, int64_t x_row, S* y);
  void (*sum_rows_wide)(const RowSum&, int64_t begin, int64_t end, int64_t width, const S* x, int64_t x_row,
                        T* y);
  /// y[i] = start + a[i] + b[i]; start is one row of a tile for all i, or null for zeros.
  void (*gather_sum)(int64_t rows, int64_t width, const T* start, Gathered<S> a, Gathered<S> b, T* y,
                     int64_t y_row);

  /// Interleaves rows 2r and 2r + 1 of x, or of act(x): y[r * y_row + 2 j] = x[2r][j], and x[2r + 1][j] after
  /// it. An odd last row is paired with zeros. For bfloat16 sums over rows (weight gradients); null for other
  /// types.
  void (*pair_rows)(int64_t rows, int64_t width, const T* x, int64_t x_row, Operand<S>* y, int64_t y_row);
  void (*pair_activated_rows)(Activation, int64_t rows, int64_t width, const S* x, int64_t x_row,
                              Operand<S>* y, int64_t y_row);
};

/// The best table for this CPU.
template <class S>
const RowOps<S>& row_ops();
template <>
const RowOps<float>& row_ops<float>();
template <>
const RowOps<double>& row_ops<double>();
template <>
const RowOps<half>& row_ops<half>();
template <>
const RowOps<bfloat16>& row_ops<bfloat16>();
template <>
const RowOps<WideBfloat16>& row_ops<WideBfloat16>();

}  // namespace meshgrad::cpu
