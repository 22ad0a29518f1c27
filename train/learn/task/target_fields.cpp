// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/target_fields.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace meshgrad {
namespace {

/// Of a field whose statistics are not finite.
DataError not_finite(const Dataset& dataset, const std::string& name) {
  const std::string& split = dataset.statistics_split();
  int64_t count = 0;
  std::string first;
  for (int64_t i = 0; i < dataset.size(split); ++i) {
    const TrajectoryView view = dataset.trajectory(split, i);
    for (const float value : view.field(name).values) {
      if (std::isfinite(value) || count++ > 0) continue;
      first = fmt::format("{} at {} (split {}, number {})", value, view.name(), split, i);
    }
  }
  return data_error(
      fmt::format("{}: {}", dataset.path().string(), name), "finite numbers, which a model can learn",
      fmt::format("{}, the first of {}", first, count), "leave these graphs out, and convert the data again");
}

}  // namespace

TargetFields TargetFields::on_graphs(const Dataset& dataset, const DataConfig& config,
                                     std::span<const std::string> names) {
  TargetFields targets;
  for (const std::string& name : names) {
    const FieldInfo& field = dataset.field(name);
    if (field.on != FieldOn::graph || field.dtype != DType::f32)
      throw unfit_target("f32 fields on graphs", field);
    if (std::ranges::find(config.inputs, name) != config.inputs.end())
      throw config_error("data.inputs", "fields that are not targets", name, "remove it from data.inputs");
    if (!dataset.node_type_counts().empty()) {
      for (const double mean : dataset.field_stats(name).mean)
        if (!std::isfinite(mean)) throw not_finite(dataset, name);
    }
    targets.add(field);
  }
  return targets;
}

void TargetFields::add(const FieldInfo& field) {
  fields.push_back(field);
  width += field.components;
}

std::string TargetFields::names() const {
  std::string names;
  for (const FieldInfo& field : fields) names.append(names.empty() ? "" : ", ").append(field.name);
  return names;
}

void TargetFields::read(const TrajectoryView& trajectory, int64_t t, std::span<float> values) const {
  const auto all = static_cast<size_t>(width);
  size_t column = 0;
  for (const FieldInfo& field : fields) {
    const std::span<const float> frame = trajectory.field(field.name).frame(t);
    const auto components = static_cast<size_t>(field.components);
    for (size_t i = 0; i < frame.size() / components; ++i)
      std::copy_n(frame.begin() + static_cast<std::ptrdiff_t>(i * components), components,
                  values.begin() + static_cast<std::ptrdiff_t>(i * all + column));
    column += components;
  }
}

std::vector<float> TargetFields::row(const TrajectoryView& trajectory, int64_t t) const {
  std::vector<float> values(static_cast<size_t>(width));
  read(trajectory, t, values);
  size_t column = 0;
  for (const FieldInfo& field : fields) {
    for (int c = 0; c < field.components; ++c, ++column) {
      if (std::isfinite(values[column])) continue;
      throw data_error(fmt::format("{}: {}", trajectory.name(), field.name),
                       "finite numbers, with which predictions are compared",
                       fmt::format("{} in frame {}", values[column], t),
                       "leave this graph out, and convert the data again");
    }
  }
  return values;
}

void warn_of_scale(const std::string& what, std::span<const double> deviations, const std::string& fix,
                   std::vector<TaskWarning>& found) {
  const double largest = deviations.empty() ? 0.0 : std::ranges::max(deviations);
  if (largest <= 0 || largest > Normalizer::kSmallestDeviation) return;
  found.push_back(
      {"scale", fmt::format("{} a standard deviation of only {:.2g}; values that vary by less than {:g} "
                            "count as constant and are not normalised: {}",
                            what, largest, Normalizer::kSmallestDeviation, fix)});
}

void TargetFields::warn(const Dataset& dataset, std::vector<TaskWarning>& found) const {
  for (const FieldInfo& field : fields) {
    const FieldStatistics stats = dataset.field_stats(field.name);
    warn_of_scale(field.name + " has", stats.std, "save the field in a smaller unit", found);
    if (stats.count < 1 || std::ranges::any_of(stats.std, [](double deviation) { return deviation > 0; }))
      continue;
    std::vector<double> values = stats.mean;
    for (size_t c = 0; c < values.size(); ++c) values[c] += field.offset_of(c);
    found.push_back(
        {"data.targets", fmt::format("{} is {:g} in all of split {}: nothing can be learned of it",
                                     field.name, fmt::join(values, ", "), dataset.statistics_split())});
  }
}

Normalizer TargetFields::statistics(const Dataset& dataset) const {
  std::vector<double> mean, deviation;
  for (const FieldInfo& field : fields) {
    const FieldStatistics stats = dataset.field_stats(field.name);
    mean.insert(mean.end(), stats.mean.begin(), stats.mean.end());
    deviation.insert(deviation.end(), stats.std.begin(), stats.std.end());
  }
  return Normalizer::fixed(mean, deviation);
}

std::vector<float> TargetFields::means(const Dataset& dataset) const {
  const std::vector<double> means = statistics(dataset).means();
  return {means.begin(), means.end()};
}

FieldErrors TargetFields::errors(const Dataset& dataset) const {
  std::vector<double> centres;
  for (const FieldInfo& field : fields) {
    const std::vector<double> of_field = centres_of(field, dataset.field_stats(field.name));
    centres.insert(centres.end(), of_field.begin(), of_field.end());
  }
  return FieldErrors(fields, centres);
}

std::vector<double> TargetFields::in_units(const Normalizer& normalizer, std::span<const double> prediction) {
  std::vector<double> values;
  for (size_t c = 0; c < prediction.size(); ++c)
    values.push_back(normalizer.mean(c) + normalizer.standard_deviation(c) * prediction[c]);
  return values;
}

ComparedErrors TargetFields::compare(const Dataset& dataset, std::span<const double> ours,
                                     std::span<const float> truth, std::span<const float> baseline,
                                     std::span<const double> columns) const {
  const Normalizer spread = statistics(dataset);
  ComparedErrors sums;
  for (size_t c = 0; c < truth.size(); ++c) {
    const auto value = static_cast<double>(truth[c]);
    const double unit = spread.standard_deviation(c), weight = columns.empty() ? 1.0 : columns[c];
    const double error = (ours[c] - value) / unit;
    const double missed = (static_cast<double>(baseline[c]) - value) / unit;
    sums += {weight * error * error, weight * missed * missed, weight};
  }
  return sums;
}

void TargetFields::write(std::span<const float> rows, const Tensor& target, const Tensor& mask,
                         Normalizer& normalizer, bool learn) {
  dispatch_storage(target.dtype(), [&]<class T>() {
    const std::span<T> all = target.values<T>();
    std::ranges::fill(all, T(0));
    const std::span<T> real = all.first(rows.size());
    std::ranges::transform(rows, real.begin(), [](float value) { return static_cast<T>(value); });
    if (learn) normalizer.accumulate(std::span<const T>(real));
    normalizer.normalize(real);
  });
  const std::span<uint8_t> counts = mask.values<uint8_t>();
  const size_t graphs = rows.size() / static_cast<size_t>(target.width());
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = i < graphs ? 1 : 0;
}

std::vector<PredictedTable::Group> TargetFields::columns() const {
  std::vector<PredictedTable::Group> groups;
  for (const FieldInfo& field : fields) groups.push_back({field.name, field.components});
  return groups;
}

void TargetFields::add_row(PredictedTable& table, const Sample& sample, std::span<const double> row) const {
  table.numbers.push_back(sample.trajectory);
  table.frames.push_back(sample.frame);
  size_t column = 0;
  for (const FieldInfo& field : fields)
    for (size_t c = 0; std::cmp_less(c, field.components); ++c)
      table.values.push_back(row[column++] + field.offset_of(c));
}

}  // namespace meshgrad
