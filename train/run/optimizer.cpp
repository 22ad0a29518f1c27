// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/kernels/optimizer.h>
#include <meshgrad/kernels/reduction.h>
#include <meshgrad/train/run/optimizer.h>

#include <fmt/format.h>

#include <cstring>

namespace meshgrad {
namespace {

RateCurve curve_of(ScheduleName name) {
  switch (name) {
    case ScheduleName::constant:
      return RateCurve::constant;
    case ScheduleName::exponential:
      return RateCurve::exponential;
    case ScheduleName::cosine:
      return RateCurve::cosine;
  }
  return RateCurve::constant;
}

}  // namespace

LearningRate learning_rate(const ScheduleConfig& schedule, double peak, int64_t total_steps) {
  return {.curve = curve_of(schedule.name),
          .peak = peak,
          .last = schedule.final_lr,
          .warmup_steps = schedule.warmup_steps,
          .span = schedule.decay_steps > 0 ? schedule.decay_steps : total_steps - schedule.warmup_steps};
}

std::string describe_schedule(const LearningRate& rate) {
  std::string text = fmt::format("learning rate {:.3g}", rate.peak);
  if (rate.warmup_steps > 0)
    text = fmt::format("learning rate rises to {:.3g} at step {}", rate.peak, rate.warmup_steps);
  if (rate.curve == RateCurve::constant) return text + ", constant";
  return text + fmt::format(", then {} decay to {:.3g} at step {}",
                            rate.curve == RateCurve::cosine ? "cosine" : "exponential", rate.last,
                            rate.warmup_steps + rate.span);
}

Optimizer::Optimizer(Runtime& runtime, const ParameterSet& parameters, const Config& config,
                     int64_t total_steps)
    : Optimizer(runtime, parameters, config.optimizer, config.train.clip_norm,
                learning_rate(config.schedule, config.optimizer.lr, total_steps), config.loss_scale.rule) {}

Optimizer::Optimizer(Runtime& runtime, const ParameterSet& parameters, const OptimizerConfig& config,
                     double clip_norm, const LearningRate& rate, const LossScaleRule& loss_scale)
    : stream_(runtime.stream()),
      settings_{.kind = config.name,
                .beta1 = config.beta1,
                .beta2 = config.beta2,
                .epsilon = config.eps,
                .weight_decay = config.weight_decay,
                .momentum = config.momentum,
                .clip_norm = clip_norm,
                .rate = rate,
                .scale_loss = parameters.storage().defined() && parameters.storage().dtype() == DType::f16,
                .loss_scale = loss_scale},
      values_(parameters.values()),
      gradients_(parameters.gradients()),
      storage_(parameters.storage()) {
  if (!values_.defined()) {
    throw invalid_argument("Optimizer: parameters", "allocated parameters", "none",
                           "call ParameterSet::allocate first");
  }
  const auto zeros = [&](const Shape& shape, DType dtype, std::string_view name) {
    return Tensor::zeros(runtime, shape, dtype, Tag::optimizer, name);
  };
  const bool adam = config.name != OptimizerKind::sgd;
  if (adam || config.momentum != 0.0) first_moment_ = zeros(values_.shape(), values_.dtype(), "first moment");
  if (adam) second_moment_ = zeros(values_.shape(), values_.dtype(), "second moment");
  squared_norm_ = zeros({1}, DType::f64, "squared norm");
  non_finite_ = zeros({1}, DType::i32, "non-finite");
  state_ = zeros({kStepStateBytes}, DType::u8, "step state");
  StepState first;
  if (settings_.scale_loss) first.loss_scale = loss_scale.initial;
  set_state(first);
}

Tensor Optimizer::note_loss(Runtime& runtime, const Tensor& sum, const Tensor& window_weight) const {
  // A GPU's host does not know the weight: there the step is skipped, as its loss is not finite.
  if (!runtime.stream().on_gpu() && !runtime.dry() && *window_weight.data<double>() == 0.0) {
    throw invalid_argument("Optimizer::note_loss: window_weight", "one loss term or more", "0",
                           "the mask must count at least one row");
  }
  const Tensor seed = Tensor::empty(runtime, Shape{1}, DType::f64, Tag::workspace, "seed");
  meshgrad::kernels::note_loss({.state = state_, .sum = sum, .window_weight = window_weight, .seed = seed},
                               runtime.stream());
  return seed;
}

void Optimizer::step(Runtime& runtime) const {
  const Stream& stream = runtime.stream();
  kernels::sum_of_squares({.x = gradients_, .sum = squared_norm_, .non_finite = non_finite_}, runtime,
                          stream);
  kernels::optimizer_decide(
      {.settings = settings_, .state = state_, .squared_norm = squared_norm_, .non_finite = non_finite_},
      stream);
  kernels::optimizer_update({.settings = settings_,
                             .state = state_,
                             .parameters = values_,
                             .gradients = gradients_,
                             .first_moment = first_moment_,
                             .second_moment = second_moment_,
                             .storage = storage_},
                            stream);
}

StepState Optimizer::state() const {
  const Tensor host = to_host(state_, stream_);
  StepState state;
  std::memcpy(&state, host.raw(), sizeof state);
  return state;
}

void Optimizer::set_state(const StepState& state) {
  StepState value = state;
  copy(Tensor::borrow(&value, Shape{kStepStateBytes}, DType::u8), state_, stream_);
}

}  // namespace meshgrad
