// SPDX-License-Identifier: Apache-2.0
// StepState: the scalars that change from one optimizer step to the next, in device memory, and their update
// rules. The device decides whether a step is taken and with which factors, so the host never waits for it.
// Both backends run the same functions.
//
// Dynamic loss scaling: the loss of a model stored in f16 is multiplied by the scale before the backward
// pass, so that small gradients do not underflow. The scale falls when a gradient overflows, and grows after
// many steps without an overflow. Source: Micikevicius et al., "Mixed precision training" (2018),
// section 3.2. With hysteresis = 1 and neither floor nor cap reached, this is the rule of PyTorch's
// GradScaler.
//
// A step (here also: window) consists of one or more micro-batches, whose gradients are accumulated.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#ifdef __CUDACC__
#define MESHGRAD_HOST_DEVICE __host__ __device__
#else
#define MESHGRAD_HOST_DEVICE
#endif

#pragma GCC visibility push(default)
namespace meshgrad {

struct LossScaleRule {
  double initial = 65536.0;
  double growth = 2.0;      ///< factor after `interval` consecutive finite steps
  double backoff = 0.5;     ///< factor after a step whose gradients are not finite
  int64_t interval = 2000;  ///< in steps, counted from the last change or skip
  double floor = 1.0;
  double cap = 16777216.0;
  /// The scale falls from the `hysteresis`-th consecutive skip on. A finite step resets the count, as in
  /// Apex. Other scalers reset it only when the scale grows; there scattered overflows add up, although each
  /// by itself only says that one batch was bad.
  int64_t hysteresis = 1;
};

enum class OptimizerKind : uint8_t { adam, adamw, sgd };
enum class RateCurve : uint8_t { constant, exponential, cosine, step };

/// Learning rate schedule: a linear warm-up, then a curve from `peak` to `last`, over `span` updates in all.
/// With `restart_every` the curve begins again after as many updates, and each time after restart_growth
/// times as many (Loshchilov, Hutter 2017, "SGDR"). `step` multiplies by step_factor every `step_every`
/// updates.
struct LearningRate {
  RateCurve curve = RateCurve::constant;
  double peak = 0.0;
  double last = 0.0;
  int64_t warmup_steps = 0;
  int64_t span = 1;
  int64_t restart_every = 0;  ///< updates; 0: no restarts
  double restart_growth = 1.0;
  int64_t step_every = 1;
  double step_factor = 1.0;
};

struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::adam;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.0, momentum = 0.0;
  double clip_norm = 0.0;  ///< gradients are scaled by min(1, clip_norm / (norm + 1e-6)); 0: no clipping
  LearningRate rate;
  double average_decay = 0.0;  ///< of OptimizerUpdate::average
  bool scale_loss = false;     ///< adapt StepState::loss_scale by `loss_scale`; otherwise it is constant
  LossScaleRule loss_scale = {};
};

struct StepState {
  // Since the log last reset these three. They come first, so that one memory fill resets them.
  double loss_sum = 0.0;  ///< sum of last_loss over steps with a finite loss
  int64_t loss_count = 0;
  double penalty_sum = 0.0;  ///< the part of loss_sum that is a penalty of the prediction

  // Of the current step.
  double window_loss = 0.0;     ///< sum of the losses of the micro-batches so far
  double window_penalty = 0.0;  ///< the part of it that is a penalty of the prediction
  double window_weight = 0.0;   ///< loss terms of all micro-batches of the step

  // Of the run.
  int64_t steps = 0;    ///< updates made; the learning rate and bias corrections depend on it
  int64_t skipped = 0;  ///< steps skipped because a gradient or the loss was not finite
  int64_t consecutive_skips = 0;
  int64_t clean_steps = 0;  ///< updates since the last skip or growth of the loss scale
  double loss_scale = 1.0;
  int64_t non_finite_losses = 0;  ///< micro-batches whose loss was not finite
  int64_t batches_without_room =
      0;                            ///< micro-batches with more world edges than their room; in no checkpoint
  int64_t last_skipped_step = -1;   ///< index of the last skipped step, counted from 0; -1: none
  double last_skipped_scale = 1.0;  ///< loss scale of that step

  // Of the last finished step.
  double last_loss = std::numeric_limits<double>::quiet_NaN();
  double gradient_norm = 0.0;  ///< before clipping, of the unscaled gradients
  double learning_rate = 0.0;

  // Factors of its update.
  double gradient_factor = 0.0;    ///< 1 / loss scale, times the clipping factor
  double step_size = 0.0;          ///< learning rate; adam: over 1 - beta1^step
  double second_correction = 1.0;  ///< adam: 1 / sqrt(1 - beta2^step)
  double shrink = 1.0;             ///< adamw: 1 - learning rate * weight decay
  int64_t skip = 0;                ///< not 0: the update changes nothing
};

// Internal linkage: the simulated device instruments the kernels' copy of these functions, not the host's.

/// The scale after a skipped step, the last of `consecutive_skips` consecutive ones.
MESHGRAD_HOST_DEVICE static inline double scale_after_skip(const LossScaleRule& rule, double scale,
                                                           int64_t consecutive_skips) {
  if (consecutive_skips < rule.hysteresis) return scale;
  const double less = scale * rule.backoff;
  return less > rule.floor ? less : rule.floor;
}

/// The scale after a finite step, the last of `clean_steps`; resets that count when the scale may grow.
MESHGRAD_HOST_DEVICE static inline double scale_after_clean(const LossScaleRule& rule, double scale,
                                                            int64_t& clean_steps) {
  if (clean_steps < rule.interval) return scale;
  clean_steps = 0;
  const double more = scale * rule.growth;
  return more < rule.cap ? more : rule.cap;
}

/// Moves `step`, counted from the first update of the first cycle, to its place in its own cycle; returns
/// that cycle's length.
MESHGRAD_HOST_DEVICE static inline int64_t restarted(const LearningRate& r, int64_t& step) {
  if (r.restart_growth <= 1.0) {
    step %= r.restart_every;
    return r.restart_every;
  }
  auto length = static_cast<double>(r.restart_every);
  while (step >= static_cast<int64_t>(length)) {
    step -= static_cast<int64_t>(length);
    length *= r.restart_growth;
  }
  return static_cast<int64_t>(length);
}

/// Decay of the moving average at this update. Early updates replace more of it, so that it forgets the
/// initial weights: min(decay, (1 + t) / (10 + t)) after t updates, as in TensorFlow.
MESHGRAD_HOST_DEVICE static inline double average_keep(double decay, int64_t updates) {
  const auto t = static_cast<double>(updates);
  const double early = (1.0 + t) / (10.0 + t);
  return early < decay ? early : decay;
}

/// The learning rate of update `step`, counted from 0. The last update of the span (of each cycle, with
/// restarts) has exactly `last`.
MESHGRAD_HOST_DEVICE static inline double rate_at(const LearningRate& r, int64_t step) {
  if (step < r.warmup_steps)
    return r.peak * static_cast<double>(step + 1) / static_cast<double>(r.warmup_steps);
  int64_t done = step - r.warmup_steps;
  const int64_t span = r.restart_every > 0 ? restarted(r, done) : r.span;
  const int64_t steps = span > 2 ? span - 1 : 1;
  double progress = static_cast<double>(done) / static_cast<double>(steps);
  if (progress > 1.0) progress = 1.0;
  switch (r.curve) {
    case RateCurve::constant:
      return r.peak;
    case RateCurve::exponential:
      return r.peak * std::pow(r.last / r.peak, progress);
    case RateCurve::cosine:
      return r.last + 0.5 * (r.peak - r.last) * (1.0 + std::cos(3.14159265358979323846 * progress));
    case RateCurve::step: {
      const int64_t decreases = done / r.step_every;
      const double rate = r.peak * std::pow(r.step_factor, static_cast<double>(decreases));
      return rate > r.last ? rate : r.last;
    }
  }
  return r.peak;
}

/// False for infinities and NaN.
MESHGRAD_HOST_DEVICE static inline bool is_finite(double x) { return x - x == 0.0; }

/// Adds a micro-batch's loss to the step's, `penalty` being a part of `sum`; returns the seed of its backward
/// pass. A batch with `missing` edges has no loss, so that the step is skipped.
MESHGRAD_HOST_DEVICE static inline double note_loss(StepState& s, double sum, double penalty,
                                                    double window_weight, int64_t missing = 0) {
  if (missing > 0) {
    ++s.batches_without_room;
    sum = std::numeric_limits<double>::quiet_NaN();
  }
  s.window_loss += sum;
  s.window_penalty += penalty;
  s.window_weight = window_weight;
  if (!is_finite(sum)) ++s.non_finite_losses;
  return s.loss_scale / window_weight;
}

/// Ends the step: decides whether there is an update, and computes its factors. `squared_norm` is of the
/// gradients as stored, that is, times the loss scale.
MESHGRAD_HOST_DEVICE static inline void decide(StepState& s, const OptimizerSettings& o, double squared_norm,
                                               bool non_finite) {
  s.last_loss = s.window_loss / s.window_weight;
  if (is_finite(s.last_loss)) {
    s.loss_sum += s.last_loss;
    ++s.loss_count;
    s.penalty_sum += s.window_penalty / s.window_weight;
  }
  s.skip = non_finite || !is_finite(s.last_loss) ? 1 : 0;
  s.window_loss = 0.0;
  s.window_penalty = 0.0;
  const double unscale = 1.0 / s.loss_scale;
  s.gradient_norm = std::sqrt(squared_norm) * unscale;
  s.learning_rate = rate_at(o.rate, s.steps);
  if (s.skip != 0) {
    s.last_skipped_step = s.steps + s.skipped;
    s.last_skipped_scale = s.loss_scale;
    ++s.skipped;
    ++s.consecutive_skips;
    s.clean_steps = 0;
    if (o.scale_loss) s.loss_scale = scale_after_skip(o.loss_scale, s.loss_scale, s.consecutive_skips);
    return;
  }
  s.consecutive_skips = 0;
  s.gradient_factor = unscale;
  if (o.clip_norm > 0.0) {
    // The 1e-6 is PyTorch's clip_grad_norm_'s, so that runs can be compared.
    const double share = o.clip_norm / (s.gradient_norm + 1e-6);
    if (share < 1.0) s.gradient_factor *= share;
  }
  ++s.steps;
  s.step_size = s.learning_rate;
  if (o.kind != OptimizerKind::sgd) {
    const auto step = static_cast<double>(s.steps);
    s.step_size /= 1.0 - std::pow(o.beta1, step);
    s.second_correction = 1.0 / std::sqrt(1.0 - std::pow(o.beta2, step));
  }
  s.shrink = 1.0 - s.learning_rate * o.weight_decay;
  if (!o.scale_loss) return;
  ++s.clean_steps;
  s.loss_scale = scale_after_clean(o.loss_scale, s.loss_scale, s.clean_steps);
}

}  // namespace meshgrad
#pragma GCC visibility pop
