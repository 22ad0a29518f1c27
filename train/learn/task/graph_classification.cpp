// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/task/class_counts.h>
#include <meshgrad/train/learn/task/class_metrics.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/graph_classification.h>

#include <fmt/format.h>

#include <cmath>

namespace meshgrad {

GraphClassification::GraphClassification(const Dataset& data, const Config& config)
    : GraphTask(data, config) {
  if (config.data.targets.size() != 1) {
    throw config_error("data.targets", "one field, the class of each graph",
                       fmt::format("{} fields", config.data.targets.size()), "name one; see meshgrad info");
  }
  label_ = dataset.field(config.data.targets.front());
  if (label_.on != FieldOn::graph || label_.dtype != DType::i32 || label_.components != 1)
    throw unfit_target("one i32 field of 1 component on graphs, the class of each", label_);
  ClassCounts counts(fmt::format("{}: {}", dataset.path().string(), label_.name), "graph",
                     config.data.classes);
  for (const SplitInfo& split : dataset.splits()) {
    for (int64_t i = 0; i < split.count; ++i) {
      const TrajectoryView view = dataset.trajectory(split.name, i);
      for (int64_t t = 0; t < view.frames(); ++t) {
        counts.add(label_of(view, t), split.name == config.data.train_split,
                   [&] { return fmt::format("{} (split {}, number {})", view.name(), split.name, i); });
      }
    }
  }
  sizes.outputs = counts.finish(config.data.train_split);
  trained_ = counts.trained();
  weights_ = ClassWeights(config.loss, trained_);
}

TaskDescription GraphClassification::describe() const {
  TaskDescription text = describe_inputs();
  text.outputs = {{"class of " + label_.name, sizes.outputs}};
  return text;
}

BatchLayout GraphClassification::layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const {
  BatchLayout layout(sizes, shape, dtype, kind);
  layout.add("labels", {shape.graphs}, DType::i32, TensorRows::graphs);
  layout.add("mask", {shape.graphs}, DType::u8, TensorRows::graphs);
  weights_.add_to(layout);
  return layout;
}

void GraphClassification::write(const Batch& batch, std::string_view split,
                                const std::vector<Sample>& samples, const NoiseOptions&,
                                Normalizers& normalizers, bool learn, SampleScratch& scratch) const {
  const std::vector<GivenGraph> graphs = graphs_of(split, samples);
  inputs_.write(batch, graphs, normalizers, learn, scratch);
  const std::span<int32_t> labels = batch.tensor("labels").values<int32_t>();
  const std::span<uint8_t> mask = batch.tensor("mask").values<uint8_t>();
  for (size_t i = 0; i < mask.size(); ++i) {
    const bool real = i < graphs.size();
    mask[i] = real ? 1 : 0;
    labels[i] = real ? label_of(graphs[i].view, graphs[i].frame) : 0;
  }
  weights_.write(batch);
  graphs_of(split, samples);  // pages that were lost meanwhile are an error
}

double GraphClassification::loss_weight(std::string_view split, const std::vector<Sample>& samples) const {
  double weight = 0.0;
  for (const Sample& sample : samples) weight += weights_.of(class_of(split, sample));
  return weight;
}

LossTerms GraphClassification::loss(Tape& tape, const Model& model, const Batch& batch,
                                    const Recomputation& recomputation, const Teacher* teacher) const {
  return class_loss(tape, model, batch, recomputation, teacher);
}

ComparedErrors GraphClassification::compare(const Stream&, std::string_view split, const Sample& sample,
                                            const Tensor& prediction, const Batch&,
                                            const Normalizers&) const {
  std::vector<double> frequent;
  for (const int64_t count : trained_)
    frequent.push_back(std::log(static_cast<double>(count) + 1.0));  // none is impossible
  const auto label = static_cast<size_t>(class_of(split, sample));
  return {cross_entropy(values_of(prediction), label), cross_entropy(frequent, label), 1.0};
}

PredictedTable GraphClassification::table(const TrainedModel& trained, const EvaluateOptions& options) const {
  PredictedTable table{.rows = "graph", .groups = {{"probability", sizes.outputs}}};
  predict_each(trained, options, [&](const Sample& sample, std::span<const double> row) {
    table.add_classes(sample.trajectory, probabilities_of(row));
    table.frames.push_back(sample.frame);
  });
  drop_first_frames(table);
  return table;
}

Evaluation GraphClassification::evaluate(const TrainedModel& trained, const EvaluateOptions& options) const {
  ClassPredictions predictions(sizes.outputs);
  const bool stopped = predict_each(trained, options, [&](const Sample& sample, std::span<const double> row) {
    predictions.add(class_of(options.split, sample), row);
  });
  Evaluation result{.split = options.split, .trajectories = evaluated(options), .targets = label_.name};
  result.stopped = stopped;
  if (!stopped) predictions.write("graphs", result);
  return result;
}

}  // namespace meshgrad
