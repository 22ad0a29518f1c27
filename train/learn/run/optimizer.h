// SPDX-License-Identifier: Apache-2.0
// Optimizer: the state beside the parameters, the learning-rate schedule, the loss scale, and the step.
#pragma once
#include <meshgrad/kernels/step_state.h>
#include <meshgrad/nn/parameter.h>
#include <meshgrad/train/learn/config/config.h>

#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

struct LossTerms;

/// Linear warm-up over warmup_steps, then constant, exponential decay to final_lr, or half a cosine to
/// final_lr, over decay_steps (0: the rest of total_steps).
LearningRate learning_rate(const ScheduleConfig& schedule, double peak, int64_t total_steps);

/// Elements [begin, end) of the parameters' arena.
struct ArenaRange {
  int64_t begin = 0, end = 0;
};

/// What the patterns of train.freeze name, in ascending order: a parameter, or all whose names begin with the
/// pattern and a dot; `*` matches any text. Throws ConfigError for a pattern that names none, and when
/// nothing is left to train.
std::vector<ArenaRange> frozen_ranges(const ParameterSet& parameters,
                                      const std::vector<std::string>& patterns);

/// "train.freeze: 5 of 39 parameters, 1200 of 10932 values, are not trained", for people.
std::string describe_frozen(const ParameterSet& parameters, const std::vector<std::string>& patterns);

/// "learning rate 1e-03, then exponential decay to 1e-06 at step 3000", for people.
std::string describe_schedule(const LearningRate& rate);
/// What a resumed run changes of the learning rate after `updates`, or empty. Of runs in epochs nothing is
/// said.
std::string describe_rate_change(const Config& saved, const Config& now, int64_t updates);

/// Owns moments of the parameters' arena and the StepState. Nothing here waits for the device but state().
class Optimizer {
 public:
  /// With parameters stored in f16 the loss is scaled. Throws InvalidArgument before they are allocated.
  Optimizer(Runtime& runtime, const ParameterSet& parameters, const OptimizerConfig& config, double clip_norm,
            const LearningRate& rate, const LossScaleRule& loss_scale = {});
  /// With all of a configuration that concerns it: optimizer, schedule over `total_steps`, train.clip_norm,
  /// loss_scale, train.freeze, train.ema. Throws ConfigError.
  Optimizer(Runtime& runtime, const ParameterSet& parameters, const Config& config, int64_t total_steps);

  /// Adds a batch's loss (f64 [1]) to the window of `window_weight` (f64 [1]) loss terms; returns the seed of
  /// its backward pass. A weight of 0, of a mask of zeros, throws InvalidArgument on the CPU; on a GPU step()
  /// skips the window.
  Tensor note_loss(Runtime& runtime, const Tensor& sum, const Tensor& window_weight) const;
  /// The same with the penalty, for the log.
  Tensor note_loss(Runtime& runtime, const LossTerms& loss, const Tensor& window_weight) const;
  /// Ends the window: applies the gradients of the parameters' arena and clears them. With a non-finite
  /// gradient or loss it only clears them, and counts the window as skipped.
  void step(Runtime& runtime) const;

  /// The squared norm of the gradients accumulated so far, without the loss scale and frozen parameters; an
  /// empty window's is 0. Waits for the device.
  double squared_gradient_norm(Runtime& runtime) const;

  /// Leaves these parameters as they are: no update, no weight decay, no share of the gradient norm.
  void freeze(std::vector<ArenaRange> ranges);
  /// Starts an exponential moving average of the weights from their present values: after each update
  /// a += (1 - k) (w - a), with k = min(decay, (1 + t) / (10 + t)) after t updates.
  void start_average(Runtime& runtime, double decay);

  /// Where the parameters' gradients are now, or nothing while they are released.
  void use_gradients(const Tensor& gradients) { gradients_ = gradients; }

  /// Waits for the device.
  StepState state() const;
  void set_state(const StepState& state);
  /// A StepState as bytes, u8, in device memory.
  const Tensor& state_tensor() const { return state_; }

  /// Moments, as arenas like the parameters'; undefined where the kind of optimizer has none.
  const Tensor& first_moment() const { return first_moment_; }
  const Tensor& second_moment() const { return second_moment_; }
  /// The average of the weights, undefined without start_average.
  const Tensor& average() const { return average_; }

 private:
  Tensor note(Runtime& runtime, const Tensor& sum, const Tensor& penalty, const Tensor& missing,
              const Tensor& window_weight) const;
  void clear_frozen_gradients() const;

  Stream stream_;
  OptimizerSettings settings_;
  Tensor values_, gradients_, storage_;
  Tensor first_moment_, second_moment_, average_;
  Tensor state_, squared_norm_, non_finite_;
  std::vector<ArenaRange> frozen_, trained_;
};

}  // namespace meshgrad
#pragma GCC visibility pop
