// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/elementwise.h>

namespace meshgrad {

void kernels::activation_forward(const ActivationForward& args, const Stream& stream) {
  check_defined("activation.forward", "x", args.x);
  check_tensor("activation.forward", "y", args.y, args.x.dtype(), args.x.shape());
  kernels::tables(args.y.device()).elementwise.activation_forward(args, stream);
  note_work("activation_forward", args);
}

void kernels::activation_backward(const ActivationBackward& args, const Stream& stream) {
  check_defined("activation.backward", "x", args.x);
  check_tensor("activation.backward", "d_y", args.d_y, args.x.dtype(), args.x.shape());
  check_tensor("activation.backward", "d_x", args.d_x, args.x.dtype(), args.x.shape());
  kernels::tables(args.d_x.device()).elementwise.activation_backward(args, stream);
  note_work("activation_backward", args);
}

void kernels::norm_forward(const NormForward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "norm.forward";
  check_defined(kOp, "gain", args.gain);
  check_defined(kOp, "x", args.x);
  const DType dtype = args.x.dtype();
  const DType sums = accumulator_of(dtype);
  const int64_t width = args.gain.rows();
  if (args.norm == Norm::none) throw invalid_argument(kOp, "layer or rms", "none");
  check_tensor(kOp, "x", args.x, dtype, {args.rows.capacity, width});
  check_tensor(kOp, "gain", args.gain, sums, {width});
  check_optional(kOp, "bias", args.bias, sums, {width});
  check_tensor(kOp, "y", args.y, dtype, {args.rows.capacity, width});
  kernels::tables(args.y.device()).elementwise.norm_forward(args, runtime, stream);
  note_work("norm_forward", args);
}

void kernels::norm_backward(const NormBackward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "norm.backward";
  check_defined(kOp, "gain", args.gain);
  check_defined(kOp, "x", args.x);
  const DType dtype = args.x.dtype();
  const DType sums = accumulator_of(dtype);
  const int64_t width = args.gain.rows();
  if (args.norm == Norm::none) throw invalid_argument(kOp, "layer or rms", "none");
  check_tensor(kOp, "x", args.x, dtype, {args.rows.capacity, width});
  check_tensor(kOp, "d_y", args.d_y, dtype, {args.rows.capacity, width});
  check_tensor(kOp, "d_x", args.d_x, dtype, {args.rows.capacity, width});
  check_tensor(kOp, "gain", args.gain, sums, {width});
  check_tensor(kOp, "d_gain", args.d_gain, sums, {width});
  check_optional(kOp, "d_bias", args.d_bias, sums, {width});
  kernels::tables(args.d_x.device()).elementwise.norm_backward(args, runtime, stream);
  note_work("norm_backward", args);
}

void kernels::dropout(const Dropout& args, const Stream& stream) {
  check_defined("dropout", "y", args.y);
  check_tensor("dropout", "y", args.y, args.y.dtype(), {args.rows.capacity, args.y.width()});
  check_tensor("dropout", "x", args.x, args.y.dtype(), args.y.shape());
  check_dropout("dropout", args.key, args.rows.capacity);
  kernels::tables(args.y.device()).elementwise.dropout(args, stream);
  note_work("dropout", args);
}

void kernels::add_bias_forward(const AddBiasForward& args, const Stream& stream) {
  constexpr std::string_view kOp = "add_bias.forward";
  check_defined(kOp, "y", args.y);
  check_tensor(kOp, "x", args.x, args.y.dtype(), args.y.shape());
  check_tensor(kOp, "bias", args.bias, accumulator_of(args.y.dtype()), {args.y.width()});
  kernels::tables(args.y.device()).elementwise.add_bias_forward(args, stream);
  note_work("add_bias_forward", args);
}

void kernels::add_bias_backward(const AddBiasBackward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "add_bias.backward";
  check_defined(kOp, "d_y", args.d_y);
  check_tensor(kOp, "d_y", args.d_y, args.d_y.dtype(), {args.rows.capacity, args.d_y.width()});
  check_tensor(kOp, "d_bias", args.d_bias, accumulator_of(args.d_y.dtype()), {args.d_y.width()});
  kernels::tables(args.d_y.device()).elementwise.add_bias_backward(args, runtime, stream);
  note_work("add_bias_backward", args);
}

void kernels::maximum_forward(const MaximumForward& args, const Stream& stream) {
  constexpr std::string_view kOp = "maximum.forward";
  check_defined(kOp, "y", args.y);
  check_tensor(kOp, "a", args.a, args.y.dtype(), args.y.shape());
  check_tensor(kOp, "b", args.b, args.y.dtype(), args.y.shape());
  kernels::tables(args.y.device()).elementwise.maximum_forward(args, stream);
  note_work("maximum_forward", args);
}

void kernels::maximum_backward(const MaximumBackward& args, const Stream& stream) {
  constexpr std::string_view kOp = "maximum.backward";
  check_defined(kOp, "d_y", args.d_y);
  const DType dtype = args.d_y.dtype();
  check_tensor(kOp, "a", args.a, dtype, args.d_y.shape());
  check_tensor(kOp, "b", args.b, dtype, args.d_y.shape());
  check_optional(kOp, "d_a", args.d_a, dtype, args.d_y.shape());
  check_optional(kOp, "d_b", args.d_b, dtype, args.d_y.shape());
  kernels::tables(args.d_y.device()).elementwise.maximum_backward(args, stream);
  note_work("maximum_backward", args);
}

void kernels::axpby(const Axpby& args, const Stream& stream) {
  check_defined("axpby", "y", args.y);
  check_tensor("axpby", "x", args.x, args.y.dtype(), args.y.shape());
  kernels::tables(args.y.device()).elementwise.axpby(args, stream);
  note_work("axpby", args);
}

void kernels::cast(const Cast& args, const Stream& stream) {
  constexpr std::string_view kOp = "cast";
  check_defined(kOp, "from", args.from);
  check_defined(kOp, "to", args.to);
  if (args.from.elements() != args.to.elements() || !is_floating(args.from.dtype()) ||
      !is_floating(args.to.dtype())) {
    const auto text = [](const Tensor& tensor) {
      return std::string(name_of(tensor.dtype())) + tensor.shape().text();
    };
    throw invalid_argument(kOp, "as many elements of floating dtypes",
                           text(args.from) + " and " + text(args.to));
  }
  kernels::tables(args.to.device()).elementwise.cast(args, stream);
  note_work("cast", args);
}

Work work_of(const ActivationForward& args) { return {.bytes = bytes_of(args.x, args.y)}; }

Work work_of(const ActivationBackward& args) {
  return {.bytes = bytes_of(args.x, args.d_y) + bytes_added(args.d_x, args.accumulate)};
}

/// Mean and variance, and the scaled difference with gain and bias.
Work work_of(const NormForward& args) {
  constexpr double kFlops = 8.0;
  return {.flops = kFlops * static_cast<double>(args.x.elements()),
          .bytes = bytes_of(args.x, args.gain, args.bias, args.y)};
}

Work work_of(const NormBackward& args) {
  constexpr double kFlops = 12.0;
  return {.flops = kFlops * static_cast<double>(args.x.elements()),
          .bytes = bytes_of(args.x, args.gain, args.d_y) + bytes_added(args.d_x, args.accumulate) +
                   bytes_added(args.d_gain) + bytes_added(args.d_bias)};
}

Work work_of(const Dropout& args) {
  const auto values = static_cast<double>(args.y.elements());
  return {.flops = values * (args.accumulate ? 2.0 : 1.0),
          .bytes = bytes_of(args.x, args.key.row_keys) + bytes_added(args.y, args.accumulate)};
}

Work work_of(const AddBiasForward& args) {
  return {.flops = static_cast<double>(args.y.elements()), .bytes = bytes_of(args.x, args.bias, args.y)};
}

Work work_of(const AddBiasBackward& args) {
  return {.flops = static_cast<double>(args.d_y.elements()),
          .bytes = bytes_of(args.d_y) + bytes_added(args.d_bias)};
}

Work work_of(const MaximumForward& args) { return {.bytes = bytes_of(args.a, args.b, args.y)}; }

Work work_of(const MaximumBackward& args) {
  return {.bytes = bytes_of(args.a, args.b, args.d_y) + bytes_added(args.d_a, args.accumulate_d_a) +
                   bytes_added(args.d_b, args.accumulate_d_b)};
}

Work work_of(const Axpby& args) {
  return {.flops = 3.0 * static_cast<double>(args.y.elements()),
          .bytes = bytes_of(args.x) + bytes_added(args.y, args.b != 0.0)};
}

Work work_of(const Cast& args) { return {.bytes = bytes_of(args.from, args.to)}; }

}  // namespace meshgrad
