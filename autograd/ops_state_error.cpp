// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/ops.h>
#include <meshgrad/kernels/state_error.h>

namespace meshgrad::ops {

Variable accumulate_error(Tape& tape, const Variable& before, const Variable& prediction,
                          const Tensor& target, const Tensor& mask) {
  Variable after =
      tape.output(prediction.rows(), prediction.value().width(), accumulator_of(prediction.value().dtype()),
                  before.needs_gradient() || prediction.needs_gradient(), "state error");
  if (tape.runs()) {
    kernels::accumulate_error_forward({.rows = prediction.rows(),
                                       .before = before ? before.value() : Tensor(),
                                       .prediction = prediction.value(),
                                       .target = target,
                                       .mask = mask,
                                       .after = after.value()},
                                      tape.stream());
  }
  const Variable inputs[] = {prediction, before};
  tape.record(
      {.op = "accumulate_error", .inputs = inputs},
      [before = before.slot(), prediction = prediction.slot(), mask, after = after.slot()](Tape& back) {
        const Tensor d_after = back.take_gradient(after);
        if (!d_after.defined()) return;
        const GradientTarget d_before = back.gradient_for(before);
        const GradientTarget d_prediction = back.gradient_for(prediction);
        kernels::accumulate_error_backward({.rows = after.rows(),
                                            .d_after = d_after,
                                            .mask = mask,
                                            .d_before = d_before.tensor,
                                            .accumulate_d_before = d_before.accumulate,
                                            .d_prediction = d_prediction.tensor,
                                            .accumulate_d_prediction = d_prediction.accumulate},
                                           back.stream());
      });
  return after;
}

Variable add_columns(Tape& tape, const Tensor& given, const Variable& shift, const Tensor& source,
                     const Tensor& ratio) {
  Variable shifted =
      tape.output(shift.rows(), given.width(), given.dtype(), shift.needs_gradient(), "shifted");
  if (tape.runs()) {
    kernels::add_columns_forward({.rows = shift.rows(),
                                  .given = given,
                                  .shift = shift.value(),
                                  .source = source,
                                  .ratio = ratio,
                                  .shifted = shifted.value()},
                                 tape.stream());
  }
  tape.record({.op = "add_columns", .inputs = {&shift, 1}},
              [shift = shift.slot(), source, ratio, shifted = shifted.slot()](Tape& back) {
                const Tensor d_shifted = back.take_gradient(shifted);
                if (!d_shifted.defined()) return;
                const GradientTarget d_shift = back.gradient_for(shift);
                if (!d_shift.tensor.defined()) return;
                kernels::add_columns_backward({.rows = shift.rows(),
                                               .d_shifted = d_shifted,
                                               .source = source,
                                               .ratio = ratio,
                                               .d_shift = d_shift.tensor,
                                               .accumulate = d_shift.accumulate},
                                              back.stream());
              });
  return shifted;
}

}  // namespace meshgrad::ops
