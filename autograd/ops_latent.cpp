// SPDX-License-Identifier: Apache-2.0
// Ops of latent values and of the links that they predict.
#include <meshgrad/autograd/ops.h>
#include <meshgrad/kernels/latent.h>
#include <meshgrad/kernels/pair_loss.h>

namespace meshgrad::ops {
namespace {

/// f64 [1] with what an earlier loss came to, where there is one.
Variable loss_after(Tape& tape, const Variable& before) {
  Variable sum = tape.output(Shape{1}, Rows{1}, DType::f64, true, "loss");
  if (before && tape.runs()) copy(before.value(), sum.value(), tape.stream());
  return sum;
}

InlineVector<Variable, 2> inputs_of(const Variable& before, const Variable& x) {
  InlineVector<Variable, 2> inputs;
  inputs.push_back(x);
  if (before) inputs.push_back(before);
  return inputs;
}

}  // namespace

Variable sample_latent(Tape& tape, const Variable& moments, const NoiseKey& key) {
  const Rows rows = moments.rows();
  Variable z = tape.output(rows, moments.value().width() / 2, moments.value().dtype(),
                           moments.needs_gradient(), "latent");
  if (tape.runs()) {
    kernels::sample_latent_forward({.rows = rows, .moments = moments.value(), .z = z.value(), .key = key},
                                   tape.stream());
  }
  tape.record({.op = "sample_latent", .inputs = {&moments, 1}, .backward_reads_inputs = true},
              [moments, z = z.slot(), key](Tape& back) {
                const Tensor d_z = back.take_gradient(z);
                if (!d_z.defined()) return;
                const GradientTarget d_moments = back.gradient_for(moments.slot());
                if (!d_moments.tensor.defined()) return;
                kernels::sample_latent_backward({.rows = moments.rows(),
                                                 .moments = moments.value(),
                                                 .d_z = d_z,
                                                 .d_moments = d_moments.tensor,
                                                 .accumulate = d_moments.accumulate,
                                                 .key = key},
                                                back.stream());
              });
  return z;
}

Variable latent_loss(Tape& tape, const Variable& before, const Variable& moments, const Tensor& weights) {
  Variable sum = loss_after(tape, before);
  if (tape.runs()) {
    kernels::latent_loss_forward({.rows = moments.rows(),
                                  .moments = moments.value(),
                                  .weights = weights,
                                  .sum = sum.value(),
                                  .accumulate = static_cast<bool>(before)},
                                 tape.runtime(), tape.stream());
  }
  tape.record({.op = "latent_loss", .inputs = inputs_of(before, moments), .backward_reads_inputs = true},
              [before = before.slot(), moments, weights, sum = sum.slot()](Tape& back) {
                const Tensor seed = back.take_gradient(sum);
                if (!seed.defined()) return;
                const GradientTarget d_moments = back.gradient_for(moments.slot());
                if (d_moments.tensor.defined()) {
                  kernels::latent_loss_backward({.rows = moments.rows(),
                                                 .moments = moments.value(),
                                                 .weights = weights,
                                                 .seed = seed,
                                                 .d_moments = d_moments.tensor,
                                                 .accumulate = d_moments.accumulate},
                                                back.stream());
                }
                if (before) back.add_gradient(before, seed);
              });
  return sum;
}

Variable pair_loss(Tape& tape, const Variable& before, const Variable& z, const NodePairs& pairs) {
  Variable sum = loss_after(tape, before);
  if (tape.runs()) {
    kernels::pair_loss_forward({.rows = z.rows(),
                                .z = z.value(),
                                .pairs = pairs,
                                .sum = sum.value(),
                                .accumulate = static_cast<bool>(before)},
                               tape.runtime(), tape.stream());
  }
  tape.record({.op = "pair_loss", .inputs = inputs_of(before, z), .backward_reads_inputs = true},
              [before = before.slot(), z, pairs, sum = sum.slot()](Tape& back) {
                const Tensor seed = back.take_gradient(sum);
                if (!seed.defined()) return;
                if (z.needs_gradient()) {
                  const Tensor d_z = back.scratch(z.value().shape(), z.value().dtype(), "d_latent");
                  kernels::pair_loss_backward(
                      {.rows = z.rows(), .z = z.value(), .pairs = pairs, .seed = seed, .d_z = d_z},
                      back.runtime(), back.stream());
                  back.add_gradient(z.slot(), d_z);
                }
                if (before) back.add_gradient(before, seed);
              });
  return sum;
}

}  // namespace meshgrad::ops
