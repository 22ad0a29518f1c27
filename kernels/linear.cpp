// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/linear.h>

namespace meshgrad {

void kernels::linear_forward(const LinearForward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "linear.forward";
  check_defined(kOp, "weight", args.weight);
  const DType dtype = args.weight.dtype();
  const int64_t in = args.weight.rows();
  const int64_t out = args.weight.width();
  check_tensor(kOp, "weight", args.weight, dtype, {in, out});
  check_tensor(kOp, "x", args.x, dtype, {args.rows.capacity, in});
  check_optional(kOp, "bias", args.bias, accumulator_of(dtype), {out});
  check_tensor(kOp, "y", args.y, dtype, {args.rows.capacity, out});
  kernels::tables(args.y.device()).linear.forward(args, runtime, stream);
  note_work("linear_forward", args);
}

void kernels::linear_backward(const LinearBackward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "linear.backward";
  check_defined(kOp, "weight", args.weight);
  const DType dtype = args.weight.dtype();
  const int64_t in = args.weight.rows();
  const int64_t out = args.weight.width();
  check_tensor(kOp, "d_y", args.d_y, dtype, {args.rows.capacity, out});
  if (args.d_weight.defined()) check_defined(kOp, "x", args.x);
  check_optional(kOp, "x", args.x, dtype, {args.rows.capacity, in});
  check_tensor(kOp, "weight", args.weight, dtype, {in, out});
  check_optional(kOp, "d_x", args.d_x, dtype, {args.rows.capacity, in});
  check_optional(kOp, "d_weight", args.d_weight, accumulator_of(dtype), {in, out});
  check_optional(kOp, "d_bias", args.d_bias, accumulator_of(dtype), {out});
  kernels::tables(args.d_y.device()).linear.backward(args, runtime, stream);
  note_work("linear_backward", args);
}

Work work_of(const LinearForward& args) {
  return {.flops = product_flops(args.rows.capacity, args.weight),
          .bytes = bytes_of(args.x, args.weight, args.bias) + bytes_added(args.y, args.accumulate)};
}

Work work_of(const LinearBackward& args) {
  const double product = product_flops(args.rows.capacity, args.weight);
  return {.flops = (args.d_x.defined() ? product : 0.0) + (args.d_weight.defined() ? product : 0.0),
          .bytes = bytes_of(args.d_y) + (args.d_weight.defined() ? bytes_of(args.x) : 0.0) +
                   (args.d_x.defined() ? bytes_of(args.weight) : 0.0) +
                   bytes_added(args.d_x, args.accumulate_d_x) + bytes_added(args.d_weight) +
                   bytes_added(args.d_bias)};
}

}  // namespace meshgrad
