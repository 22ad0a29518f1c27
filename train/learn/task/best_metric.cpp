// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/task/best_metric.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace meshgrad {
namespace {

/// Errors of fields, all the lower the better.
constexpr struct {
  std::string_view prefix;
  double FieldError::*value;
} kOfFields[] = {{"rmse of ", &FieldError::rmse},
                 {"mae of ", &FieldError::mae},
                 {"relative_l2 of ", &FieldError::relative_l2}};

/// "Balanced accuracy" as "balanced_accuracy".
std::string key_of(std::string_view name) {
  std::string key(name);
  for (char& c : key) {
    if (c == ' ') c = '_';
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return key;
}

}  // namespace

bool RankedMetric::is_better(double value, double than) const {
  if (std::isnan(value) || std::isnan(than)) return !std::isnan(value);
  return higher ? value > than : value < than;
}

std::vector<RankedMetric> field_metrics(std::span<const FieldInfo> fields) {
  std::vector<RankedMetric> metrics;
  for (const FieldInfo& field : fields)
    for (const auto& error : kOfFields) metrics.push_back({std::string(error.prefix) + field.name, false});
  return metrics;
}

std::vector<RankedMetric> class_metrics() {
  std::vector<RankedMetric> metrics;
  for (const char* const key :
       {"accuracy", "balanced_accuracy", "f1", "matthews", "auc", "average_precision"})
    metrics.push_back({key, true});
  metrics.push_back({"cross_entropy", false});
  return metrics;
}

std::vector<RankedMetric> link_metrics() {
  return {{"auc", true}, {"average_precision", true}, {"cross_entropy", false}};
}

std::optional<RankedMetric> best_metric_of(const Config& config, const std::vector<RankedMetric>& metrics) {
  const std::string key = best_metric(config);
  if (key.empty()) return std::nullopt;
  const auto found = std::ranges::find(metrics, key, &RankedMetric::key);
  if (found != metrics.end()) return *found;
  std::string names;
  for (const RankedMetric& metric : metrics)
    names.append(names.empty() ? "" : ", ").append(toml_quoted(metric.key));
  throw config_error("train.best",
                     fmt::format("\"auto\", \"loss\", \"rollout\" or a metric of task.name = \"{}\": {}",
                                 name_of(config.task.name), names),
                     toml_quoted(key), "name one of these");
}

double value_of(std::string_view key, std::span<const Metric> metrics, std::span<const FieldError> fields) {
  for (const Metric& metric : metrics)
    if (key_of(metric.name) == key) return metric.value;
  for (const FieldError& field : fields)
    for (const auto& error : kOfFields)
      if (key == std::string(error.prefix) + field.name) return field.*error.value;
  check_internal(false, "a value of each metric that a task names");
  return std::nan("");
}

}  // namespace meshgrad
