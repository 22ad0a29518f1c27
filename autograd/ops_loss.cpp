// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/ops.h>
#include <meshgrad/kernels/reduction.h>

namespace meshgrad {

LossSum masked_loss(Tape& tape, const Variable& prediction, const Tensor& target, const Tensor& mask) {
  const Rows rows = prediction.rows();
  LossSum loss{Variable(Tensor::empty(tape.runtime(), Shape{1}, DType::f64, Tag::activations, "loss"),
                        tape.recording()),
               Tensor::empty(tape.runtime(), Shape{1}, DType::f64, Tag::activations, "loss weight")};
  masked_loss_forward({.rows = rows,
                       .prediction = prediction.value(),
                       .target = target,
                       .mask = mask,
                       .sum = loss.sum.value(),
                       .weight = loss.weight},
                      tape.runtime(), tape.stream());
  tape.record("masked_loss", [prediction, target, mask, sum = loss.sum](Tape& back) {
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
