// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/solver_arrays.h>

#include <fmt/format.h>

#include <string>

namespace meshgrad {
namespace {

/// [rows, any width] that reaches to `end` columns; `one_row`: or one row.
void check_columns(std::string_view op, std::string_view argument, const Tensor& tensor, int64_t rows,
                   int64_t first, int64_t end, bool one_row = false) {
  check_defined(op, argument, tensor);
  const bool fits = tensor.rows() == rows || (one_row && tensor.rows() == 1);
  if (fits && tensor.shape().rank() == 2 && first >= 0 && tensor.width() >= end) return;
  throw invalid_argument(fmt::format("{}: {}", op, argument),
                         fmt::format("[{}, {} or more] from column 0 on", rows, end),
                         fmt::format("{} from column {} on", tensor.shape().text(), first));
}

void check_number(std::string_view op, std::string_view argument, const Tensor& tensor) {
  if (tensor.dtype() == DType::f32 || tensor.dtype() == DType::f64) return;
  throw invalid_argument(fmt::format("{}: {}", op, argument), "f32 or f64",
                         std::string(name_of(tensor.dtype())));
}

}  // namespace

void kernels::map_columns(const MapColumns& args, const Stream& stream) {
  constexpr std::string_view kOp = "map_columns";
  const int64_t rows = args.rows.capacity;
  check_columns(kOp, "from", args.from, rows, args.from_column, args.from_column + args.columns, true);
  check_number(kOp, "from", args.from);
  if (args.minus.defined()) {
    check_columns(kOp, "minus", args.minus, rows, args.minus_column, args.minus_column + args.columns);
    check_tensor(kOp, "minus", args.minus, args.from.dtype(), args.minus.shape());
  }
  check_optional(kOp, "scale", args.scale, DType::f64, {args.columns, 2});
  check_optional(kOp, "kept", args.kept, DType::u8, {rows});
  check_columns(kOp, "to", args.to, rows, args.to_column, args.to_column + args.columns);
  kernels::tables(args.to.device()).solver_arrays.map_columns(args, stream);
  note_work("map_columns", args);
}

void kernels::advance_state(const AdvanceState& args, const Stream& stream) {
  constexpr std::string_view kOp = "advance_state";
  check_defined(kOp, "prediction", args.prediction);
  const int64_t width = args.prediction.width();
  const Shape shape{args.rows.capacity, width};
  check_tensor(kOp, "prediction", args.prediction, args.prediction.dtype(), shape);
  check_tensor(kOp, "scale", args.scale, DType::f64, {width, 2});
  check_tensor(kOp, "values", args.values, DType::u8, {width});
  check_tensor(kOp, "mask", args.mask, DType::u8, {args.rows.capacity});
  check_tensor(kOp, "current", args.current, DType::f32, shape);
  check_optional(kOp, "before", args.before, DType::f32, shape);
  check_tensor(kOp, "next", args.next, DType::f32, shape);
  kernels::tables(args.next.device()).solver_arrays.advance_state(args, stream);
  note_work("advance_state", args);
}

void kernels::edge_displacements(const EdgeDisplacements& args, const Stream& stream) {
  constexpr std::string_view kOp = "edge_displacements";
  check_defined(kOp, "positions", args.positions);
  const int64_t dim = args.positions.width();
  if (dim != 2 && dim != 3)
    throw invalid_argument("edge_displacements: positions", "2 or 3 columns", fmt::format("{}", dim));
  check_tensor(kOp, "positions", args.positions, DType::f32, args.positions.shape());
  check_tensor(kOp, "senders", args.senders, DType::i32, {args.edges.capacity});
  check_tensor(kOp, "receivers", args.receivers, DType::i32, {args.edges.capacity});
  check_tensor(kOp, "scale", args.scale, DType::f64, {dim + 1, 2});
  check_columns(kOp, "features", args.features, args.edges.capacity, args.column, args.column + dim + 1);
  kernels::tables(args.features.device()).solver_arrays.edge_displacements(args, stream);
  note_work("edge_displacements", args);
}

Work work_of(const MapColumns& args) {
  const auto values = static_cast<double>(args.rows.capacity * args.columns);
  const auto size = [](const Tensor& tensor) { return static_cast<double>(size_of(tensor.dtype())); };
  const auto read = static_cast<double>(args.from.rows() * args.columns * size_of(args.from.dtype()));
  const double terms = (args.minus.defined() ? 1.0 : 0.0) + (args.scale.defined() ? 2.0 : 0.0);
  return {.flops = terms * values,
          .bytes = read + (args.minus.defined() ? values * size(args.minus) : 0.0) +
                   bytes_of(args.scale, args.kept) + values * size(args.to)};
}

Work work_of(const AdvanceState& args) {
  return {.flops = (args.before.defined() ? 5.0 : 3.0) * static_cast<double>(args.next.elements()),
          .bytes = bytes_of(args.prediction, args.scale, args.values, args.mask, args.current, args.before,
                            args.next)};
}

/// Of each axis a difference, a product and a sum; of each column a difference and a product.
Work work_of(const EdgeDisplacements& args) {
  const auto dim = static_cast<double>(args.positions.width());
  const auto edges = static_cast<double>(args.edges.capacity);
  return {.flops = edges * (3.0 * dim + 2.0 * (dim + 1.0)),
          .bytes = bytes_of(args.senders, args.receivers, args.positions, args.scale) +
                   edges * (dim + 1.0) * static_cast<double>(size_of(args.features.dtype()))};
}

}  // namespace meshgrad
