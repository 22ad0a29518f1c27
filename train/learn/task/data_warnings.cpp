// SPDX-License-Identifier: Apache-2.0
// MeshTask::validate: what is doubtful about the data, but stops no run.
#include <meshgrad/train/data/quiet_split.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/task/mesh_task.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

namespace meshgrad {
namespace {

void warn_of_noise(const Dataset& dataset, const FieldSelection& fields, const NoiseOptions& options,
                   std::vector<TaskWarning>& warnings) {
  for (const FieldInfo& target : fields.targets) {
    const double noise = options.of(target.name);
    if (noise <= 0 || !fields.reads(target.name)) continue;
    const bool second = fields.second_change();
    const FieldStatistics stats =
        dataset.field_stats(target.name, NodeTypeSet(std::span(fields.config.predicted_types)),
                            second ? Quantity::second_change : Quantity::change);
    double variance = 0;
    for (const double deviation : stats.std) variance += deviation * deviation;
    const double change = std::sqrt(variance / static_cast<double>(std::max<size_t>(stats.std.size(), 1)));
    if (change <= 0 || (noise >= 0.01 * change && noise <= change)) continue;
    const std::string unit = target.unit.empty() ? "" : " " + target.unit;
    warnings.push_back(
        {"train.noise",
         fmt::format("train.noise is {:.3g}{}, {:.2g} times the standard deviation of {}'s {} over a frame, "
                     "{:.3g}{}; 0.01 to 1 "
                     "times is usual",
                     noise, unit, noise / change, target.name, second ? "second change" : "change", change,
                     unit)});
  }
}

void warn_of_scales(const Dataset& dataset, const FieldSelection& fields, const NoiseOptions& noise,
                    std::vector<TaskWarning>& warnings) {
  const auto check = [&](const std::string& what, const std::vector<double>& deviations,
                         const std::string& fix) { warn_of_scale(what, deviations, fix, warnings); };
  check("mesh_pos: distances have", dataset.edge_stats().std, "give positions in a smaller unit");
  const std::string unit = "save the field in a smaller unit";
  for (const FieldSelection::Input& input : fields.inputs)
    check(input.field.name + " has",
          dataset.field_stats(input.field.name, NodeTypeSet::all(), Quantity::value).std, unit);
  for (const FieldInfo& field : fields.edges)
    check(field.name + " has", dataset.field_stats(field.name).std, unit);
  const NodeTypeSet types(std::span(fields.config.predicted_types));
  for (const FieldInfo& target : fields.targets) {
    const Quantity quantity = fields.predicted_quantity(target.name);
    if (quantity != Quantity::value && noise.of(target.name) > Normalizer::kSmallestDeviation) continue;
    check(target.name + (quantity == Quantity::value           ? " has"
                         : quantity == Quantity::second_change ? "'s second change has"
                                                               : "'s change over a frame has"),
          dataset.field_stats(target.name, types, quantity).std, unit);
  }
}

}  // namespace

std::vector<TaskWarning> MeshTask::validate(const Config& config) const {
  std::vector<TaskWarning> warnings;
  for (const std::string& line : dataset.warnings()) warnings.push_back({"data.path", line});
  const int64_t count = samples(config.data.train_split).size();
  if (config.train.batch > count && count > 0) {
    warnings.push_back(
        {"train.batch",
         fmt::format("train.batch = {} with {} to train on: each step takes a sample {:.3g} times",
                     config.train.batch, counted(count, "sample"),
                     static_cast<double>(config.train.batch) / static_cast<double>(count))});
  }
  if (fields.over_time) warn_of_noise(dataset, fields, noise_of(config), warnings);
  warn_of_scales(dataset, fields, noise_of(config), warnings);
  fields.graph_targets.warn(dataset, warnings);
  if (config.train.validate_every == 0 || !fields.over_time) return warnings;
  const std::string& split = config.data.valid_split;
  const NodeTypeSet types(std::span(config.data.predicted_types));
  if (const auto quiet = quiet_split(dataset, split, config.data.targets, types))
    warnings.push_back({"data.valid_split", quiet_split_warning(split, *quiet)});
  return warnings;
}

}  // namespace meshgrad
