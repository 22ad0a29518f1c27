// SPDX-License-Identifier: Apache-2.0
// The vector primitives of the CPU kernels: small matrix products and row operations on tiles of rows that
// stay in cache. Compiled once per instruction set by Google Highway and picked at run time.
#pragma once
#include <meshgrad/kernels/activation.h>

#include <cstdint>

namespace meshgrad::cpu {

/// Rows that travel together through all layers: 48 rows of 128 floats are 24 KiB, and a multiple of the 6
/// rows that the matrix kernel holds in registers.
inline constexpr int64_t kTileRows = 48;
/// Columns of a tile buffer are padded to this, so that vectors may run past the width.
inline constexpr int64_t kPad = 64;
constexpr int64_t padded(int64_t width) { return (width + kPad - 1) / kPad * kPad; }

/// B of a product, as panels of kPanel<T> columns: element (k, panel p, column c) is at
/// data[p * panel_stride + k * row_stride + c].
template <class T>
struct PanelMatrix {
  const T* data;
  int64_t panel_stride;
  int64_t row_stride;
};

/// One table per instruction set and type. "Tile" arguments are buffers with a leading dimension of at least
/// padded(width); columns behind the width may hold anything and may be overwritten. Other pointers are
/// exact.
template <class T>
struct TileOps {
  /// Columns of a panel.
  int64_t panel;
  const char* isa;

  /// C[m, n] = or += sum_k A[m, k] B[k, n], k ascending. A[m, k] is at a[m * a_row + k * a_column]; C is a
  /// tile.
  void (*gemm)(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, int64_t a_column, PanelMatrix<T> b,
               T* c, int64_t c_row, bool accumulate);
  /// y = act(z), and d_z = d_h * act'(z) in place of d_h.
  void (*activate)(Activation, int64_t rows, int64_t width, const T* z, int64_t z_row, T* y, int64_t y_row);
  void (*activate_backward)(Activation, int64_t rows, int64_t width, const T* z, int64_t z_row, T* d,
                            int64_t d_row);
  /// y = norm(z) * gain + bias.
  void (*norm)(Norm, int64_t rows, int64_t width, const T* z, int64_t z_row, const T* gain, const T* bias,
               T epsilon, T* y, int64_t y_row);
  /// d_z from d_y (may be the same tile); adds to d_gain and d_bias.
  void (*norm_backward)(Norm, int64_t rows, int64_t width, const T* z, int64_t z_row, const T* gain,
                        T epsilon, const T* d_y, int64_t d_y_row, T* d_z, int64_t d_z_row, T* d_gain,
                        T* d_bias);
  /// sums[j] += sum over rows of x[i, j].
  void (*column_sums)(int64_t rows, int64_t width, const T* x, int64_t x_row, T* sums);
  /// y[i] = x[i]; y[i] += x[i], by rows.
  void (*copy)(int64_t rows, int64_t width, const T* x, int64_t x_row, T* y, int64_t y_row);
  void (*add)(int64_t rows, int64_t width, const T* x, int64_t x_row, T* y, int64_t y_row);
  /// y[i] = x (a row, or null for zeros).
  void (*broadcast)(int64_t rows, int64_t width, const T* x, T* y, int64_t y_row);
  /// y[i] += x[index[i]], and y[index[i]] += x[i], i ascending.
  void (*gather_add)(int64_t rows, int64_t width, const T* x, int64_t x_row, const int32_t* index, T* y,
                     int64_t y_row);
  void (*scatter_add)(int64_t rows, int64_t width, const T* x, int64_t x_row, const int32_t* index, T* y,
                      int64_t y_row);
};

/// The best table for this CPU.
template <class T>
const TileOps<T>& tile_ops();
template <>
const TileOps<float>& tile_ops<float>();
template <>
const TileOps<double>& tile_ops<double>();

}  // namespace meshgrad::cpu
