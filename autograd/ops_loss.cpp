// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/kernels/class_loss.h>
#include <meshgrad/kernels/reduction.h>

namespace meshgrad::ops {

LossSum masked_loss(Tape& tape, const Variable& prediction, const Tensor& target, const Tensor& mask,
                    const LossForm& form) {
  // Kernels take an undefined target for zeros, which a forgotten one must not become.
  if (!target.defined()) {
    throw invalid_argument("masked_loss: target", "a tensor [rows, width]", "none",
                           "pass the values that the prediction is compared with");
  }
  const Rows rows = prediction.rows();
  LossSum loss{tape.output(Shape{1}, Rows{1}, DType::f64, true, "loss"),
               Tensor::empty(tape.runtime(), Shape{1}, DType::f64, tape.tag(), "loss weight")};
  if (tape.runs()) {
    kernels::masked_loss_forward({.rows = rows,
                                  .prediction = prediction.value(),
                                  .target = target,
                                  .mask = mask,
                                  .sum = loss.sum.value(),
                                  .weight = loss.weight,
                                  .form = form},
                                 tape.runtime(), tape.stream());
  }
  tape.record({.op = "masked_loss", .inputs = {&prediction, 1}, .backward_reads_inputs = true},
              [prediction, target, mask, form, sum = loss.sum.slot()](Tape& back) {
                const Tensor seed = back.take_gradient(sum);
                if (!seed.defined() || !prediction.needs_gradient()) return;
                const Tensor d_prediction =
                    back.scratch(prediction.value().shape(), prediction.value().dtype(), "d_prediction");
                kernels::masked_loss_backward({.rows = prediction.rows(),
                                               .prediction = prediction.value(),
                                               .target = target,
                                               .mask = mask,
                                               .seed = seed,
                                               .d_prediction = d_prediction,
                                               .form = form},
                                              back.stream());
                back.add_gradient(prediction.slot(), d_prediction);
              });
  return loss;
}

LossSum masked_loss(Tape& tape, const Variable& before, const PerInput<Variable>& errors, const Tensor& mask,
                    const LossForm& form) {
  if (errors.empty()) throw invalid_argument("masked_loss", "one error or more", "none");
  LossSum loss{tape.output(Shape{1}, Rows{1}, DType::f64, true, "loss"),
               Tensor::empty(tape.runtime(), Shape{1}, DType::f64, tape.tag(), "loss weight")};
  const bool runs = tape.runs();
  if (runs && before) {
    copy(before.value(), loss.sum.value(), tape.stream());
    fill_zero(loss.weight, tape.stream());
  }
  for (size_t i = 0; runs && i < errors.size(); ++i) {
    kernels::masked_loss_forward({.rows = errors[i].rows(),
                                  .prediction = errors[i].value(),
                                  .target = {},
                                  .mask = mask,
                                  .sum = loss.sum.value(),
                                  .weight = loss.weight,
                                  .accumulate = i > 0 || before,
                                  .form = form},
                                 tape.runtime(), tape.stream());
  }
  InlineVector<Variable, kMaxMlpInputs + 1> inputs(std::span(errors.begin(), errors.end()));
  if (before) inputs.push_back(before);
  tape.record({.op = "masked_loss", .inputs = inputs, .backward_reads_inputs = true},
              [before = before.slot(), errors, mask, form, sum = loss.sum.slot()](Tape& back) {
                const Tensor seed = back.take_gradient(sum);
                if (!seed.defined()) return;
                for (const Variable& error : errors) {
                  if (!error.needs_gradient()) continue;
                  const Tensor d_error =
                      back.scratch(error.value().shape(), error.value().dtype(), "d_error");
                  kernels::masked_loss_backward({.rows = error.rows(),
                                                 .prediction = error.value(),
                                                 .target = {},
                                                 .mask = mask,
                                                 .seed = seed,
                                                 .d_prediction = d_error,
                                                 .form = form},
                                                back.stream());
                  back.add_gradient(error.slot(), d_error);
                }
                if (before) back.add_gradient(before, seed);
              });
  return loss;
}

LossSum class_loss(Tape& tape, const Variable& logits, const Tensor& labels, const Tensor& mask,
                   const Tensor& class_weights, const TeacherOutput& teacher) {
  LossSum loss{tape.output(Shape{1}, Rows{1}, DType::f64, true, "loss"),
               Tensor::empty(tape.runtime(), Shape{1}, DType::f64, tape.tag(), "loss weight")};
  if (tape.runs()) {
    kernels::class_loss_forward({.rows = logits.rows(),
                                 .logits = logits.value(),
                                 .labels = labels,
                                 .mask = mask,
                                 .sum = loss.sum.value(),
                                 .weight = loss.weight,
                                 .class_weights = class_weights,
                                 .teacher = teacher},
                                tape.runtime(), tape.stream());
  }
  tape.record({.op = "class_loss", .inputs = {&logits, 1}, .backward_reads_inputs = true},
              [logits, labels, mask, class_weights, teacher, sum = loss.sum.slot()](Tape& back) {
                const Tensor seed = back.take_gradient(sum);
                if (!seed.defined() || !logits.needs_gradient()) return;
                const Tensor d_logits =
                    back.scratch(logits.value().shape(), logits.value().dtype(), "d_logits");
                kernels::class_loss_backward({.rows = logits.rows(),
                                              .logits = logits.value(),
                                              .labels = labels,
                                              .mask = mask,
                                              .seed = seed,
                                              .d_logits = d_logits,
                                              .class_weights = class_weights,
                                              .teacher = teacher},
                                             back.stream());
                back.add_gradient(logits.slot(), d_logits);
              });
  return loss;
}

}  // namespace meshgrad::ops
