// SPDX-License-Identifier: Apache-2.0
// A model's gradients of its weights against finite differences.
#pragma once
#include <meshgrad/autograd/ops.h>

#include <algorithm>
#include <cmath>

#include "model_case.h"

namespace meshgrad::test {

/// The loss of a batch; with `backward` its gradients are added to the model's.
inline double loss_of(Runtime& runtime, const Model& model, const LossBatch& batch, bool backward,
                      std::span<const RecomputedStages> recomputed = {}) {
  Tape tape(runtime, backward ? Tape::Mode::record : Tape::Mode::evaluate);
  const Values values = forward(model, tape, batch.graph, recomputed);
  LossSum loss = ops::masked_loss(tape, values.front(), batch.target, batch.mask);
  if (batch.graph_target.defined()) {
    const Tensor all = Tensor::empty(runtime, {batch.graph_target.rows()}, DType::u8, Tag::data);
    std::ranges::fill(all.values<uint8_t>(), uint8_t{1});
    const Variable error = ops::accumulate_error(tape, {}, values[1], batch.graph_target, all);
    loss.sum = ops::masked_loss(tape, loss.sum, {error}, all, {.factor = 0.7}).sum;
  }
  const double value = *loss.sum.value().data<double>();
  if (!backward) return value;
  const Tensor seed = Tensor::zeros(runtime, {1}, DType::f64, Tag::data);
  *seed.data<double>() = 1.0;
  tape.backward(loss.sum, seed);
  return value;
}

/// Of a model in f64 on the CPU: the largest |gradient - central difference| over 1 + |gradient|, over every
/// weight.
inline double largest_gradient_error(Runtime& runtime, const Model& model, const LossBatch& batch) {
  constexpr double kStep = 1e-6;
  fill_zero(model.parameters.gradients(), runtime.stream());
  loss_of(runtime, model, batch, true);
  double largest = 0.0;
  for (size_t p = 0; p < model.parameters.parameters().size(); ++p) {
    const auto values = model.parameters.value(p).values<double>();
    const auto gradients = model.parameters.gradient(p).values<double>();
    for (size_t i = 0; i < values.size(); ++i) {
      const double before = values[i];
      const auto at = [&](double value) {
        values[i] = value;
        return loss_of(runtime, model, batch, false);
      };
      const double difference = (at(before + kStep) - at(before - kStep)) / (2.0 * kStep);
      values[i] = before;
      largest = std::max(largest, std::abs(gradients[i] - difference) / (1.0 + std::abs(gradients[i])));
    }
  }
  return largest;
}

}  // namespace meshgrad::test
