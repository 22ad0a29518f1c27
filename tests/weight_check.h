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
  LossSum loss;
  if (batch.target.width() > 0) loss = ops::masked_loss(tape, values.front(), batch.target, batch.mask);
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

/// Gradients of a model's weights in f64 on the CPU beside central differences.
struct WeightCheck {
  double error = 0.0;     ///< largest |gradient - difference|
  double relative = 0.0;  ///< largest |gradient - difference| / (1 + |gradient|)
  double largest = 0.0;   ///< largest |gradient|
};

/// `gradients`: an arena as the parameters'. loss() is computed with each weight a little more and less.
template <class Loss>
WeightCheck check_weights(const ParameterSet& parameters, const Tensor& gradients, const Loss& loss) {
  constexpr double kStep = 1e-6;
  WeightCheck found;
  for (const ParameterInfo& info : parameters.parameters()) {
    for (int64_t i = info.offset; i < info.offset + info.shape.elements(); ++i) {
      double& weight = parameters.values().data<double>()[i];
      const double before = weight;
      const auto at = [&](double value) {
        weight = value;
        return loss();
      };
      const double difference = (at(before + kStep) - at(before - kStep)) / (2.0 * kStep);
      weight = before;
      const double gradient = gradients.data<double>()[i], error = std::abs(gradient - difference);
      found.error = std::max(found.error, error);
      found.relative = std::max(found.relative, error / (1.0 + std::abs(gradient)));
      found.largest = std::max(found.largest, std::abs(gradient));
    }
  }
  return found;
}

/// Of a MeshGraphNet: the largest relative error over every weight.
inline double largest_gradient_error(Runtime& runtime, const Model& model, const LossBatch& batch) {
  fill_zero(model.parameters.gradients(), runtime.stream());
  loss_of(runtime, model, batch, true);
  return check_weights(model.parameters, model.parameters.gradients(),
                       [&] { return loss_of(runtime, model, batch, false); })
      .relative;
}

}  // namespace meshgrad::test
