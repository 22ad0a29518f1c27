// SPDX-License-Identifier: Apache-2.0
// The metrics of a task that may choose the best model of a run (train.best), and their values.
#pragma once
#include <meshgrad/train/data/field_info.h>
#include <meshgrad/train/learn/task/prediction.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// A metric that says which of two models is better.
struct RankedMetric {
  std::string key;      ///< as train.best has it: "balanced_accuracy", "rmse of drag"
  bool higher = false;  ///< the better value is the higher one
  /// False where one of them is NaN, unless that is `than` alone.
  bool is_better(double value, double than) const;
};

/// "rmse of drag", "mae of drag", "relative_l2 of drag" for each field.
std::vector<RankedMetric> field_metrics(std::span<const FieldInfo> fields);
/// Those of ClassPredictions::write that rank models.
std::vector<RankedMetric> class_metrics();
/// Those of links.
std::vector<RankedMetric> link_metrics();

/// The one that `config` names, or nothing where the best has the lowest error. Throws ConfigError for
/// another name; it lists these.
std::optional<RankedMetric> best_metric_of(const Config& config, const std::vector<RankedMetric>& metrics);

/// The value of `key` among metrics and errors of fields. Throws InternalError where it is not there.
double value_of(std::string_view key, std::span<const Metric> metrics, std::span<const FieldError> fields);

}  // namespace meshgrad
