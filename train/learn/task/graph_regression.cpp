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

GraphRegression::GraphRegression(const Dataset& data, const Config& config)
    : GraphTask(data, config), targets_(TargetFields::on_graphs(data, config.data, config.data.targets)) {
  sizes.outputs = targets_.width;
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

void GraphRegression::write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
                            const NoiseOptions&, Normalizers& normalizers, bool learn,
                            SampleScratch& scratch) const {
  const std::vector<GivenGraph> graphs = graphs_of(split, samples);
  inputs_.write(batch, graphs, normalizers, learn, scratch);
  std::vector<float> rows;
  for (const GivenGraph& graph : graphs) {
    const std::vector<float> row = targets_.row(graph.view, graph.frame);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  TargetFields::write(rows, batch.tensor("target"), batch.tensor("mask"), normalizers.targets, learn);
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

Normalizers GraphRegression::dataset_normalizers(const NoiseOptions&) const {
  Normalizers all = inputs_.dataset_normalizers(dataset);
  all.targets = targets_.statistics(dataset);
  return all;
}

double GraphRegression::error_of(double mean) { return std::sqrt(mean); }

ComparedErrors GraphRegression::compare(const Stream&, std::string_view split, const Sample& sample,
                                        const Tensor& prediction, const Batch&,
                                        const Normalizers& normalizers) const {
  return targets_.compare(dataset, TargetFields::in_units(normalizers.targets, values_of(prediction)),
                          targets_.row(dataset.trajectory(split, sample.trajectory), sample.frame),
                          targets_.means(dataset));
}

PredictedTable GraphRegression::table(const TrainedModel& trained, const EvaluateOptions& options) const {
  PredictedTable table{.rows = "graph", .groups = targets_.columns()};
  predict_each(trained, options, [&](const Sample& sample, std::span<const double> row) {
    targets_.add_row(table, sample, TargetFields::in_units(trained.normalizers.targets, row));
  });
  drop_first_frames(table);
  return table;
}

Evaluation GraphRegression::evaluate(const TrainedModel& trained, const EvaluateOptions& options) const {
  FieldErrors errors = targets_.errors(dataset);
  const std::vector<float> mean = targets_.means(dataset);
  const bool stopped = predict_each(trained, options, [&](const Sample& sample, std::span<const double> row) {
    const std::vector<double> ours = TargetFields::in_units(trained.normalizers.targets, row);
    errors.add({ours.begin(), ours.end()},
               targets_.row(dataset.trajectory(options.split, sample.trajectory), sample.frame), {1}, mean);
  });
  return {.split = options.split,
          .trajectories = evaluated(options),
          .targets = targets_.names(),
          .fields = errors.fields(),
          .baseline = fmt::format("the mean of split {} of these data", dataset.statistics_split()),
          .stopped = stopped};
}

}  // namespace meshgrad
