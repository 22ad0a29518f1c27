// SPDX-License-Identifier: Apache-2.0
// weight_gradients: d_weight += x^T d_z for all layers of one backward call together, on tensor cores, and
// the ordered sums of the column partials of the same call (gradients of biases and norm parameters). Two
// launches for up to kMaxWeightGradientJobs matrices.
//
// The result is small (128 x 128) and the sum long (every row), so the rows are divided into slices over the
// whole device, as in a split-K GEMM, and the slices' partial sums are added in a fixed order. Accumulation
// is in f32. The division and the order of every sum depend on the real row counts and the device alone:
// bit-identical from run to run, and for any capacity. Rows at or behind the real count are not read; a job
// without rows leaves its d_weight unchanged.
#pragma once
#include <meshgrad/engine/tensor.h>

#include <span>

namespace meshgrad::cuda {

inline constexpr int kMaxWeightGradientJobs = 8;
inline constexpr int kMaxColumnSumJobs = 16;
inline constexpr int64_t kMaxWeightGradientWidth = 256;

struct WeightGradientJob {
  Tensor x;         ///< [rows, in], f16 or bf16; rows may start at any element's address
  Tensor d_z;       ///< [rows, out], of the same dtype
  Tensor d_weight;  ///< [in, out] f32, accumulated into
  Rows rows;
};

/// target[c] += sum over all n rows of partials[row, first_column + c], in a fixed order.
struct ColumnSumJob {
  Tensor partials;  ///< [n, stride] f32
  int64_t first_column = 0;
  Tensor target;  ///< [width] f32, first_column + width <= stride
};

/// True for 16-bit storage and widths of 1 .. kMaxWeightGradientWidth.
bool weight_gradients_support(DType dtype, int64_t in, int64_t out);

/// Every job must be supported, all of one dtype, each target in one job only. More jobs or sums than fit
/// into one launch take further launches. `jobs` may be empty.
void weight_gradients(std::span<const WeightGradientJob> jobs, std::span<const ColumnSumJob> sums,
                      Runtime& runtime, const Stream& stream);

}  // namespace meshgrad::cuda
