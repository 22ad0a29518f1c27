// SPDX-License-Identifier: Apache-2.0
// Whether a run has learned anything of use, from its metrics.jsonl: train, doctor and report say the same.
#pragma once
#include <meshgrad/train/learn/config/config.h>

#include <cmath>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace meshgrad {

struct RunVerdict {
  enum class Kind : uint8_t {
    learned,              ///< the best model is better than the baseline
    worse_than_baseline,  ///< it is not
    nothing_learned,      ///< the validation error at the end is not below that before the first step
    not_finite,           ///< the last loss, or the last validation error
    unknown               ///< there is no validation of a trained model
  };
  Kind kind = Kind::unknown;
  std::string text;  ///< "learned: ...", with the figures, for people
  /// Of the best model's error over that of the baseline, by what best_by_rollout says; NaN: unknown. With
  /// best_metric the best model is that of the metric.
  double ratio = std::nan("");
  int64_t best_step = -1, last_step = -1;  ///< of validations

  /// Not worth using.
  bool useless() const { return kind != Kind::learned && kind != Kind::unknown; }
};
/// "learned", "worse_than_baseline", ...
std::string_view name_of(RunVerdict::Kind kind);

/// `metrics` as read_metrics gives them; `config` is that of the run.
RunVerdict verdict_of(std::span<const std::map<std::string, double>> metrics, const Config& config);

}  // namespace meshgrad
