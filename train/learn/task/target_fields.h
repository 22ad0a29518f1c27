// SPDX-License-Identifier: Apache-2.0
// TargetFields: fields that a model predicts, side by side: of data.targets those on nodes, or those on
// graphs. Every task that predicts numbers holds it.
#pragma once
#include <meshgrad/nn/normalizer.h>
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/learn/task/best_metric.h>
#include <meshgrad/train/learn/task/compared_errors.h>
#include <meshgrad/train/learn/task/prediction.h>
#include <meshgrad/train/learn/task/sample.h>

#include <span>
#include <string>
#include <vector>

namespace meshgrad {

class FieldErrors;  // evaluation.h

/// Adds a warning under "scale" where values vary, but all columns by less than a Normalizer takes for a
/// constant. `what` begins the sentence: "drag has".
void warn_of_scale(const std::string& what, std::span<const double> deviations, const std::string& fix,
                   std::vector<TaskWarning>& found);

struct TargetFields {
  std::vector<FieldInfo> fields;
  int64_t width = 0;  ///< columns of all

  /// The fields on graphs that `names` names. Throws ConfigError for one that is not f32 or an input too, and
  /// DataError for values in the training split that are not finite.
  static TargetFields on_graphs(const Dataset& dataset, const DataConfig& config,
                                std::span<const std::string> names);
  void add(const FieldInfo& field);

  bool empty() const { return fields.empty(); }
  auto begin() const { return fields.begin(); }
  auto end() const { return fields.end(); }
  std::string names() const;  ///< "velocity, pressure"
  std::vector<RankedMetric> metrics() const { return field_metrics(fields); }
  /// At frame t side by side: [rows, width].
  void read(const TrajectoryView& trajectory, int64_t t, std::span<float> values) const;

  // Of fields on graphs, one row a graph.
  /// Throws DataError for values that are not finite.
  std::vector<float> row(const TrajectoryView& trajectory, int64_t t) const;
  /// Adds a warning for each field that is the same in all of the training split, or varies by less than a
  /// Normalizer takes for a constant.
  void warn(const Dataset& dataset, std::vector<TaskWarning>& found) const;
  /// Over the training split.
  Normalizer statistics(const Dataset& dataset) const;
  std::vector<float> means(const Dataset& dataset) const;
  FieldErrors errors(const Dataset& dataset) const;
  /// A row of the model's output in the units of the fields.
  static std::vector<double> in_units(const Normalizer& normalizer, std::span<const double> prediction);
  /// Squared errors of a row in standard deviations of the training split. `columns`: their weights; empty:
  /// 1.
  ComparedErrors compare(const Dataset& dataset, std::span<const double> ours, std::span<const float> truth,
                         std::span<const float> baseline, std::span<const double> columns = {}) const;
  /// Writes graphs' rows [graphs, width] into a batch's `target`, normalised, and 1 into its `mask`; further
  /// graphs, for which it has room, get 0. With `learn` the normaliser learns from them first.
  static void write(std::span<const float> rows, const Tensor& target, const Tensor& mask,
                    Normalizer& normalizer, bool learn);
  /// Of a table of graphs, whose values have the data's offsets.
  std::vector<PredictedTable::Group> columns() const;
  void add_row(PredictedTable& table, const Sample& sample, std::span<const double> row) const;
};

}  // namespace meshgrad
