// SPDX-License-Identifier: Apache-2.0
// weight_gradients: d_weight += x^T d_z for the layers of one backward call together, on tensor cores, with
// the rows cut into slices over the whole device; and the ordered sums of the columns that the same call left
// as partials (biases, norm parameters). One launch for up to kMaxWeightGradientJobs matrices.
//
// Accumulation is f32. The cut into slices and the order of every sum follow from the real row counts and the
// device alone: bit-identical from run to run, and for any capacity. Rows at or behind the real count are not
// read; a job without rows leaves its d_weight as it was.
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

/// target[c] += sum over rows of partials[row, first_column + c], all n rows, in fixed order.
struct ColumnSumJob {
  Tensor partials;  ///< [n, stride] f32
  int64_t first_column = 0;
  Tensor target;  ///< [width] f32, first_column + width <= stride
};

/// True for 16-bit storage and widths of 1 .. kMaxWeightGradientWidth.
bool weight_gradients_cover(DType dtype, int64_t in, int64_t out);

/// Every job covered, all of one dtype, each target in one job; more jobs or sums than one launch takes cost
/// another. With no jobs, dtype is that of nothing: the sums alone run.
void weight_gradients(std::span<const WeightGradientJob> jobs, std::span<const ColumnSumJob> sums,
                      Runtime& runtime, const Stream& stream);

}  // namespace meshgrad::cuda
