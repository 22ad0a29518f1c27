// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/optimizer.h>

namespace meshgrad {
namespace {

const OptimizerKernels& table_of(const Tensor& tensor) { return kernels::tables(tensor.device()).optimizer; }

}  // namespace

void kernels::note_loss(const NoteLoss& args, const Stream& stream) {
  constexpr std::string_view kOp = "note_loss";
  check_tensor(kOp, "state", args.state, DType::u8, {kStepStateBytes});
  check_tensor(kOp, "sum", args.sum, DType::f64, {1});
  check_tensor(kOp, "window_weight", args.window_weight, DType::f64, {1});
  check_tensor(kOp, "seed", args.seed, DType::f64, {1});
  check_optional(kOp, "penalty", args.penalty, DType::f64, {1});
  check_optional(kOp, "missing", args.missing, DType::i64, {1});
  table_of(args.state).note_loss(args, stream);
  note_work("note_loss", args);
}

void kernels::optimizer_decide(const OptimizerDecision& args, const Stream& stream) {
  constexpr std::string_view kOp = "optimizer.decide";
  check_tensor(kOp, "state", args.state, DType::u8, {kStepStateBytes});
  check_tensor(kOp, "squared_norm", args.squared_norm, DType::f64, {1});
  check_tensor(kOp, "non_finite", args.non_finite, DType::i32, {1});
  table_of(args.state).decide(args, stream);
  note_work("optimizer_decide", args);
}

void kernels::optimizer_update(const OptimizerUpdate& args, const Stream& stream) {
  constexpr std::string_view kOp = "optimizer.update";
  check_tensor(kOp, "state", args.state, DType::u8, {kStepStateBytes});
  check_defined(kOp, "parameters", args.parameters);
  const DType dtype = args.parameters.dtype();
  const Shape flat{args.parameters.elements()};
  check_tensor(kOp, "parameters", args.parameters, accumulator_of(dtype), flat);
  check_tensor(kOp, "gradients", args.gradients, dtype, flat);
  const bool adam = args.settings.kind != OptimizerKind::sgd;
  if (adam || args.settings.momentum != 0.0)
    check_tensor(kOp, "first_moment", args.first_moment, dtype, flat);
  if (adam) check_tensor(kOp, "second_moment", args.second_moment, dtype, flat);
  if (args.average.defined()) check_tensor(kOp, "average", args.average, dtype, flat);
  if (args.storage.defined()) {
    const DType stored = args.storage.dtype() == DType::bf16 ? DType::bf16 : DType::f16;
    check_tensor(kOp, "storage", args.storage, stored, flat);
    check_tensor(kOp, "parameters beside storage", args.parameters, DType::f32, flat);
  }
  table_of(args.state).update(args, stream);
  note_work("optimizer_update", args);
}

Work work_of(const NoteLoss&) { return {}; }
Work work_of(const OptimizerDecision&) { return {}; }

Work work_of(const OptimizerUpdate& args) {
  return {.bytes = bytes_added(args.parameters) + bytes_added(args.gradients) +
                   bytes_added(args.first_moment) + bytes_added(args.second_moment) +
                   bytes_added(args.average) + bytes_of(args.storage)};
}

}  // namespace meshgrad
