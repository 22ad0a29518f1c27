// SPDX-License-Identifier: Apache-2.0
// Small matrix multiplications of the CPU kernels with fused epilogues: bias, activation, rounding and column
// sums are applied to the sums while they are in registers, which saves a pass over the tile. Compiled once
// per instruction set by Google Highway; isa() picks one at run time.
#pragma once
#include <meshgrad/kernels/activation.h>
#include <meshgrad/kernels/cpu/row_ops.h>

namespace meshgrad::cpu {

/// Operand B, packed in panels of columns: the terms of (step k, panel p, column c) are at
/// data[p * panel_stride + k * row_stride + c * depth], depth = kDepth. Must be readable up to whole panels.
template <class T>
struct PanelMatrix {
  const T* data;
  int64_t panel_stride;
  int64_t row_stride;
};

/// Operand A: the terms of (row m, step k) are at data[m * row + k * column]; a transposed matrix has row =
/// depth. It is read exactly, except transposed pairs (row = 2), which must be readable up to multiples of 16
/// rows and 16 steps, like a tile.
template <class T>
struct StridedMatrix {
  const T* data;
  int64_t row, column, steps;
};

/// Initial value of the accumulators: rows of a tile, one row for all (stride 0: a bias), or zeros (null).
/// Must be readable like a tile.
template <class T>
struct InitialSums {
  const T* rows = nullptr;
  int64_t stride = 0;
};

/// Memory that will be read soon: a multiplication prefetches it into the L2 cache while it computes.
struct Prefetch {
  const void* data = nullptr;
  int64_t bytes = 0;
};

/// C [m, n] = start + A B. Steps are summed in ascending order, except by AMX.
template <class S>
struct Gemm {
  int64_t m, n;
  StridedMatrix<Operand<S>> a;
  PanelMatrix<Operand<S>> b;
  InitialSums<Accumulator<S>> start;
  Prefetch prefetch = {};
};

// Epilogues: what is done with C before it leaves registers. An output whose default is null is optional.
// Tiles and operands are buffers as in row_ops.h, each with its own leading dimension; pointers to S are
// accessed exactly.

/// A hidden layer: z = C rounded to storage, h = act(z) rounded to an operand, as rows of the next layer's A.
/// With relu the saved z is max(z, 0) (see MlpSaved).
template <class S>
struct HiddenResult {
  Activation activation = Activation::none;
  S* z = nullptr;  ///< saved for backward
  int64_t z_stride = 0;
  bool stream_z = false;  ///< non-temporal stores: not read soon; z and its rows are aligned to 64 bytes
  Accumulator<S>* tile = nullptr;  ///< z in the accumulation type
  int64_t tile_stride = 0;
  Operand<S>* h = nullptr;
  int64_t h_stride = 0;
};

/// The gradient of a hidden layer: d = C act'(z), with z as saved. z and column_sums are required; so are
/// rows and pairs for bfloat16.
template <class S>
struct GradientResult {
  using T = Accumulator<S>;
  Activation activation = Activation::none;
  const S* z = nullptr;
  int64_t z_stride = 0;
  T* tile = nullptr;
  int64_t tile_stride = 0;
  T* column_sums = nullptr;  ///< bias gradient, added to in ascending order of rows
  S* stored = nullptr;       ///< d rounded to storage
  int64_t stored_stride = 0;
  // For bfloat16, whose tiles are not operands: d as rows of an A, and with rows interleaved as a B.
  Operand<S>* rows = nullptr;
  int64_t rows_stride = 0;
  Operand<S>* pairs = nullptr;
  int64_t pairs_stride = 0;
};

/// C + added, rounded to storage once. `added` may alias `out`.
template <class S>
struct StoredResult {
  S* out;
  int64_t out_stride;
  const S* added = nullptr;
  int64_t added_stride = 0;
};

/// The multiplications, by epilogue: one table per instruction set and storage type.
template <class S>
struct GemmOps {
  using T = Accumulator<S>;
  int64_t panel;                                        ///< columns of a panel of B; divides kPad
  void (*sum)(const Gemm<S>&, T* c, int64_t c_stride);  ///< a tile of sums; c may alias start
  void (*hidden)(const Gemm<S>&, const HiddenResult<S>&);
  void (*gradient)(const Gemm<S>&, const GradientResult<S>&);
  void (*stored)(const Gemm<S>&, const StoredResult<S>&);
};

/// Whether this CPU has bfloat16 dot products of pairs. Otherwise kernels use WideBfloat16 for bf16.
bool multiplies_bf16_pairs();

/// The best table for this CPU. For bfloat16 pairs it uses AMX (tdpbf16ps) if available, else AVX-512
/// (vdpbf16ps); both treat subnormal numbers as 0. AMX adds in another order: its bits differ from those
/// without AMX, but a row gets the same bits in whichever tile it is computed.
template <class S>
const GemmOps<S>& gemm_ops();
template <>
const GemmOps<float>& gemm_ops<float>();
template <>
const GemmOps<double>& gemm_ops<double>();
template <>
const GemmOps<half>& gemm_ops<half>();
template <>
const GemmOps<bfloat16>& gemm_ops<bfloat16>();
template <>
const GemmOps<WideBfloat16>& gemm_ops<WideBfloat16>();

}  // namespace meshgrad::cpu
