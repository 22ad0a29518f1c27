// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/ops.h>
#include <meshgrad/kernels/reduction.h>

namespace meshgrad {

LossSum masked_loss(Tape& tape, const Variable& prediction, const Tensor& target, const Tensor& mask) {
  const Rows rows = prediction.rows();
  LossSum loss{tape.output(Shape{1}, Rows{1}, DType::f64, true, "loss"),
               Tensor::empty(tape.runtime(), Shape{1}, DType::f64, tape.tag(), "loss weight")};
  if (tape.runs()) {
    masked_loss_forward({.rows = rows,
                         .prediction = prediction.value(),
                         .target = target,
                         .mask = mask,
                         .sum = loss.sum.value(),
                         .weight = loss.weight},
                        tape.runtime(), tape.stream());
  }
  tape.record({.op = "masked_loss", .inputs = {prediction}, .rereads_inputs = true},
              [prediction, target, mask, sum = loss.sum](Tape& back) {
                const Tensor seed = back.take_gradient(sum);
                if (!seed.defined() || !prediction.needs_gradient()) return;
                const Tensor d_prediction =
                    back.scratch(prediction.value().shape(), prediction.value().dtype(), "d_prediction");
                masked_loss_backward({.rows = prediction.rows(),
                                      .prediction = prediction.value(),
                                      .target = target,
                                      .mask = mask,
                                      .seed = seed,
                                      .d_prediction = d_prediction},
                                     back.stream());
                back.give_gradient(prediction, d_prediction);
              });
  return loss;
}

}  // namespace meshgrad
