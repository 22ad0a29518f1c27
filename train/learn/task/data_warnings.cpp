// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/nn/normalizer.h>
#include <meshgrad/train/data/quiet_split.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/task/data_warnings.h>
#include <meshgrad/train/learn/task/sample.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

namespace meshgrad {

std::vector<std::string> noise_warnings(const Dataset& dataset, const Config& config) {
  std::vector<std::string> warnings;
  if (!over_time(config.task.name)) return warnings;
  const NoiseOptions options = noise_of(config);
  const bool second = config.data.predict == Prediction::second_change;
  const auto is_read = [&](const std::string& name) {
    return name == config.data.world_position ||
           std::ranges::find(config.data.inputs, name) != config.data.inputs.end();
  };
  for (const std::string& name : config.data.targets) {
    const double noise = options.of(name);
    if (noise <= 0 || !is_read(name)) continue;
    const FieldInfo& field = dataset.field(name);
    const FieldStatistics stats =
        dataset.field_stats(name, NodeTypeSet(std::span(config.data.predicted_types)),
                            second ? Quantity::second_change : Quantity::change);
    double variance = 0;
    for (const double deviation : stats.std) variance += deviation * deviation;
    const double change = std::sqrt(variance / static_cast<double>(std::max<size_t>(stats.std.size(), 1)));
    if (change <= 0 || (noise >= 0.01 * change && noise <= change)) continue;
    const std::string unit = field.unit.empty() ? "" : " " + field.unit;
    warnings.push_back(
        fmt::format("train.noise is {:.3g}{}, {:.2g} times the standard deviation of {}'s {} over a frame, "
                    "{:.3g}{}; 0.01 to 1 "
                    "times is usual",
                    noise, unit, noise / change, name, second ? "second change" : "change", change, unit));
  }
  return warnings;
}

std::vector<std::string> scale_warnings(const Dataset& dataset, const Config& config) {
  std::vector<std::string> warnings;
  const auto check = [&](const std::string& what, const std::vector<double>& deviations,
                         const std::string& fix) {
    const double largest = deviations.empty() ? 0.0 : *std::max_element(deviations.begin(), deviations.end());
    if (largest <= 0 || largest > Normalizer::kSmallestDeviation) return;
    warnings.push_back(
        fmt::format("{} a standard deviation of only {:.2g}; values that vary by less than {:g} count as "
                    "constant and are not normalised: {}",
                    what, largest, Normalizer::kSmallestDeviation, fix));
  };
  check("mesh_pos: distances have", dataset.edge_stats().std, "give positions in a smaller unit");
  const std::string unit = "save the field in a smaller unit";
  for (const std::string& name : config.data.inputs)
    check(name + " has", dataset.field_stats(name, NodeTypeSet::all(), Quantity::value).std, unit);
  const bool in_time = over_time(config.task.name);
  const bool second = config.data.predict == Prediction::second_change;
  const std::vector<std::string>& values = config.data.value_targets;
  for (const std::string& name : config.data.targets) {
    const bool value = !in_time || std::ranges::find(values, name) != values.end();
    const Quantity quantity = value ? Quantity::value : second ? Quantity::second_change : Quantity::change;
    if (!value && noise_of(config).of(name) > Normalizer::kSmallestDeviation) continue;
    const NodeTypeSet types(std::span(config.data.predicted_types));
    check(name + (value    ? " has"
                  : second ? "'s second change has"
                           : "'s change over a frame has"),
          dataset.field_stats(name, types, quantity).std, unit);
  }
  return warnings;
}

std::vector<TaskWarning> data_warnings(const Dataset& dataset, const Config& config) {
  std::vector<TaskWarning> warnings;
  const auto add = [&](std::string_view key, const std::vector<std::string>& lines) {
    for (const std::string& line : lines) warnings.push_back({key, line});
  };
  add("data.path", dataset.warnings());
  add("train.noise", noise_warnings(dataset, config));
  add("scale", scale_warnings(dataset, config));
  if (config.train.validate_every == 0 || !over_time(config.task.name)) return warnings;
  const std::string& split = config.data.valid_split;
  const NodeTypeSet types(std::span(config.data.predicted_types));
  if (const auto quiet = quiet_split(dataset, split, config.data.targets, types))
    add("data.valid_split", {quiet_split_warning(split, *quiet)});
  return warnings;
}

}  // namespace meshgrad
