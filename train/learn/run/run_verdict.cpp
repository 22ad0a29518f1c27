// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/run/run_start.h>
#include <meshgrad/train/learn/run/run_verdict.h>

#include <fmt/format.h>

#include <optional>

namespace meshgrad {
namespace {

using Row = std::map<std::string, double>;
using Verdict = RunVerdict::Kind;

double value_of(const Row& row, const char* key) {
  const auto found = row.find(key);
  return found == row.end() ? std::nan("") : found->second;
}

std::string_view baseline_of(const Config& config) {
  if (config.task.name == TaskName::mesh_dynamics) return "nothing changes";
  if (config.task.name == TaskName::steady_field)
    return "the mean over the nodes of a type, of numbers over the meshes";
  if (config.task.name == TaskName::graph_regression) return "the mean over the graphs trained on";
  if (config.task.name == TaskName::link_reconstruction) return "every pair is linked with probability 1/2";
  return "how frequent each class is";
}

/// A model's figure by which the best is chosen, and that of the baseline.
struct Figure {
  int64_t step = -1;
  bool of_rollouts = false;
  double error = 0.0, baseline = 0.0;
};

Figure figure_of(const Row& row, bool by_rollout) {
  const double rollout = value_of(row, "valid_rollout");
  const auto step = static_cast<int64_t>(row.at("step"));
  if (by_rollout && std::isfinite(rollout))
    return {step, true, rollout, value_of(row, "valid_rollout_baseline")};
  return {step, false, value_of(row, "valid_error"), value_of(row, "valid_baseline")};
}

/// As Trainer::lower_than_best.
bool is_better(const Figure& one, const std::optional<Figure>& best) {
  if (!best || one.of_rollouts != best->of_rollouts) return !best || one.of_rollouts;
  return one.error < best->error;
}

}  // namespace

std::string_view name_of(Verdict kind) {
  constexpr std::string_view kNames[] = {"learned", "worse_than_baseline", "nothing_learned", "not_finite",
                                         "unknown"};
  return kNames[static_cast<size_t>(kind)];
}

RunVerdict verdict_of(std::span<const Row> metrics, const Config& config) {
  const auto untrained = static_cast<double>(learns_normalizers(config) ? config.normalize.warmup_steps : 0);
  const bool by_rollout = best_by_rollout(config);
  const std::string metric = best_metric(config);
  const Row *first = nullptr, *last = nullptr, *loss = nullptr;
  std::optional<Figure> best;
  bool rolled_out = false;
  for (const Row& row : metrics) {
    if (row.contains("loss") && row.at("step") > untrained) loss = &row;
    if (!row.contains("valid_error")) continue;
    if (row.at("step") <= untrained) {
      first = &row;
      continue;
    }
    last = &row;
    rolled_out = rolled_out || row.contains("valid_rollout");
    const Figure figure = figure_of(row, by_rollout);
    const bool better = metric.empty() ? is_better(figure, best) : value_of(row, "valid_metric_best") == 1.0;
    if (std::isfinite(figure.error) && better) best = figure;
  }
  RunVerdict verdict;
  const auto say = [&](Verdict kind, std::string text) {
    verdict.kind = kind;
    verdict.text = std::move(text);
    return verdict;
  };
  if (loss != nullptr && !std::isfinite(loss->at("loss")))
    return say(Verdict::not_finite, fmt::format("not finite: the loss at step {:.0f}", loss->at("step")));
  if (last == nullptr)
    return say(Verdict::unknown, config.train.validate_every == 0
                                     ? "unknown: no validation (train.validate_every = 0)"
                                     : "unknown: no validation of a trained model");
  verdict.last_step = static_cast<int64_t>(last->at("step"));
  const double end = last->at("valid_error");
  if (std::isfinite(end) && !best && !metric.empty())
    return say(Verdict::not_finite, fmt::format("not finite: {} of all validations", metric));
  if (!std::isfinite(end) || !best)
    return say(Verdict::not_finite,
               fmt::format("not finite: the validation error at step {}", verdict.last_step));
  if (by_rollout && rolled_out && !best->of_rollouts)
    return say(Verdict::not_finite, "not finite: the rollouts of all validations");
  verdict.best_step = best->step;
  verdict.ratio = best->error / best->baseline;
  const bool beats_baseline = best->error < best->baseline;
  if (!beats_baseline && first != nullptr && !(end < first->at("valid_error"))) {
    constexpr double kDiverged = 2.0;
    const double begin = first->at("valid_error");
    return say(Verdict::nothing_learned,
               fmt::format("nothing learned: the validation error at the end, {:.4g}, is not below that "
                           "before the first step, {:.4g}{}",
                           end, begin, end > kDiverged * begin ? "; lower optimizer.lr" : ""));
  }
  const std::string figures =
      fmt::format("{}the best model, of step {}, has {:.4g} times the error of the baseline ({})",
                  best->of_rollouts ? "over rollouts " : "", best->step, verdict.ratio, baseline_of(config));
  if (beats_baseline) return say(Verdict::learned, "learned: " + figures);
  return say(Verdict::worse_than_baseline, "worse than the baseline: " + figures);
}

}  // namespace meshgrad
