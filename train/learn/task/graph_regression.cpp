// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/task/batch_rows.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/graph_regression.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace meshgrad {

namespace {

/// A row of the model's output in the units of the targets.
std::vector<double> in_units(const Normalizer& targets, std::span<const double> row) {
  std::vector<double> values;
  for (size_t c = 0; c < row.size(); ++c)
    values.push_back(targets.mean(c) + targets.standard_deviation(c) * row[c]);
  return values;
}

}  // namespace

GraphRegression::GraphRegression(const Dataset& data, const Config& config) : GraphTask(data, config) {
  for (const std::string& name : config.data.targets) {
    const FieldInfo& field = dataset.field(name);
    if (field.on != FieldOn::graph || field.dtype != DType::f32)
      throw unfit_field("data.targets", "f32 fields on graphs", field);
    if (std::ranges::find(config.data.inputs, name) != config.data.inputs.end())
      throw config_error("data.inputs", "fields that are not targets", name, "remove it from data.inputs");
    targets_.push_back(field);
    sizes.outputs += field.components;
  }
}

TaskDescription GraphRegression::describe() const {
  TaskDescription text = describe_inputs();
  for (const FieldInfo& field : targets_) text.outputs.push_back({field.name, field.components});
  return text;
}

BatchLayout GraphRegression::layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const {
  BatchLayout layout(sizes, shape, dtype, kind);
  layout.add("target", {shape.graphs, sizes.outputs}, accumulator_of(dtype), TensorRows::graphs);
  layout.add("mask", {shape.graphs}, DType::u8, TensorRows::graphs);
  return layout;
}

std::vector<float> GraphRegression::target_values(const TrajectoryView& view, int64_t frame) const {
  std::vector<float> values;
  for (const FieldInfo& field : targets_) {
    const std::span<const float> of_field = view.field(field.name).frame(frame);
    values.insert(values.end(), of_field.begin(), of_field.end());
  }
  return values;
}

void GraphRegression::write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
                            const NoiseOptions&, Normalizers& normalizers, bool learn,
                            SampleScratch& scratch) const {
  const std::vector<GivenGraph> graphs = graphs_of(split, samples);
  inputs_.write(batch, graphs, normalizers, learn, scratch);
  const Tensor& target = batch.tensor("target");
  dispatch_storage(target.dtype(), [&]<class T>() {
    const std::span<T> all = target.values<T>();
    std::ranges::fill(all, T(0));
    const std::span<T> rows = all.first(graphs.size() * static_cast<size_t>(sizes.outputs));
    auto row = rows.begin();
    for (const GivenGraph& graph : graphs)
      for (const float value : target_values(graph.view, graph.frame)) *row++ = static_cast<T>(value);
    if (learn) normalizers.targets.accumulate(std::span<const T>(rows));
    normalizers.targets.normalize(rows);
  });
  const std::span<uint8_t> mask = batch.tensor("mask").values<uint8_t>();
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = i < graphs.size() ? 1 : 0;
  graphs_of(split, samples);  // pages that were lost meanwhile are an error
}

LossTerms GraphRegression::loss(Tape& tape, const Model& model, const Batch& batch,
                                const Recomputation& recomputation) const {
  const Values values = forward(model, tape, batch.graph, recomputation.stages);
  const Variable sum =
      ops::masked_loss(tape, values.front(), batch.tensor("target"), batch.tensor("mask")).sum;
  return {.sum = sum, .penalty = {}};
}

std::vector<GivenTensor> GraphRegression::given(const Batch& batch) const {
  return {{"target", batch.tensor("target"), Rows(batch.tensor("target").rows()), batch.tensor("mask")}};
}

Normalizer GraphRegression::target_statistics() const {
  std::vector<double> mean, deviation;
  for (const FieldInfo& field : targets_) {
    const FieldStatistics stats = dataset.field_stats(field.name);
    mean.insert(mean.end(), stats.mean.begin(), stats.mean.end());
    deviation.insert(deviation.end(), stats.std.begin(), stats.std.end());
  }
  return Normalizer::fixed(mean, deviation);
}

Normalizers GraphRegression::dataset_normalizers(const NoiseOptions&) const {
  Normalizers all = inputs_.dataset_normalizers(dataset);
  all.targets = target_statistics();
  return all;
}

double GraphRegression::error_of(double mean) { return std::sqrt(mean); }

ComparedErrors GraphRegression::compare(const Stream&, std::string_view split, const Sample& sample,
                                        const Tensor& prediction, const Batch&,
                                        const Normalizers& normalizers) const {
  const Normalizer spread = target_statistics();
  const std::vector<float> truth = target_values(dataset.trajectory(split, sample.trajectory), sample.frame);
  const std::vector<double> ours = in_units(normalizers.targets, values_of(prediction));
  ComparedErrors sums;
  for (size_t c = 0; c < truth.size(); ++c) {
    const auto value = static_cast<double>(truth[c]);
    const double unit = spread.standard_deviation(c);
    const double error = (ours[c] - value) / unit, missed = (spread.mean(c) - value) / unit;
    sums += {error * error, missed * missed, 1.0};
  }
  return sums;
}

PredictedTable GraphRegression::table(const TrainedModel& trained, const EvaluateOptions& options) const {
  PredictedTable table{.rows = "graph"};
  std::vector<double> offsets;  // that the data had
  for (const FieldInfo& field : targets_) {
    table.groups.push_back({field.name, field.components});
    for (size_t c = 0; std::cmp_less(c, field.components); ++c) offsets.push_back(field.offset_of(c));
  }
  predict_each(trained, options, [&](const Sample& sample, std::span<const double> row) {
    table.numbers.push_back(sample.trajectory);
    table.frames.push_back(sample.frame);
    const std::vector<double> values = in_units(trained.normalizers.targets, row);
    for (size_t c = 0; c < values.size(); ++c) table.values.push_back(values[c] + offsets[c]);
  });
  drop_first_frames(table);
  return table;
}

Evaluation GraphRegression::evaluate(const TrainedModel& trained, const EvaluateOptions& options) const {
  const Normalizer spread = target_statistics();
  std::vector<double> centres;
  std::vector<float> mean;
  for (const FieldInfo& field : targets_) {
    const std::vector<double> of_field = centres_of(field, dataset.field_stats(field.name));
    centres.insert(centres.end(), of_field.begin(), of_field.end());
  }
  for (size_t c = 0; c < spread.width(); ++c) mean.push_back(static_cast<float>(spread.mean(c)));
  FieldErrors errors(targets_, centres);
  const bool stopped = predict_each(trained, options, [&](const Sample& sample, std::span<const double> row) {
    std::vector<float> ours;
    for (const double value : in_units(trained.normalizers.targets, row))
      ours.push_back(static_cast<float>(value));
    errors.add(ours, target_values(dataset.trajectory(options.split, sample.trajectory), sample.frame), {1},
               mean);
  });
  std::string names;
  for (const FieldInfo& field : targets_) names.append(names.empty() ? "" : ", ").append(field.name);
  return {.split = options.split,
          .trajectories = evaluated(options),
          .targets = names,
          .fields = errors.fields(),
          .baseline = fmt::format("the mean of split {} of these data", dataset.statistics_split()),
          .stopped = stopped};
}

}  // namespace meshgrad
