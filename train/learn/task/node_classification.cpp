// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/task/class_counts.h>
#include <meshgrad/train/learn/task/class_metrics.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/node_classification.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace meshgrad {
namespace {

constexpr const char* kTask = "node_classification";

const Dataset& one_graph(const Dataset& dataset) {
  const std::string path = dataset.path().string();
  if (dataset.trajectories() != 1) {
    throw config_error("task.name", fmt::format("data of one graph for \"{}\"", kTask),
                       fmt::format("{} in {}", dataset.trajectories(), path), "convert one graph");
  }
  if (dataset.trajectory(0).frames() != 1) {
    throw config_error("task.name", fmt::format("a graph without time for \"{}\"", kTask),
                       fmt::format("{} frames in {}", dataset.trajectory(0).frames(), path),
                       "convert one frame");
  }
  return dataset;
}

std::string node_split_named(const Dataset& dataset, const std::string& asked) {
  const std::vector<std::string> names = dataset.node_splits();
  const std::string listed = names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
  if (names.empty()) {
    throw config_error("data.node_split", "data that divide their nodes", "no node split",
                       "convert with arrays train_mask, valid_mask and test_mask on nodes");
  }
  if (asked.empty() && names.size() == 1) return names.front();
  if (std::ranges::find(names, asked) != names.end()) return asked;
  throw config_error("data.node_split", "one of the data's node splits: " + listed,
                     asked.empty() ? "none named" : toml_quoted(asked), "name one");
}

}  // namespace

NodeClassification::NodeClassification(const Dataset& data, const Config& config)
    : dataset(one_graph(data)), inputs_(dataset, config) {
  refuse_noise(config);
  for (const SplitInfo& split : dataset.splits())
    if (split.count > 0) split_of_graph_ = split.name;
  if (config.data.train_split != split_of_graph_) {
    throw config_error("data.train_split", "the split that has the graph: " + split_of_graph_,
                       toml_quoted(config.data.train_split), "name it");
  }
  if (config.data.targets.size() != 1) {
    throw config_error("data.targets", "one field, the class of each node",
                       fmt::format("{} fields", config.data.targets.size()), "name one; see meshgrad info");
  }
  label_ = dataset.field(config.data.targets.front());
  if (label_.on != FieldOn::node || label_.dtype != DType::i32 || label_.components != 1)
    throw unfit_target("one i32 field of 1 component on nodes, the class of each", label_);
  node_split_ = node_split_named(dataset, config.data.node_split);
  const std::span<const int32_t> splits = graph().node_split(node_split_);
  const std::span<const int32_t> classes = labels();
  ClassCounts counts(fmt::format("{}: {}", dataset.path().string(), label_.name), "node",
                     config.data.classes);
  for (size_t i = 0; i < classes.size(); ++i) {
    if (splits[i] == static_cast<int32_t>(NodeSplit::none)) continue;
    counts.add(classes[i], splits[i] == static_cast<int32_t>(NodeSplit::train),
               [&] { return std::to_string(i); });
  }
  sizes = inputs_.sizes();
  sizes.outputs = counts.finish(kNodeSplitNames[static_cast<size_t>(NodeSplit::train)]);
  trained_ = counts.trained();
  weights_ = ClassWeights(config.loss, trained_);
}

std::vector<uint8_t> NodeClassification::mask_of(std::string_view split) const {
  const auto named = std::ranges::find(kNodeSplitNames, split);
  const auto number = static_cast<int32_t>(named - kNodeSplitNames.begin());
  if (named == kNodeSplitNames.end() || number == static_cast<int32_t>(NodeSplit::none)) {
    throw config_error("split", "train, valid or test, as nodes are divided", toml_quoted(split),
                       "name one of these");
  }
  std::vector<uint8_t> mask;
  const TrajectoryView trajectory = graph();
  for (const int32_t node : trajectory.node_split(node_split_)) mask.push_back(node == number ? 1 : 0);
  return mask;
}

SplitSamples NodeClassification::samples(std::string_view split) const {
  SplitSamples samples;
  samples.add(std::ranges::count(mask_of(split), uint8_t{1}) > 0 ? 1 : 0);
  return samples;
}

DataError NodeClassification::no_samples(std::string_view split) const {
  return data_error(fmt::format("{}: node split {}", dataset.path().string(), node_split_),
                    fmt::format("nodes in {}", split), "none", "choose another split or data.node_split");
}

TaskDescription NodeClassification::describe() const {
  TaskDescription text{.sample = "the whole graph"};
  inputs_.describe(text);
  text.outputs = {{"class of " + label_.name, sizes.outputs}};
  return text;
}

std::vector<TaskWarning> NodeClassification::validate(const Config& config) const {
  std::vector<TaskWarning> found;
  for (const std::string& text : dataset.warnings()) found.push_back({"data.path", text});
  inputs_.warn(found);
  if (config.train.batch > 1) {
    found.push_back({"train.batch", fmt::format("train.batch = {} computes the one graph {} times a step, "
                                                "with the same result as once; set train.batch = 1",
                                                config.train.batch, config.train.batch)});
  }
  return found;
}

BatchShape NodeClassification::shape(std::string_view, const std::vector<Sample>& samples) const {
  const auto count = std::ssize(samples);
  const Dataset::MeshSizes one = dataset.mesh_sizes(split_of_graph_, 0);
  return {.nodes = count * one.nodes, .edges = count * one.edges, .graphs = std::max<int64_t>(1, count)};
}

BatchLayout NodeClassification::layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const {
  BatchLayout layout(sizes, shape, dtype, kind);
  layout.add("labels", {shape.nodes}, DType::i32, TensorRows::nodes);
  layout.add("mask", {shape.nodes}, DType::u8, TensorRows::nodes);
  weights_.add_to(layout);
  return layout;
}

void NodeClassification::write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
                               const NoiseOptions&, Normalizers& normalizers, bool learn,
                               SampleScratch& scratch) const {
  const std::vector<GivenGraph> graphs(samples.size(), GivenGraph{graph()});
  inputs_.write(batch, graphs, normalizers, learn, scratch);
  const std::vector<uint8_t> mask = mask_of(split);
  const std::span<const int32_t> classes = labels();
  for (size_t sample = 0; sample < samples.size(); ++sample) {
    std::ranges::copy(classes, batch.tensor("labels").data<int32_t>() + sample * classes.size());
    std::ranges::copy(mask, batch.tensor("mask").data<uint8_t>() + sample * mask.size());
  }
  weights_.write(batch);
  graph();  // pages that were lost meanwhile are an error
}

double NodeClassification::loss_weight(std::string_view split, const std::vector<Sample>& samples) const {
  const std::vector<uint8_t> mask = mask_of(split);
  const std::span<const int32_t> classes = labels();
  double weight = 0.0;
  for (size_t i = 0; i < mask.size(); ++i)
    if (mask[i] != 0) weight += weights_.of(classes[i]);
  return static_cast<double>(samples.size()) * weight;
}

LossTerms NodeClassification::loss(Tape& tape, const Model& model, const Batch& batch,
                                   const Recomputation& recomputation, const Teacher* teacher) const {
  return class_loss(tape, model, batch, recomputation, teacher);
}

ComparedErrors NodeClassification::compare(const Stream&, std::string_view split, const Sample&,
                                           const Tensor& prediction, const Batch&, const Normalizers&) const {
  const std::vector<uint8_t> mask = mask_of(split);
  const std::span<const int32_t> classes = labels();
  const auto width = static_cast<size_t>(sizes.outputs);
  const std::vector<double> rows = values_of(prediction);
  std::vector<double> frequent;
  for (const int64_t count : trained_)
    frequent.push_back(static_cast<double>(count) + 1.0);  // none impossible
  for (double& count : frequent) count = std::log(count);
  ComparedErrors sums;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] == 0) continue;
    const auto label = static_cast<size_t>(classes[i]);
    sums += {cross_entropy(std::span(rows).subspan(i * width, width), label), cross_entropy(frequent, label),
             1.0};
  }
  return sums;
}

void NodeClassification::predict_each(
    const TrainedModel& trained, std::string_view split,
    const std::function<void(size_t node, std::span<const double> row)>& one) const {
  const std::vector<uint8_t> mask = mask_of(split);
  if (std::ranges::count(mask, uint8_t{1}) == 0) throw no_samples(split);
  Normalizers normalizers = trained.normalizers;
  const Batch batch =
      training_batch(trained.task, trained.runtime, trained.precision, split, {Sample{}}, {}, normalizers);
  Tape tape(trained.runtime, Tape::Mode::evaluate);
  const Values values = forward(trained.model, tape, batch.graph);
  const std::vector<double> rows = values_of(to_host(values.front().value(), trained.runtime.stream()));
  const auto width = static_cast<size_t>(sizes.outputs);
  for (size_t i = 0; i < mask.size(); ++i)
    if (mask[i] != 0) one(i, std::span(rows).subspan(i * width, width));
}

Evaluation NodeClassification::evaluate(const TrainedModel& trained, const EvaluateOptions& options) const {
  const std::span<const int32_t> classes = labels();
  ClassPredictions predictions(sizes.outputs);
  predict_each(trained, options.split,
               [&](size_t node, std::span<const double> row) { predictions.add(classes[node], row); });
  Evaluation result{.split = options.split, .trajectories = 1, .targets = label_.name};
  predictions.write("nodes", result);
  return result;
}

PredictedTable NodeClassification::table(const TrainedModel& trained, const EvaluateOptions& options) const {
  PredictedTable table{.rows = "node", .groups = {{"probability", sizes.outputs}}};
  predict_each(trained, options.split, [&](size_t node, std::span<const double> row) {
    table.add_classes(static_cast<int64_t>(node), probabilities_of(row));
  });
  return table;
}

}  // namespace meshgrad
