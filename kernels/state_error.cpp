// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/state_error.h>

#include <fmt/format.h>

#include <string>

namespace meshgrad {
namespace {

/// Values can be read only on the CPU.
void check_source(std::string_view op, const Tensor& source, int64_t width, const Stream& stream) {
  if (source.device().kind != DeviceKind::cpu || stream.dry()) return;
  for (const int32_t column : source.values<int32_t>()) {
    if (column < width) continue;
    throw invalid_argument(std::string(op) + ": source", fmt::format("columns below {}", width),
                           std::to_string(column));
  }
}

}  // namespace

void kernels::accumulate_error_forward(const AccumulateErrorForward& args, const Stream& stream) {
  constexpr std::string_view kOp = "accumulate_error.forward";
  check_defined(kOp, "prediction", args.prediction);
  const Shape shape{args.rows.capacity, args.prediction.width()};
  const DType sums = accumulator_of(args.prediction.dtype());
  check_tensor(kOp, "prediction", args.prediction, args.prediction.dtype(), shape);
  check_optional(kOp, "before", args.before, sums, shape);
  check_optional(kOp, "target", args.target, sums, shape);
  check_tensor(kOp, "mask", args.mask, DType::u8, {args.rows.capacity});
  check_tensor(kOp, "after", args.after, sums, shape);
  kernels::tables(args.after.device()).state_error.accumulate_error_forward(args, stream);
  note_work("accumulate_error_forward", args);
}

void kernels::accumulate_error_backward(const AccumulateErrorBackward& args, const Stream& stream) {
  constexpr std::string_view kOp = "accumulate_error.backward";
  check_defined(kOp, "d_after", args.d_after);
  const Shape shape{args.rows.capacity, args.d_after.width()};
  const DType sums = args.d_after.dtype();
  const DType stored = args.d_prediction.defined() ? args.d_prediction.dtype() : sums;
  check_tensor(kOp, "d_after", args.d_after, accumulator_of(stored), shape);
  check_tensor(kOp, "mask", args.mask, DType::u8, {args.rows.capacity});
  check_optional(kOp, "d_before", args.d_before, sums, shape);
  check_optional(kOp, "d_prediction", args.d_prediction, stored, shape);
  kernels::tables(args.d_after.device()).state_error.accumulate_error_backward(args, stream);
  note_work("accumulate_error_backward", args);
}

void kernels::add_columns_forward(const AddColumnsForward& args, const Stream& stream) {
  constexpr std::string_view kOp = "add_columns.forward";
  check_defined(kOp, "given", args.given);
  check_defined(kOp, "shift", args.shift);
  const int64_t columns = args.given.width();
  const DType sums = accumulator_of(args.given.dtype());
  check_tensor(kOp, "given", args.given, args.given.dtype(), {args.rows.capacity, columns});
  check_tensor(kOp, "shift", args.shift, sums, {args.rows.capacity, args.shift.width()});
  check_tensor(kOp, "source", args.source, DType::i32, {columns});
  check_tensor(kOp, "ratio", args.ratio, sums, {columns});
  check_source(kOp, args.source, args.shift.width(), stream);
  check_tensor(kOp, "shifted", args.shifted, args.given.dtype(), {args.rows.capacity, columns});
  kernels::tables(args.shifted.device()).state_error.add_columns_forward(args, stream);
  note_work("add_columns_forward", args);
}

void kernels::add_columns_backward(const AddColumnsBackward& args, const Stream& stream) {
  constexpr std::string_view kOp = "add_columns.backward";
  check_defined(kOp, "d_shifted", args.d_shifted);
  check_defined(kOp, "d_shift", args.d_shift);
  const int64_t columns = args.d_shifted.width();
  const DType sums = accumulator_of(args.d_shifted.dtype());
  check_tensor(kOp, "d_shifted", args.d_shifted, args.d_shifted.dtype(), {args.rows.capacity, columns});
  check_tensor(kOp, "source", args.source, DType::i32, {columns});
  check_tensor(kOp, "ratio", args.ratio, sums, {columns});
  check_source(kOp, args.source, args.d_shift.width(), stream);
  check_tensor(kOp, "d_shift", args.d_shift, sums, {args.rows.capacity, args.d_shift.width()});
  kernels::tables(args.d_shift.device()).state_error.add_columns_backward(args, stream);
  note_work("add_columns_backward", args);
}

Work work_of(const AccumulateErrorForward& args) {
  const double terms = (args.before.defined() ? 1.0 : 0.0) + (args.target.defined() ? 1.0 : 0.0);
  return {.flops = terms * static_cast<double>(args.after.elements()),
          .bytes = bytes_of(args.before, args.prediction, args.target, args.mask, args.after)};
}

Work work_of(const AccumulateErrorBackward& args) {
  return {.bytes = bytes_of(args.d_after, args.mask) + bytes_added(args.d_before, args.accumulate_d_before) +
                   bytes_added(args.d_prediction, args.accumulate_d_prediction)};
}

/// Each column of the shift has one column of the inputs at most.
Work work_of(const AddColumnsForward& args) {
  return {.flops = 2.0 * static_cast<double>(args.shift.elements()),
          .bytes = bytes_of(args.given, args.shift, args.source, args.ratio, args.shifted)};
}

/// Of d_shifted only the columns with a source need to be read: as many as d_shift has, where each has one.
Work work_of(const AddColumnsBackward& args) {
  const auto values = static_cast<double>(args.d_shift.elements());
  return {.flops = 2.0 * values,
          .bytes = values * static_cast<double>(size_of(args.d_shifted.dtype())) +
                   bytes_of(args.source, args.ratio) + bytes_added(args.d_shift, args.accumulate)};
}

}  // namespace meshgrad
