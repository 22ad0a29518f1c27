// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/class_loss.h>

namespace meshgrad {
namespace {

/// What forward and backward have in common.
template <class Args>
void check_class_rows(std::string_view op, const Args& args) {
  check_defined(op, "logits", args.logits);
  check_tensor(op, "logits", args.logits, args.logits.dtype(), {args.rows.capacity, args.logits.width()});
  check_tensor(op, "labels", args.labels, DType::i32, {args.rows.capacity});
  check_tensor(op, "mask", args.mask, DType::u8, {args.rows.capacity});
  check_optional(op, "class_weights", args.class_weights, DType::f32, {args.logits.width()});
  check_optional(op, "teacher.values", args.teacher.values, args.logits.dtype(), args.logits.shape());
}

}  // namespace

void kernels::class_loss_forward(const ClassLossForward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "class_loss.forward";
  check_class_rows(kOp, args);
  check_tensor(kOp, "sum", args.sum, DType::f64, {1});
  check_tensor(kOp, "weight", args.weight, DType::f64, {1});
  kernels::tables(args.logits.device()).class_loss.class_loss_forward(args, runtime, stream);
  note_work("class_loss_forward", args);
}

void kernels::class_loss_backward(const ClassLossBackward& args, const Stream& stream) {
  constexpr std::string_view kOp = "class_loss.backward";
  check_class_rows(kOp, args);
  check_tensor(kOp, "seed", args.seed, DType::f64, {1});
  check_tensor(kOp, "d_logits", args.d_logits, args.logits.dtype(), args.logits.shape());
  kernels::tables(args.logits.device()).class_loss.class_loss_backward(args, stream);
  note_work("class_loss_backward", args);
}

/// Difference from the largest logit, and sum.
Work work_of(const ClassLossForward& args) {
  return {.flops = 2.0 * static_cast<double>(args.logits.elements()),
          .bytes = bytes_of(args.logits, args.labels, args.mask, args.teacher.values)};
}

/// The same again, then share and scale of each.
Work work_of(const ClassLossBackward& args) {
  return {.flops = 4.0 * static_cast<double>(args.logits.elements()),
          .bytes = bytes_of(args.logits, args.labels, args.mask, args.teacher.values, args.d_logits)};
}

}  // namespace meshgrad
