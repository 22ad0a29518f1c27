// SPDX-License-Identifier: Apache-2.0
// Trainer: what a model is worth on other data while it trains, and which one is the best.
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/learn/run/trainer.h>
#include <meshgrad/train/learn/run/validation.h>

#include <fmt/format.h>

namespace meshgrad {

/// Before the first step, so that what the run learns can be told; untrained weights are no best. With
/// online normalisers the first validation is at the end of their warm-up.
bool Trainer::validate_start() {
  if (state_.step > 0 || state_.micro > 0 || warming_up() || config_.train.validate_every == 0) return true;
  state_.validation_due = !validate(false);
  return !state_.validation_due;
}

/// False when the observer stopped it.
bool Trainer::validate(bool may_be_best) {
  if (warming_up()) return true;
  const Span span("validation");
  pause();
  MeshParts* const parts = parts_ ? &*parts_ : nullptr;
  const Tensor& average = optimizer_->average();
  const std::optional<Validation> found = validate_model(
      runtime_, ranks_, task_, model_, average, normalizers_, config_, options_.observer.stop, parts);
  if (!found) return false;
  state_.last_valid_loss = found->loss;
  state_.last_valid_error = found->error;
  MetricsRow row{{"step", state_.step},
                 {"valid_loss", found->loss},
                 {"valid_error", found->error},
                 {"valid_baseline", found->baseline}};
  std::vector<std::pair<std::string, double>> scalars{{"valid/loss", found->loss},
                                                      {"valid/error", found->error}};
  std::string text = fmt::format("step {}: validation error {:.4g}, baseline {:.4g}", state_.step,
                                 found->error, found->baseline);
  if (config_.train.validate_rollouts > 0) {
    const ValidationRollouts rollouts =
        validation_rollouts(runtime_, ranks_, task_, model_, average, normalizers_, config_, parts);
    state_.last_valid_rollout = rollouts.error;
    row.insert(row.end(), {{"valid_rollout", rollouts.error}, {"valid_rollout_baseline", rollouts.baseline}});
    scalars.emplace_back("valid/rollout", rollouts.error);
    text += fmt::format("; rollouts {:.4g}, baseline {:.4g}", rollouts.error, rollouts.baseline);
  }
  flush_log();
  if (log_) log_->write(row, scalars);
  const bool by_rollout = config_.train.best == BestBy::rollout;
  const bool lower = by_rollout
                         ? state_.last_valid_rollout < state_.best_valid_rollout && is_finite(found->error)
                         : found->error < state_.best_valid_error;
  const bool better = may_be_best && lower;
  RunEvent::Fields fields{row.begin() + 1, row.end()};
  fields.emplace_back("best", better);
  tell(RunEventKind::validation, text + (better ? " (best so far)" : ""), std::move(fields));
  if (better) {
    state_.best_valid_loss = found->loss;
    state_.best_valid_error = found->error;
    if (by_rollout) state_.best_valid_rollout = state_.last_valid_rollout;
    state_.best_step = state_.step;
    save(true);
  }
  return true;
}

/// Of a checkpoint whose best model was chosen by another figure than this run's: that model is validated
/// before the run goes on, or the next validation is the best.
void Trainer::validate_best_again(const std::filesystem::path& resumed) {
  if (state_.best_step < 0 || is_finite(state_.best_valid_error)) return;
  const std::string chosen =
      fmt::format("the best checkpoint, of step {}, was chosen by the loss", state_.best_step);
  if (!path_exists(folder_.best()) ||
      load_checkpoint(folder_.best(), runtime_.stream(), model_.parameters, nullptr, normalizers_).step !=
          state_.best_step) {
    tell(RunEventKind::settings, chosen + ", and is not there: the next validation is the best");
  } else if (const std::optional<Validation> found =
                 validate_model(runtime_, ranks_, task_, model_, {}, normalizers_, config_,
                                options_.observer.stop, parts_ ? &*parts_ : nullptr)) {
    state_.best_valid_error = found->error;
    tell(RunEventKind::settings, fmt::format("{}: validated again, error {:.4g}, baseline {:.4g}", chosen,
                                             found->error, found->baseline));
  }
  load_checkpoint(resumed, runtime_.stream(), model_.parameters, &*optimizer_, normalizers_);
}

}  // namespace meshgrad
