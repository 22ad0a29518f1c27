// SPDX-License-Identifier: Apache-2.0
// reduction: the masked loss and sums of squares. Partial sums are cut in fixed slabs and added in order, in
// double, so that results do not depend on threads, nor on rows behind the real count. Beside predictions in
// 16 bits the targets are f32; a target that is undefined counts as 0.
#pragma once
#include <meshgrad/engine/tensor.h>

namespace meshgrad {

/// sum = sum over rows with mask != 0 of the squared error, weight = the number of such rows. Never a mean:
/// the caller divides by the weight of its whole window.
struct MaskedLossForward {
  Rows rows;
  Tensor prediction;        ///< [rows, width]
  Tensor target;            ///< [rows, width], of accumulator_of(prediction)
  Tensor mask;              ///< u8 [rows]
  Tensor sum;               ///< f64 scalar [1], written
  Tensor weight;            ///< f64 scalar [1], written
  bool accumulate = false;  ///< both are added to instead
};
/// d_prediction = seed * 2 (prediction - target) where mask != 0, else 0.
struct MaskedLossBackward {
  Rows rows;
  Tensor prediction, target, mask;
  Tensor seed;          ///< f64 scalar [1] in device memory: d(objective)/d(sum)
  Tensor d_prediction;  ///< [rows, width], written
};
/// sum += sum of squares of x, and non_finite = 1 if any element is not finite (left alone otherwise).
struct SumOfSquares {
  Tensor x;
  Tensor sum;         ///< f64 scalar [1]
  Tensor non_finite;  ///< i32 scalar [1], or undefined
};

struct ReductionKernels {
  void (*masked_loss_forward)(const MaskedLossForward&, Runtime&, const Stream&);
  void (*masked_loss_backward)(const MaskedLossBackward&, const Stream&);
  void (*sum_of_squares)(const SumOfSquares&, Runtime&, const Stream&);
};

void masked_loss_forward(const MaskedLossForward& args, Runtime& runtime, const Stream& stream);
void masked_loss_backward(const MaskedLossBackward& args, const Stream& stream);
void sum_of_squares(const SumOfSquares& args, Runtime& runtime, const Stream& stream);

}  // namespace meshgrad
