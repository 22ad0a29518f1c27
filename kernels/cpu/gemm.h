// SPDX-License-Identifier: Apache-2.0
// Small matrix products of the CPU kernels, and what is done with their sums while they are in registers: a
// tile is not read and written once more for a bias, an activation, a rounding or a column sum. Compiled once
// per instruction set by Google Highway and picked at run time.
#pragma once
#include <meshgrad/kernels/activation.h>
#include <meshgrad/kernels/cpu/row_ops.h>

namespace meshgrad::cpu {

/// B of a product, as panels of columns: the terms of (step k, panel p, column c) are at
/// data[p * panel_stride + k * row_stride + c * depth]. Readable up to whole panels.
template <class T>
struct PanelMatrix {
  const T* data;
  int64_t panel_stride;
  int64_t row_stride;
};

/// A of a product: the terms of (row m, step k) are at data[m * row + k * column]. It is read exactly, but
/// for pairs by columns (row = 2): they are readable up to multiples of 16 rows and 16 steps, like a tile.
template <class T>
struct Factor {
  const T* data;
  int64_t row, column, steps;
};

/// Where sums start: rows of a tile, one row for all (stride 0), or zeros (null). Readable like a tile.
template <class T>
struct Start {
  const T* rows = nullptr;
  int64_t stride = 0;
};

/// Memory that is read soon: a product fetches it into the second cache while it multiplies.
struct Ahead {
  const void* data = nullptr;
  int64_t bytes = 0;
};

/// C [m, n] = start + A B, summed by steps in ascending order, but for AMX (see products()).
template <class S>
struct Product {
  int64_t m, n;
  Factor<Operand<S>> a;
  PanelMatrix<Operand<S>> b;
  Start<Accumulator<S>> start;
  Ahead ahead = {};
};

// What becomes of C. Null pointers: not wanted, where they are the default and nothing else is said. Tiles
// and operands are buffers as in tile.h, with a stride of their own; pointers to S are exact.

/// z = C rounded to storage, and h = act(z) rounded to an operand, as rows of the next product's A. What is
/// kept of z for backward is max(z, 0) where act is relu (see MlpSaved).
template <class S>
struct HiddenResult {
  Activation activation = Activation::none;
  S* z = nullptr;  ///< kept
  int64_t z_stride = 0;
  bool stream_z = false;  ///< past the caches: z and its rows are aligned to 64 bytes, and not read soon
  Accumulator<S>* tile = nullptr;  ///< z, widened
  int64_t tile_stride = 0;
  Operand<S>* h = nullptr;
  int64_t h_stride = 0;
};

/// d = C act'(z), the gradient of a hidden layer; z may be what is kept of it. z and column_sums must be
/// given and, of bfloat16, rows and pairs.
template <class S>
struct GradientResult {
  using T = Accumulator<S>;
  Activation activation = Activation::none;
  const S* z = nullptr;
  int64_t z_stride = 0;
  T* tile = nullptr;
  int64_t tile_stride = 0;
  T* column_sums = nullptr;  ///< added to, rows in ascending order
  S* stored = nullptr;       ///< d rounded to storage
  int64_t stored_stride = 0;
  // Where tiles are no operands: d as rows of an A, and paired by rows as a B.
  Operand<S>* rows = nullptr;
  int64_t rows_stride = 0;
  Operand<S>* pairs = nullptr;
  int64_t pairs_stride = 0;
};

/// C + added, rounded to storage once. `added` may be where the result goes.
template <class S>
struct StoredResult {
  S* out;
  int64_t out_stride;
  const S* added = nullptr;
  int64_t added_stride = 0;
};

/// One table per instruction set and storage type.
template <class S>
struct Products {
  using T = Accumulator<S>;
  /// Columns of a panel; divides kPad.
  int64_t panel;
  void (*sum)(const Product<S>&, T* c, int64_t c_stride);  ///< c may be where sums start
  void (*hidden)(const Product<S>&, const HiddenResult<S>&);
  void (*gradient)(const Product<S>&, const GradientResult<S>&);
  void (*stored)(const Product<S>&, const StoredResult<S>&);
};

/// Whether this CPU multiplies pairs of bfloat16; elsewhere kernels take bf16 as WideBfloat16.
bool multiplies_pairs();

/// The best table for this CPU. That of bfloat16, where this multiplies pairs, does so in AMX (tdpbf16ps)
/// where there is that, or in AVX-512's own instruction (vdpbf16ps); both take subnormal numbers as 0, and
/// may write 0 for them. AMX adds in another order: the same bits for a row in whatever tile it comes, other
/// bits than without AMX.
template <class S>
const Products<S>& products();
template <>
const Products<float>& products<float>();
template <>
const Products<double>& products<double>();
template <>
const Products<half>& products<half>();
template <>
const Products<bfloat16>& products<bfloat16>();
template <>
const Products<WideBfloat16>& products<WideBfloat16>();

}  // namespace meshgrad::cpu
