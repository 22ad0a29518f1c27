// SPDX-License-Identifier: Apache-2.0
// reduction: the masked loss and sums of squares, in f64. Partial sums belong to slabs of fixed size and are
// added in order, so results depend neither on threads nor on the capacity beyond the real rows. Targets have
// the accumulation dtype of the predictions (f32 beside 16 bits); an undefined target counts as 0. Throws
// InvalidArgument for a shape or dtype that does not fit.
#pragma once
#include <meshgrad/engine/tensor.h>
#include <meshgrad/kernels/loss_form.h>
#include <meshgrad/kernels/work.h>

namespace meshgrad {

/// sum = sum over rows with mask != 0 of (prediction - target)^2, or what `form` makes of it; weight = number
/// of such rows, or the sum of their weights. Not a mean: the caller divides by the weight of all
/// micro-batches of a step.
struct MaskedLossForward {
  Rows rows;
  Tensor prediction;        ///< [rows, width]
  Tensor target;            ///< [rows, width], of accumulator_of(prediction)
  Tensor mask;              ///< u8 [rows]
  Tensor sum;               ///< f64 scalar [1], written
  Tensor weight;            ///< f64 scalar [1], written
  bool accumulate = false;  ///< sum and weight are added to instead
  LossForm form = {};
};
/// d_prediction = seed * 2 (prediction - target), or the slope of `form`, where mask != 0, else 0.
struct MaskedLossBackward {
  Rows rows;
  Tensor prediction, target, mask;
  Tensor seed;          ///< f64 scalar [1] in device memory: gradient of the loss by `sum`
  Tensor d_prediction;  ///< [rows, width], written
  LossForm form = {};
};
/// sum += sum of squares of x; non_finite = 1 if an element is not finite, unchanged otherwise.
struct SumOfSquares {
  Tensor x;           ///< f32 or f64, any shape
  Tensor sum;         ///< f64 scalar [1]
  Tensor non_finite;  ///< i32 scalar [1], or undefined
};

Work work_of(const MaskedLossForward& args);
Work work_of(const MaskedLossBackward& args);
Work work_of(const SumOfSquares& args);

struct ReductionKernels {
  void (*masked_loss_forward)(const MaskedLossForward&, Runtime&, const Stream&);
  void (*masked_loss_backward)(const MaskedLossBackward&, const Stream&);
  void (*sum_of_squares)(const SumOfSquares&, Runtime&, const Stream&);
};

namespace kernels {
void masked_loss_forward(const MaskedLossForward& args, Runtime& runtime, const Stream& stream);
void masked_loss_backward(const MaskedLossBackward& args, const Stream& stream);
void sum_of_squares(const SumOfSquares& args, Runtime& runtime, const Stream& stream);
}  // namespace kernels

}  // namespace meshgrad
