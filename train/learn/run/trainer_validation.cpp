// SPDX-License-Identifier: Apache-2.0
// Trainer: what a model is worth on other data while it trains, and which one is the best.
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/learn/run/trainer.h>
#include <meshgrad/train/learn/run/validation.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

namespace meshgrad {
namespace {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

/// Before the first step, so that what the run learns can be told; untrained weights are no best. With
/// online normalisers the first validation is at the end of their warm-up.
bool Trainer::validate_start() {
  if (state_.step > 0 || state_.micro > 0 || warming_up() || config_.train.validate_every == 0) return true;
  state_.validation_due = !validate(false);
  return !state_.validation_due;
}

/// Nothing when the observer stopped it. Of an untrained model neither rollouts nor metrics say anything.
std::optional<Trainer::Found> Trainer::find_errors(const Tensor& average, bool trained) {
  MeshParts* const parts = parts_ ? &*parts_ : nullptr;
  const std::function<bool()>& stop = options_.observer.stop;
  const Stopwatch watch;
  std::optional<Validation> samples = validate_model(runtime_, ranks_, task_, model_, average, normalizers_,
                                                     config_, stop, options_.long_batch, parts);
  if (!samples) return std::nullopt;
  Found found{.samples = *samples, .rollouts = {}, .metric = {}};
  if (!trained) return found;
  const bool rolls = validated_rollouts(config_) > 0;
  if (best_metric_ && !rolls) {
    found.metric = validation_metric(runtime_, ranks_, task_, model_, average, normalizers_, config_,
                                     best_metric_->key, stop, parts);
    if (!found.metric) return std::nullopt;
  }
  if (!plan_validations(watch.seconds())) return std::nullopt;
  if (!rolls) return found;
  found.rollouts = validation_rollouts(runtime_, ranks_, task_, model_, average, normalizers_, config_,
                                       state_.rollout_steps, stop, parts);
  if (!found.rollouts) return std::nullopt;
  if (best_metric_) found.metric = {value_of(best_metric_->key, {}, found.rollouts->fields), {}};
  return found;
}

/// False when the observer stopped it.
bool Trainer::validate(bool may_be_best) {
  if (warming_up()) return true;
  const Span span("validation");
  pause();
  const Stopwatch watch;
  const std::optional<Found> found = find_errors(optimizer_->average(), may_be_best);
  if (!found) return false;
  const Validation& samples = found->samples;
  MetricsRow row{{"step", state_.step},
                 {"valid_loss", samples.loss},
                 {"valid_error", samples.error},
                 {"valid_baseline", samples.baseline}};
  std::vector<std::pair<std::string, double>> scalars{{"valid/loss", samples.loss},
                                                      {"valid/error", samples.error}};
  std::string text = fmt::format("step {}: validation error {:.4g}, baseline {:.4g}", state_.step,
                                 samples.error, samples.baseline);
  state_.last_valid_loss = samples.loss;
  state_.last_valid_error = samples.error;
  state_.last_valid_rollout = state_.last_valid_metric = std::nan("");
  if (found->rollouts) {
    const ValidationRollouts& rollouts = *found->rollouts;
    state_.last_valid_rollout = rollouts.error;
    row.insert(row.end(), {{"valid_rollout", rollouts.error},
                           {"valid_rollout_baseline", rollouts.baseline},
                           {"valid_rollout_steps", rollouts.steps}});
    scalars.emplace_back("valid/rollout", rollouts.error);
    text += fmt::format("; rollouts {:.4g}, baseline {:.4g}", rollouts.error, rollouts.baseline);
  }
  if (found->metric) {
    state_.last_valid_metric = found->metric->value;
    scalars.emplace_back("valid/" + best_metric_->key, found->metric->value);
    text += fmt::format("; {} {:.4g}", best_metric_->key, found->metric->value);
    if (!found->metric->why_nan.empty()) text += fmt::format(" ({})", found->metric->why_nan);
  }
  const bool better = may_be_best && better_than_best();
  if (found->metric)
    row.insert(row.end(), {{"valid_metric", found->metric->value}, {"valid_metric_best", better}});
  flush_log();
  if (log_) log_->write(row, scalars);
  RunEvent::Fields fields{row.begin() + 1, row.end()};
  fields.insert(fields.end(), {{"best", better}, {"best_by", best_by()}});
  const std::string by = best_metric_ ? " by " + best_metric_->key : "";
  tell(RunEventKind::validation, text + (better ? fmt::format(" (best so far{})", by) : ""),
       std::move(fields));
  if (better) {
    keep_as_best(*found);
    state_.best_step = state_.step;
    save(true);
  }
  validation_seconds_ += watch.seconds();
  return true;
}

void Trainer::keep_as_best(const Found& found) {
  state_.best_valid_loss = found.samples.loss;
  state_.best_valid_error = found.samples.error;
  if (best_by_rollout(config_) && found.rollouts && is_finite(found.rollouts->error))
    state_.best_valid_rollout = found.rollouts->error;
  if (found.metric) state_.best_valid_metric = found.metric->value;
}

/// The last validation: by its metric; by rollouts, unless all so far have diverged; or by its error.
bool Trainer::better_than_best() const {
  const double error = state_.last_valid_error, rollout = state_.last_valid_rollout;
  if (best_metric_)
    return is_finite(error) && is_finite(state_.last_valid_metric) &&
           best_metric_->is_better(state_.last_valid_metric, state_.best_valid_metric);
  const bool by_rollout =
      best_by_rollout(config_) && (is_finite(rollout) || is_finite(state_.best_valid_rollout));
  return by_rollout ? rollout < state_.best_valid_rollout && is_finite(error)
                    : error < state_.best_valid_error;
}

/// What chooses the best, as train.best has it.
std::string Trainer::best_by() const {
  if (best_metric_) return best_metric_->key;
  return best_by_rollout(config_) ? "rollout" : "loss";
}

int64_t Trainer::validate_every() const {
  return config_.train.validate_every * std::max<int64_t>(1, state_.validation_interval);
}

/// Early stopping. Only counters of the checkpoint decide, so that a resumed run ends at the same step.
bool Trainer::out_of_patience() const {
  if (config_.train.patience == 0) return false;
  const int64_t since_best = state_.step - std::max(state_.best_step, warmup_steps());
  return since_best / validate_every() >= config_.train.patience;
}

/// Once, at the first validation of a trained model, from what its steps and a few steps of the rollouts
/// take. With train.patience the clock must not decide where a run ends. False: stopped.
bool Trainer::plan_validations(double seconds_of_samples) {
  if (state_.validation_interval > 0 || config_.train.validate_share >= 1.0 || config_.train.patience > 0)
    return true;
  const std::vector<int64_t> lengths = validated_lengths(task_, config_);
  const int64_t every = std::min(config_.train.validate_every, loader_.total_steps());
  ValidationTimes seconds{.training = static_cast<double>(every) * seconds_of_step(seconds_of_samples),
                          .samples = seconds_of_samples};
  int64_t measured = 0;
  for (const int64_t length : lengths) measured += std::min(length, kFewestRolloutSteps);
  if (measured > 0) {
    const Stopwatch watch;
    if (!validation_rollouts(runtime_, ranks_, task_, model_, optimizer_->average(), normalizers_, config_,
                             kFewestRolloutSteps, options_.observer.stop, parts_ ? &*parts_ : nullptr))
      return false;
    seconds.rollout_step = watch.seconds() / static_cast<double>(measured);
  }
  ValidationPlan plan = plan_validation(seconds, lengths, config_.train.validate_share);
  if (!ranks_.single())
    broadcast(ranks_, std::as_writable_bytes(std::span(&plan, 1)), 0, "plan of validations");
  state_.validation_interval = plan.interval;
  state_.rollout_steps = plan.rollout_steps;
  const std::string why =
      fmt::format("so that validations take at most {:.3g} % of the time of steps (train.validate_share)",
                  100.0 * config_.train.validate_share);
  if (plan.rollout_steps > 0) {
    tell(RunEventKind::settings,
         fmt::format("validation rolls out the first {} steps of {}, {}", plan.rollout_steps,
                     *std::ranges::max_element(lengths), why),
         {{"rollout_steps", plan.rollout_steps}});
  }
  if (plan.interval > 1) {
    tell(RunEventKind::settings,
         fmt::format("validation every {} steps instead of {}, {}", validate_every(),
                     config_.train.validate_every, why),
         {{"validate_every", validate_every()}});
  }
  return true;
}

/// Mean of this process' steps but the first, which plans and tunes, and those that only observe. Before the
/// second: a guess, by the time that validation takes of a sample.
double Trainer::seconds_of_step(double seconds_of_samples) {
  const size_t steps = step_seconds_.size();
  const size_t trained = std::min(steps, static_cast<size_t>(state_.step - warmup_steps()));
  const size_t first = std::max<size_t>(1, steps - trained);
  if (first < steps) {
    double sum = 0.0;
    for (size_t i = first; i < steps; ++i) sum += static_cast<double>(step_seconds_[i]);
    return sum / static_cast<double>(steps - first);
  }
  constexpr double kForwardPasses = 3.0;
  const int64_t all = task_.for_validation().samples(config_.data.valid_split).size();
  const int64_t asked = config_.train.validate_samples;
  const auto samples = static_cast<double>(asked > 0 ? std::min(asked, all) : all);
  return kForwardPasses * seconds_of_samples / samples *
         static_cast<double>(loader_.window_samples(state_.step));
}

/// Where the best model of the resumed checkpoint was chosen by another figure than this run's, it is
/// validated before the run goes on; if it is no longer there, the next validation is the best.
void Trainer::validate_best_again(const std::filesystem::path& resumed) {
  const TrainConfig saved = checkpoint_config(resumed).train;
  const auto first_validation = [](const TrainConfig& train) {
    return std::pair(train.epochs, std::min(train.validate_every, train.steps));
  };
  if (saved.validate_every != config_.train.validate_every ||
      first_validation(saved) != first_validation(config_.train) ||
      saved.validate_rollouts != config_.train.validate_rollouts ||
      saved.validate_share != config_.train.validate_share) {
    state_.validation_interval = state_.rollout_steps = 0;
    state_.best_valid_rollout = std::numeric_limits<double>::infinity();
    if (validated_rollouts(config_) > 0) state_.best_valid_metric = std::nan("");
  }
  if (!best_metric_ || saved.best != config_.train.best) state_.best_valid_metric = std::nan("");
  const double figure = best_metric_               ? state_.best_valid_metric
                        : best_by_rollout(config_) ? state_.best_valid_rollout
                                                   : state_.best_valid_error;
  if (state_.best_step < 0 || config_.train.validate_every == 0 || is_finite(figure)) return;
  const std::string best = fmt::format("the best checkpoint, of step {}", state_.best_step);
  const auto step_of_best = [&]() -> int64_t {
    if (!path_exists(folder_.best())) return -1;
    try {
      return load_checkpoint(folder_.best(), runtime_.stream(), model_.parameters, nullptr, normalizers_)
          .step;
    } catch (const DataError&) {  // damaged: the run needs it no more
      return -1;
    }
  };
  if (step_of_best() != state_.best_step) {
    state_.best_valid_error = std::numeric_limits<double>::infinity();
    tell(RunEventKind::settings, best + ", cannot be compared: the next validation is the best");
  } else {
    if (const std::optional<Found> found = find_errors({}, true)) {
      keep_as_best(*found);
      std::string text = fmt::format(
          "{}, is validated again, as this run compares other figures: error {:.4g}, baseline {:.4g}", best,
          found->samples.error, found->samples.baseline);
      if (found->rollouts)
        text += fmt::format("; rollouts {:.4g}, baseline {:.4g}", found->rollouts->error,
                            found->rollouts->baseline);
      if (found->metric) text += fmt::format("; {} {:.4g}", best_metric_->key, found->metric->value);
      tell(RunEventKind::settings, text);
    }
  }
  load_checkpoint(resumed, runtime_.stream(), model_.parameters, &*optimizer_, normalizers_);
}

}  // namespace meshgrad
