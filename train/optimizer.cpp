// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/reduction.h>
#include <meshgrad/train/optimizer.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace meshgrad {

double learning_rate(const ScheduleConfig& schedule, double peak, int64_t total_steps, int64_t step) {
  if (step < schedule.warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  }
  const int64_t span = schedule.decay_steps > 0 ? schedule.decay_steps : total_steps - schedule.warmup_steps;
  // The last update runs at the final rate exactly.
  const double progress = std::min(1.0, static_cast<double>(step - schedule.warmup_steps) /
                                            static_cast<double>(std::max<int64_t>(1, span - 1)));
  switch (schedule.name) {
    case ScheduleName::constant:
      return peak;
    case ScheduleName::exponential:
      return peak * std::pow(schedule.final_lr / peak, progress);
    case ScheduleName::cosine:
      return schedule.final_lr +
             0.5 * (peak - schedule.final_lr) * (1.0 + std::cos(std::numbers::pi * progress));
  }
  return peak;
}

Optimizer::Optimizer(Runtime& runtime, const ParameterSet& parameters, const OptimizerConfig& config,
                     double clip_norm)
    : runtime_(runtime),
      values_(parameters.values()),
      gradients_(parameters.gradients()),
      config_(config),
      clip_norm_(clip_norm) {
  const auto moment = [&](std::string_view name) {
    return Tensor::zeros(runtime, values_.shape(), values_.dtype(), Tag::optimizer, name);
  };
  const bool adam = config.name != OptimizerKind::sgd;
  if (adam || config.momentum != 0.0) first_moment_ = moment("first moment");
  if (adam) second_moment_ = moment("second moment");
  squared_norm_ = Tensor::zeros(runtime, Shape{1}, DType::f64, Tag::optimizer, "squared norm");
  non_finite_ = Tensor::zeros(runtime, Shape{1}, DType::i32, Tag::optimizer, "non-finite");
}

double Optimizer::step(double learning_rate) {
  const Stream& stream = runtime_.stream();
  fill_zero(squared_norm_, stream);
  fill_zero(non_finite_, stream);
  sum_of_squares({.x = gradients_, .sum = squared_norm_, .non_finite = non_finite_}, stream);
  optimizer_step({.kind = config_.name,
                  .parameters = values_,
                  .gradients = gradients_,
                  .first_moment = first_moment_,
                  .second_moment = second_moment_,
                  .learning_rate = learning_rate,
                  .beta1 = config_.beta1,
                  .beta2 = config_.beta2,
                  .epsilon = config_.eps,
                  .weight_decay = config_.weight_decay,
                  .momentum = config_.momentum,
                  .step = steps_ + 1,
                  .clip_norm = clip_norm_,
                  .squared_norm = squared_norm_,
                  .non_finite = non_finite_},
                 stream);
  fill_zero(gradients_, stream);
  if (*non_finite_.data<int32_t>() == 0) ++steps_;
  return std::sqrt(*squared_norm_.data<double>());
}

}  // namespace meshgrad
