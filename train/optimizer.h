// SPDX-License-Identifier: Apache-2.0
// Optimizer: the state beside the parameters, the learning-rate schedule, and the step.
#pragma once
#include <meshgrad/kernels/optimizer.h>
#include <meshgrad/nn/parameter.h>
#include <meshgrad/train/config.h>

namespace meshgrad {

/// Learning rate of update `step` (0 for the first): linear warm-up over warmup_steps, then constant,
/// exponential decay to final_lr, or half a cosine to final_lr, over decay_steps.
double learning_rate(const ScheduleConfig& schedule, double peak, int64_t total_steps, int64_t step);

/// Owns moments of the parameters' arena. One fused pass a step: unscale, clip by global norm, update.
class Optimizer {
 public:
  Optimizer(Runtime& runtime, const ParameterSet& parameters, const OptimizerConfig& config,
            double clip_norm);

  /// Applies the gradients of the parameters' arena and clears them. Returns the norm before clipping. A step
  /// with a non-finite gradient changes nothing, is not counted, and returns a non-finite norm.
  double step(double learning_rate);

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  /// Moments, as arenas like the parameters'; undefined where the kind of optimizer has none.
  const Tensor& first_moment() const { return first_moment_; }
  const Tensor& second_moment() const { return second_moment_; }

 private:
  Runtime& runtime_;
  Tensor values_, gradients_;
  OptimizerConfig config_;
  double clip_norm_;
  int64_t steps_ = 0;
  Tensor first_moment_, second_moment_;
  Tensor squared_norm_, non_finite_;
};

}  // namespace meshgrad
