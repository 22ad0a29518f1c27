// SPDX-License-Identifier: Apache-2.0
// Trainer: the state that an optimizer step leaves, and how a run ends whose loss or gradients are not
// finite.
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/train/learn/run/non_finite.h>
#include <meshgrad/train/learn/run/trainer.h>

#include <fmt/format.h>

#include <string>

namespace meshgrad {

/// On the CPU the state of a step is known at once; that of a GPU arrives with the log.
void Trainer::check_state() {
  if (!runtime_.stream().on_gpu()) check_state(optimizer_->state());
}

/// Single steps may be skipped, but a run whose gradients all overflow would go on for ever without learning.
/// A non-finite loss is an error at once, unless 16 bits may have overflowed.
void Trainer::check_state(const std::optional<StepState>& seen) {
  if (!seen) return;
  state_.optimizer = *seen;
  if (seen->batches_without_room > 0)
    report_non_finite("room for the world edges of every batch", "more than data.world_edges_per_node",
                      *seen);
  if (seen->non_finite_losses > 0 && config_.precision != DType::f16)
    report_non_finite("a finite loss", "nan or infinity", *seen);
  if (seen->consecutive_skips >= config_.loss_scale.max_skips) {
    report_non_finite("a finite gradient",
                      fmt::format("{} steps in a row without one", seen->consecutive_skips), *seen);
  }
  const bool last = seen->steps + seen->skipped + warmup_steps() == loader_.total_steps();
  if (last && seen->consecutive_skips > 0 && !is_finite(seen->last_loss))
    report_non_finite("a finite loss at the last step", "nan or infinity", *seen);
}

/// Ends the run with the first non-finite value that recomputing the last skipped window finds: its weights
/// are what they were, unless a GPU's state arrived so late that steps were taken since.
void Trainer::report_non_finite(std::string_view needed, const std::string& got, const StepState& seen) {
  if (!ranks_.first()) barrier(ranks_, "search for the first non-finite value");  // rank 0 ends all
  const Recomputation recomputation = steps_ ? steps_->recomputation() : Recomputation();
  steps_.reset();  // frees what captured steps hold
  const bool open = !is_finite(seen.window_loss);
  const int64_t window = open ? seen.steps + seen.skipped : seen.last_skipped_step;
  const int64_t step = window + warmup_steps();
  const double scale = open ? seen.loss_scale : seen.last_skipped_scale;
  std::string found = "every value is finite when it is recomputed";
  std::string fix = seen.batches_without_room > 0
                        ? "lower data.world_radius, or raise data.world_edges_per_node"
                        : "lower optimizer.lr, set train.clip_norm, or look for bad values in the data";
  try {
    if (const auto first = find_non_finite_in_window(runtime_, config_, task_, model_, loader_, step, scale,
                                                     normalizers_, recomputation)) {
      found = first->text();
      fix = first->fix(config_.precision);
    }
  } catch (const ConfigError&) {
    throw;  // world edges, which the host finds again, have no room
  } catch (const Error& error) {
    found = std::string("it cannot be recomputed: ") + error.what();
  }
  const std::string scaled =
      config_.precision == DType::f16 ? fmt::format("loss scale {}; ", scale) : std::string();
  throw data_error(fmt::format("step {}", step + 1), needed, fmt::format("{}; {}{}", got, scaled, found),
                   fix);
}

}  // namespace meshgrad
