// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/task/batch_rows.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/node_classification.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace meshgrad {
namespace {

constexpr const char* kTask = "node_classification";

ConfigError unfit_field(const char* key, const char* needed, const FieldInfo& field) {
  return config_error(key, needed,
                      fmt::format("{} ({} on {}s, {} components)", field.name, name_of(field.dtype),
                                  name_of(field.on), field.components),
                      "name another; see meshgrad info");
}

void check_one_graph(const Dataset& dataset) {
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

/// Values of a tensor on the host.
std::vector<double> logits_of(const Tensor& logits) {
  std::vector<double> values;
  dispatch_storage(accumulator_of(logits.dtype()), [&]<class T>() {
    std::vector<T> wide;
    const std::span<const T> read = read_rows(logits, wide);
    values.assign(read.begin(), read.end());
  });
  return values;
}

double cross_entropy(std::span<const double> logits, size_t label) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (const double logit : logits) sum += std::exp(logit - most);
  return most + std::log(sum) - logits[label];
}

}  // namespace

NodeClassification::NodeClassification(const Dataset& data, const Config& config) : dataset(data) {
  if (noise_of(config).any()) {
    throw config_error("train.noise", fmt::format("0 with task.name = \"{}\"", kTask),
                       fmt::format("{}", config.train.noise), "set train.noise = 0");
  }
  check_one_graph(dataset);
  for (const SplitInfo& split : dataset.splits())
    if (split.count > 0) split_of_graph_ = split.name;
  if (config.data.train_split != split_of_graph_) {
    throw config_error("data.train_split", "the split that has the graph: " + split_of_graph_,
                       toml_quoted(config.data.train_split), "name it");
  }
  for (const std::string& name : config.data.inputs) {
    const FieldInfo& field = dataset.field(name);
    if (field.on != FieldOn::node || field.dtype != DType::f32)
      throw unfit_field("data.inputs", "f32 fields on nodes", field);
    inputs_.push_back(field);
    sizes.node_inputs += field.components;
  }
  if (inputs_.empty())
    throw config_error("data.inputs", "at least one field on nodes", "[]", "name one; see meshgrad info");
  if (config.data.targets.size() != 1) {
    throw config_error("data.targets", "one field, the class of each node",
                       fmt::format("{} fields", config.data.targets.size()), "name one; see meshgrad info");
  }
  label_ = dataset.field(config.data.targets.front());
  if (label_.on != FieldOn::node || label_.dtype != DType::i32 || label_.components != 1)
    throw unfit_field("data.targets", "one i32 field of 1 component on nodes, the class of each", label_);
  node_split_ = node_split_named(dataset, config.data.node_split);
  const std::span<const int32_t> splits = graph().node_split(node_split_);
  const std::span<const int32_t> classes = labels();
  int32_t most = 0;
  for (size_t i = 0; i < classes.size(); ++i) {
    if (splits[i] == static_cast<int32_t>(NodeSplit::none)) continue;
    if (classes[i] < 0) {
      throw data_error(fmt::format("{}: {}, node {}", dataset.path().string(), label_.name, i),
                       "a class, from 0, at each node of a split", fmt::format("{}", classes[i]),
                       "leave nodes without a class out of the masks");
    }
    most = std::max(most, classes[i]);
  }
  sizes.edge_inputs = {0};
  sizes.edge_set_names = {std::string(kMeshEdges)};
  sizes.outputs = int64_t{most} + 1;
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
  for (const FieldInfo& field : inputs_) text.node_inputs.push_back({field.name, field.components});
  text.outputs = {{"class of " + label_.name, sizes.outputs}};
  return text;
}

std::vector<TaskWarning> NodeClassification::validate(const Config& config) const {
  std::vector<TaskWarning> found;
  for (const std::string& text : dataset.warnings()) found.push_back({"data.path", text});
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
  return layout;
}

void NodeClassification::write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
                               const NoiseOptions&, Normalizers& normalizers, bool learn,
                               SampleScratch& scratch) const {
  const TrajectoryView view = graph();
  const auto nodes = static_cast<size_t>(view.mesh().nodes);
  const auto width = static_cast<size_t>(sizes.node_inputs);
  const std::vector<uint8_t> mask = mask_of(split);
  const std::span<const int32_t> classes = labels();
  Dataset::MeshSizes before;
  for (size_t sample = 0; sample < samples.size(); ++sample) {
    std::ranges::copy(classes, batch.tensor("labels").data<int32_t>() + before.nodes);
    std::ranges::copy(mask, batch.tensor("mask").data<uint8_t>() + before.nodes);
    dispatch_storage(accumulator_of(batch.graph.node_features.dtype()), [&]<class T>() {
      RowsInPlace<T> rows(batch.graph.node_features, before.nodes, view.mesh().nodes, scratch.wide_nodes);
      size_t column = 0;
      for (const FieldInfo& field : inputs_) {
        const std::span<const float> values = view.field(field.name).frame(0);
        const auto components = static_cast<size_t>(field.components);
        for (size_t i = 0; i < nodes; ++i)
          for (size_t c = 0; c < components; ++c)
            rows.values()[i * width + column + c] = static_cast<T>(values[i * components + c]);
        column += components;
      }
      if (learn) normalizers.nodes.accumulate(std::span<const T>(rows.values()));
      normalizers.nodes.normalize(rows.values());
      rows.store();
    });
    before = append_to_union(batch.graph.edges(kMeshEdges).graph, view.mesh(), before);
  }
  write_graph_sizes(batch.graph, std::vector<int64_t>(samples.size(), view.mesh().nodes));
  graph();  // pages that were lost meanwhile are an error
}

double NodeClassification::loss_weight(std::string_view split, const std::vector<Sample>& samples) const {
  return static_cast<double>(std::ssize(samples) * std::ranges::count(mask_of(split), uint8_t{1}));
}

LossTerms NodeClassification::loss(Tape& tape, const Model& model, const Batch& batch,
                                   const Recomputation& recomputation) const {
  const Values values = forward(model, tape, batch.graph, recomputation.stages);
  const Variable sum =
      ops::class_loss(tape, values.front(), batch.tensor("labels"), batch.tensor("mask")).sum;
  return {.sum = sum, .penalty = {}};
}

Normalizers NodeClassification::online_normalizers() const {
  return {Normalizer(static_cast<size_t>(sizes.node_inputs)), Normalizer(0), Normalizer(0), Normalizer(0)};
}

Normalizers NodeClassification::dataset_normalizers(const NoiseOptions&) const {
  std::vector<double> mean, deviation;
  for (const FieldInfo& field : inputs_) {
    const FieldStatistics stats = dataset.field_stats(field.name);
    mean.insert(mean.end(), stats.mean.begin(), stats.mean.end());
    deviation.insert(deviation.end(), stats.std.begin(), stats.std.end());
  }
  return {Normalizer::fixed(mean, deviation), Normalizer(0), Normalizer(0), Normalizer(0)};
}

ComparedErrors NodeClassification::compare(const Stream&, std::string_view split, const Sample&,
                                           const Tensor& prediction, const Batch&, const Normalizers&) const {
  const std::vector<uint8_t> mask = mask_of(split), trained = mask_of("train");
  const std::span<const int32_t> classes = labels();
  const auto width = static_cast<size_t>(sizes.outputs);
  const std::vector<double> rows = logits_of(prediction);
  std::vector<double> frequent(width, 1.0);  // no class is impossible
  for (size_t i = 0; i < trained.size(); ++i)
    if (trained[i] != 0) frequent[static_cast<size_t>(classes[i])] += 1.0;
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

Evaluation NodeClassification::evaluate(const TrainedModel& trained, const EvaluateOptions& options) const {
  const std::vector<uint8_t> mask = mask_of(options.split);
  const std::span<const int32_t> classes = labels();
  Normalizers normalizers = trained.normalizers;
  const Batch batch = training_batch(trained.task, trained.runtime, trained.precision, options.split,
                                     {Sample{}}, {}, normalizers);
  Tape tape(trained.runtime, Tape::Mode::evaluate);
  const Values values = forward(trained.model, tape, batch.graph);
  const Tensor logits = to_host(values.front().value(), trained.runtime.stream());
  const std::vector<double> rows = logits_of(logits);
  const auto width = static_cast<size_t>(sizes.outputs);
  std::vector<int64_t> counts(width);
  double right = 0.0, entropy = 0.0, nodes = 0.0;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] == 0) continue;
    const std::span<const double> row = std::span<const double>(rows).subspan(i * width, width);
    const auto label = static_cast<size_t>(classes[i]);
    entropy += cross_entropy(row, label);
    right += std::ranges::max_element(row) == row.begin() + static_cast<std::ptrdiff_t>(label) ? 1.0 : 0.0;
    ++counts[label];
    nodes += 1.0;
  }
  if (nodes == 0.0) throw no_samples(options.split);
  const auto frequent = static_cast<double>(*std::ranges::max_element(counts));
  return {.split = options.split,
          .trajectories = 1,
          .targets = label_.name,
          .metrics = {{"accuracy", "", right / nodes},
                      {"accuracy of the most frequent class", "", frequent / nodes},
                      {"cross entropy", "nat", entropy / nodes},
                      {"nodes", "", nodes}}};
}

}  // namespace meshgrad
