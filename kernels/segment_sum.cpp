// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/segment_sum.h>

#include <algorithm>

namespace meshgrad {
namespace {

int64_t items_of(const SegmentSum& args) {
  if (args.order.defined()) return args.order.rows();
  return args.index.defined() ? args.index.rows() : args.x.rows();
}

}  // namespace

void kernels::segment_sum(const SegmentSum& args, const Stream& stream) {
  constexpr std::string_view kOp = "segment_sum";
  check_defined(kOp, "out", args.out);
  check_defined(kOp, "x", args.x);
  const DType dtype = args.x.dtype();
  check_optional(kOp, "offsets", args.offsets, DType::i32, {args.segments.capacity + 1});
  const bool wide = args.out.dtype() == accumulator_of(dtype);
  check_tensor(kOp, "out", args.out, wide ? args.out.dtype() : dtype,
               {args.segments.capacity, args.out.width()});
  check_tensor(kOp, "x", args.x, dtype, {args.x.rows(), args.x.width()});
  if (args.order.defined()) check_tensor(kOp, "order", args.order, DType::i32, {args.order.rows()});
  check_optional(kOp, "index", args.index, DType::i32, {items_of(args)});
  check_optional(kOp, "weights", args.weights, DType::f32, {items_of(args)});
  if (args.mean && (args.accumulate || !args.offsets.defined()))
    throw invalid_argument(kOp, "offsets, and no sum to add to, for a mean",
                           args.accumulate ? "accumulate" : "no offsets");
  if (args.x_column < 0 || args.x_column + args.out.width() > args.x.width()) {
    throw invalid_argument(kOp, "columns of x that exist",
                           std::to_string(args.x_column) + " + " + std::to_string(args.out.width()) + " of " +
                               std::to_string(args.x.width()));
  }
  kernels::tables(args.out.device()).segment_sum.segment_sum(args, stream);
  note_work("segment_sum", args);
}

void kernels::gather(const Gather& args, const Stream& stream) {
  constexpr std::string_view kOp = "gather";
  check_defined(kOp, "x", args.x);
  check_defined(kOp, "out", args.out);
  const DType dtype = args.x.dtype();
  check_tensor(kOp, "out", args.out, dtype, {args.rows.capacity, args.out.width()});
  check_optional(kOp, "index", args.index, DType::i32, {args.rows.capacity});
  if (args.out_column < 0 || args.out_column + args.x.width() > args.out.width()) {
    throw invalid_argument(kOp, "columns of out that exist",
                           std::to_string(args.out_column) + " + " + std::to_string(args.x.width()) + " of " +
                               std::to_string(args.out.width()));
  }
  kernels::tables(args.out.device()).segment_sum.gather(args, stream);
  note_work("gather", args);
}

/// Of every row of x, or of those that `order` names, the columns that are summed; `accumulate` and `mean`
/// take one operation more a value of `out`. A row of x that several items have is read once.
Work work_of(const SegmentSum& args) {
  const auto element = static_cast<double>(size_of(args.x.dtype()));
  const int64_t items = items_of(args);
  const int64_t read = args.index.defined() ? std::min(items, args.x.rows()) : items;
  const auto values = static_cast<double>(items * args.out.width());
  const auto sums = static_cast<double>(args.out.elements());
  return {
      .flops = values * (args.weights.defined() ? 2.0 : 1.0) + (args.accumulate || args.mean ? sums : 0.0),
      .bytes = static_cast<double>(read * args.out.width()) * element +
               bytes_of(args.offsets, args.order, args.index, args.weights) +
               bytes_added(args.out, args.accumulate)};
}

/// A row of x that several rows of `out` have is read once.
Work work_of(const Gather& args) {
  const auto element = static_cast<double>(size_of(args.x.dtype()));
  const auto written = static_cast<double>(args.rows.capacity * args.x.width()) * element;
  return {.bytes = bytes_of(args.index) + std::min(bytes_of(args.x), written) + written};
}

}  // namespace meshgrad
