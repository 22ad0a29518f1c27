// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/kernels/optimizer.h>
#include <meshgrad/kernels/reduction.h>
#include <meshgrad/train/learn/run/optimizer.h>
#include <meshgrad/train/learn/task/recomputation.h>

#include <fmt/format.h>

#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace meshgrad {
namespace {

bool names_parameter(const std::string& pattern, const std::string& parameter) {
  const auto matches = [&](const std::string& text) {
    return fnmatch(text.c_str(), parameter.c_str(), 0) == 0;
  };
  return matches(pattern) || matches(pattern + ".*");
}

/// What lies between the frozen ranges of an arena.
std::vector<ArenaRange> rest_of(const std::vector<ArenaRange>& frozen, int64_t elements) {
  std::vector<ArenaRange> rest;
  int64_t begin = 0;
  for (const ArenaRange& range : frozen) {
    if (range.begin > begin) rest.push_back({begin, range.begin});
    begin = range.end;
  }
  if (begin < elements) rest.push_back({begin, elements});
  return rest;
}

Tensor part(const Tensor& arena, const ArenaRange& range) {
  return arena.defined() ? arena.row_range(range.begin, range.end) : Tensor();
}

}  // namespace

LearningRate learning_rate(const ScheduleConfig& schedule, double peak, int64_t total_steps) {
  return {.curve = schedule.name,
          .peak = peak,
          .last = schedule.final_lr,
          .warmup_steps = schedule.warmup_steps,
          .span = schedule.decay_steps > 0 ? schedule.decay_steps : total_steps - schedule.warmup_steps,
          .restart_every = schedule.restart_every,
          .restart_growth = schedule.restart_growth,
          .step_every = schedule.step_every,
          .step_factor = schedule.step_factor};
}

std::string describe_frozen(const ParameterSet& parameters, const std::vector<std::string>& patterns) {
  int64_t count = 0, numbers = 0, all = 0;
  for (const ParameterInfo& info : parameters.parameters()) {
    all += info.shape.elements();
    const bool frozen = std::ranges::any_of(
        patterns, [&](const std::string& pattern) { return names_parameter(pattern, info.name); });
    if (!frozen) continue;
    ++count;
    numbers += info.shape.elements();
  }
  return fmt::format("train.freeze: {} of {} parameters, {} of {} values, are not trained", count,
                     parameters.parameters().size(), numbers, all);
}

std::vector<ArenaRange> frozen_ranges(const ParameterSet& parameters,
                                      const std::vector<std::string>& patterns) {
  const std::vector<ParameterInfo>& infos = parameters.parameters();
  std::vector<bool> frozen(infos.size());
  for (const std::string& pattern : patterns) {
    bool found = false;
    for (size_t i = 0; i < infos.size(); ++i) {
      if (!names_parameter(pattern, infos[i].name)) continue;
      frozen[i] = found = true;
    }
    if (found) continue;
    throw config_error(
        "train.freeze", "names of parameters", "\"" + pattern + "\", which matches none",
        fmt::format("name parts of {} to {}, such as \"{}\"; * matches any text", infos.front().name,
                    infos.back().name, infos.front().name.substr(0, infos.front().name.find('.'))));
  }
  std::vector<ArenaRange> ranges;
  for (size_t i = 0; i < infos.size(); ++i) {
    if (!frozen[i]) continue;
    // Up to the next parameter: gaps hold zeros.
    const int64_t end = i + 1 < infos.size() ? infos[i + 1].offset : parameters.arena_elements();
    if (!ranges.empty() && ranges.back().end == infos[i].offset) {
      ranges.back().end = end;
    } else {
      ranges.push_back({infos[i].offset, end});
    }
  }
  if (rest_of(ranges, parameters.arena_elements()).empty()) {
    throw config_error("train.freeze", "patterns that leave something to train", "all parameters",
                       "name fewer");
  }
  return ranges;
}

std::string describe_schedule(const LearningRate& rate) {
  std::string text = fmt::format("learning rate {:.3g}", rate.peak);
  if (rate.warmup_steps > 0)
    text = fmt::format("learning rate rises to {:.3g} at step {}", rate.peak, rate.warmup_steps);
  if (rate.curve == RateCurve::constant) return text + ", constant";
  if (rate.curve == RateCurve::step) {
    return text + fmt::format(", then times {:.3g} every {} steps, not below {:.3g}", rate.step_factor,
                              rate.step_every, rate.last);
  }
  if (rate.restart_every > 0) {
    const std::string longer = rate.restart_growth > 1.0
                                   ? fmt::format(", each cycle {:.3g} times as long", rate.restart_growth)
                                   : "";
    return text + fmt::format(", then {} decay to {:.3g} and again from {:.3g} after {} steps{}",
                              rate.curve == RateCurve::cosine ? "cosine" : "exponential", rate.last,
                              rate.peak, rate.restart_every, longer);
  }
  return text + fmt::format(", then {} decay to {:.3g} at step {}",
                            rate.curve == RateCurve::cosine ? "cosine" : "exponential", rate.last,
                            rate.warmup_steps + rate.span);
}

std::string describe_rate_change(const Config& saved, const Config& now, int64_t updates) {
  if (saved.train.epochs > 0 || now.train.epochs > 0) return "";
  const auto rate_of = [](const Config& config) {
    return learning_rate(config.schedule, config.optimizer.lr, config.train.steps);
  };
  const double before = rate_at(rate_of(saved), updates), after = rate_at(rate_of(now), updates);
  constexpr double kSame = 1e-6;
  if (std::abs(after - before) <= kSame * before) return "";
  return fmt::format(
      "the learning rate goes from {:.3g} to {:.3g} here, as train.steps or its schedule changed", before,
      after);
}

Optimizer::Optimizer(Runtime& runtime, const ParameterSet& parameters, const Config& config,
                     int64_t total_steps)
    : Optimizer(runtime, parameters, config.optimizer, config.train.clip_norm,
                learning_rate(config.schedule, config.optimizer.lr, total_steps), config.loss_scale.rule) {
  if (!config.train.freeze.empty()) freeze(frozen_ranges(parameters, config.train.freeze));
  if (config.train.ema > 0) start_average(runtime, config.train.ema);
}

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
      storage_(parameters.storage()),
      trained_(rest_of({}, parameters.arena_elements())) {
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
  return note(runtime, sum, {}, {}, window_weight);
}

Tensor Optimizer::note_loss(Runtime& runtime, const LossTerms& loss, const Tensor& window_weight) const {
  return note(runtime, loss.sum.value(), loss.penalty ? loss.penalty.value() : Tensor(), loss.missing,
              window_weight);
}

Tensor Optimizer::note(Runtime& runtime, const Tensor& sum, const Tensor& penalty, const Tensor& missing,
                       const Tensor& window_weight) const {
  // A GPU's host does not know the weight: there the step is skipped, as its loss is not finite.
  if (!runtime.stream().on_gpu() && !runtime.dry() && *window_weight.data<double>() == 0.0) {
    throw invalid_argument("Optimizer::note_loss: window_weight", "one loss term or more", "0",
                           "the mask must count at least one row");
  }
  const Tensor seed = Tensor::empty(runtime, Shape{1}, DType::f64, Tag::workspace, "seed");
  kernels::note_loss({.state = state_,
                      .sum = sum,
                      .window_weight = window_weight,
                      .seed = seed,
                      .penalty = penalty,
                      .missing = missing},
                     runtime.stream());
  return seed;
}

void Optimizer::step(Runtime& runtime) const {
  const Stream& stream = runtime.stream();
  clear_frozen_gradients();
  kernels::sum_of_squares({.x = gradients_, .sum = squared_norm_, .non_finite = non_finite_}, runtime,
                          stream);
  kernels::optimizer_decide(
      {.settings = settings_, .state = state_, .squared_norm = squared_norm_, .non_finite = non_finite_},
      stream);
  for (const ArenaRange& range : trained_) {
    kernels::optimizer_update({.settings = settings_,
                               .state = state_,
                               .parameters = part(values_, range),
                               .gradients = part(gradients_, range),
                               .first_moment = part(first_moment_, range),
                               .second_moment = part(second_moment_, range),
                               .storage = part(storage_, range),
                               .average = part(average_, range)},
                              stream);
  }
}

void Optimizer::clear_frozen_gradients() const {
  for (const ArenaRange& range : frozen_) fill_zero(part(gradients_, range), stream_);
}

double Optimizer::squared_gradient_norm(Runtime& runtime) const {
  clear_frozen_gradients();
  const Tensor sum = Tensor::zeros(runtime, {1}, DType::f64, Tag::workspace, "squared norm so far");
  kernels::sum_of_squares({.x = gradients_, .sum = sum, .non_finite = {}}, runtime, runtime.stream());
  const double scale = state().loss_scale;
  return *to_host(sum, runtime.stream()).data<double>() / (scale * scale);
}

void Optimizer::freeze(std::vector<ArenaRange> ranges) {
  frozen_ = std::move(ranges);
  trained_ = rest_of(frozen_, values_.elements());
}

void Optimizer::start_average(Runtime& runtime, double decay) {
  settings_.average_decay = decay;
  if (!average_.defined()) {
    average_ = Tensor::empty(runtime, values_.shape(), values_.dtype(), Tag::optimizer, "weight average");
  }
  copy(values_, average_, stream_);
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
