// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/reduction.h>

namespace meshgrad {
namespace {

void check_form(std::string_view op, const LossForm& form, const Tensor& prediction, const Shape& shape) {
  const DType dtype = accumulator_of(prediction.dtype());
  check_optional(op, "row_weights", form.row_weights, dtype, {shape[0]});
  check_optional(op, "column_weights", form.column_weights, dtype, {shape[1]});
}

}  // namespace

void kernels::masked_loss_forward(const MaskedLossForward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "masked_loss.forward";
  check_defined(kOp, "prediction", args.prediction);
  const Shape shape{args.rows.capacity, args.prediction.width()};
  check_tensor(kOp, "prediction", args.prediction, args.prediction.dtype(), shape);
  check_optional(kOp, "target", args.target, accumulator_of(args.prediction.dtype()), shape);
  check_tensor(kOp, "mask", args.mask, DType::u8, {args.rows.capacity});
  check_form(kOp, args.form, args.prediction, shape);
  check_tensor(kOp, "sum", args.sum, DType::f64, {1});
  check_tensor(kOp, "weight", args.weight, DType::f64, {1});
  kernels::tables(args.prediction.device()).reduction.masked_loss_forward(args, runtime, stream);
  note_work("masked_loss_forward", args);
}

void kernels::masked_loss_backward(const MaskedLossBackward& args, const Stream& stream) {
  constexpr std::string_view kOp = "masked_loss.backward";
  check_defined(kOp, "prediction", args.prediction);
  const Shape shape{args.rows.capacity, args.prediction.width()};
  check_tensor(kOp, "prediction", args.prediction, args.prediction.dtype(), shape);
  check_optional(kOp, "target", args.target, accumulator_of(args.prediction.dtype()), shape);
  check_tensor(kOp, "mask", args.mask, DType::u8, {args.rows.capacity});
  check_form(kOp, args.form, args.prediction, shape);
  check_tensor(kOp, "seed", args.seed, DType::f64, {1});
  check_tensor(kOp, "d_prediction", args.d_prediction, args.prediction.dtype(), shape);
  kernels::tables(args.prediction.device()).reduction.masked_loss_backward(args, stream);
  note_work("masked_loss_backward", args);
}

void kernels::sum_of_squares(const SumOfSquares& args, Runtime& runtime, const Stream& stream) {
  check_defined("sum_of_squares", "x", args.x);
  check_tensor("sum_of_squares", "sum", args.sum, DType::f64, {1});
  check_optional("sum_of_squares", "non_finite", args.non_finite, DType::i32, {1});
  kernels::tables(args.x.device()).reduction.sum_of_squares(args, runtime, stream);
  note_work("sum_of_squares", args);
}

/// Difference, cost and sum of each value, whatever the form.
Work work_of(const MaskedLossForward& args) {
  return {.flops = 3.0 * static_cast<double>(args.prediction.elements()),
          .bytes = bytes_of(args.prediction, args.target, args.mask, args.form.row_weights,
                            args.form.column_weights)};
}

Work work_of(const MaskedLossBackward& args) {
  return {.flops = 3.0 * static_cast<double>(args.prediction.elements()),
          .bytes = bytes_of(args.prediction, args.target, args.mask, args.form.row_weights,
                            args.form.column_weights, args.d_prediction)};
}

Work work_of(const SumOfSquares& args) {
  return {.flops = 2.0 * static_cast<double>(args.x.elements()), .bytes = bytes_of(args.x)};
}

}  // namespace meshgrad
