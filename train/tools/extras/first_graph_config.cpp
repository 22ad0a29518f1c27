// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/task/task.h>
#include <meshgrad/train/tools/extras/first_graph_config.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace meshgrad {
namespace {

std::vector<std::string> names_of_fields(const Dataset& dataset, FieldOn on, DType dtype) {
  std::vector<std::string> names;
  for (const FieldInfo& field : dataset.fields())
    if (field.on == on && field.dtype == dtype && !field.node_split) names.push_back(field.name);
  return names;
}

/// The only one of the candidates.
std::string only(const Dataset& dataset, const std::vector<std::string>& candidates, const char* what) {
  if (candidates.size() == 1) return candidates.front();
  throw config_error("data.targets", fmt::format("one {} to predict", what),
                     candidates.empty() ? "none" : fmt::format("{}", fmt::join(candidates, ", ")),
                     candidates.empty()
                         ? "add it to the data; see docs/data.md and meshgrad info " + dataset.path().string()
                         : "name one with --targets");
}

void choose_target(const Dataset& dataset, const std::vector<std::string>& targets, FirstConfig& first) {
  TaskConfig& task = first.config.task;
  std::vector<std::string>& chosen = first.config.data.targets;
  const auto of = [&](FieldOn on, DType dtype) { return names_of_fields(dataset, on, dtype); };
  const auto classes = of(FieldOn::graph, DType::i32);
  chosen = targets;
  if (targets.empty() && dataset.trajectories() == 1 && !dataset.node_splits().empty()) {
    chosen = {only(dataset, of(FieldOn::node, DType::i32), "integer field on nodes")};
  } else if (targets.empty() && !classes.empty()) {
    chosen = {only(dataset, classes, "integer field on graphs")};
  } else if (const auto values = of(FieldOn::graph, DType::f32); targets.empty() && !values.empty()) {
    chosen = {only(dataset, values, "field on graphs")};
  } else if (targets.empty()) {
    chosen.clear();
    task.name = TaskName::link_reconstruction;
    first.config.model.name = ModelName::vgae;
    first.reasons["task.name"] = "the data have neither labels nor numbers to predict";
    return;
  }
  const FieldInfo& field = dataset.field(chosen.front());
  task.name = field.on == FieldOn::node   ? TaskName::node_classification
              : field.dtype == DType::i32 ? TaskName::graph_classification
                                          : TaskName::graph_regression;
  first.reasons["task.name"] = fmt::format("{} is a field on {}s", field.name, name_of(field.on));
  first.reasons["data.targets"] = "what the model predicts";
}

/// Integers on nodes that are not the target: numbers of things, not amounts.
void choose_identifiers(const Dataset& dataset, FirstConfig& first) {
  DataConfig& data = first.config.data;
  for (const std::string& name : names_of_fields(dataset, FieldOn::node, DType::i32)) {
    const FieldStatistics stats = dataset.field_stats(name);
    const bool varies = stats.count > 0 && stats.min != stats.max;
    if (name == data.targets.front() || dataset.field(name).components != 1 || !varies) continue;
    data.embed.push_back(name);
    first.reasons["data.embed"] = "integers on nodes: each value has a row of model.embedding numbers";
  }
}

}  // namespace

bool is_for_graphs(const Dataset& dataset, const std::vector<std::string>& targets) {
  return dataset.dim() < 2 || (!targets.empty() && std::ranges::all_of(targets, [&](const std::string& name) {
           return dataset.field(name).on == FieldOn::graph;
         }));
}

FirstConfig first_graph_config(const Dataset& dataset, const std::vector<Preset>& chosen,
                               const std::vector<std::string>& targets) {
  constexpr int64_t kNodesOfBatch = 8192, kMostGraphs = 256, kPasses = 50, kFewest = 500, kMost = 100000;
  FirstConfig first;
  Config& config = first.config;
  const std::filesystem::path& path = dataset.path();
  config.data.path = path.string();
  config.run.dir = (std::filesystem::path("runs") / path.stem()).string();
  first.reasons = {{"run.dir", "metrics and checkpoints go here"}, {"data.path", ""}};
  choose_target(dataset, targets, first);
  const bool links = config.task.name == TaskName::link_reconstruction;
  const bool nodes =
      config.task.name == TaskName::node_classification || (links && dataset.trajectories() == 1);
  config.data.train_split = dataset.statistics_split();
  config.data.valid_split = nodes || dataset.has_split("valid") ? "valid" : config.data.train_split;
  if (!nodes && config.data.valid_split == config.data.train_split)
    first.notes.push_back("There is no split to validate on: convert with --split 0.8,0.1,0.1.");
  config.data.inputs = names_of_fields(dataset, FieldOn::node, DType::f32);
  first.reasons["data.inputs"] = "float fields on nodes";
  if (!links) {
    choose_identifiers(dataset, first);
    config.data.edge_inputs = names_of_fields(dataset, FieldOn::edge, DType::f32);
  }
  if (!config.data.edge_inputs.empty()) first.reasons["data.edge_inputs"] = "float fields on edges";
  config.data.node_types = std::max<int64_t>(1, dataset.node_types());
  config.train.noise = 0.0;
  config.model.width = 64;
  config.model.blocks = links ? 1 : 3;
  first.reasons["model.blocks"] = "a message travels one edge a block";
  if (!nodes && !links) first.reasons["model.pool"] = "\"sum\" where the target grows with the graph";
  config.optimizer.lr = 1e-3;
  config.schedule.final_lr = 1e-5;
  first.reasons["optimizer.lr"] = "falls to schedule.final_lr";
  choose_precision(first);
  const Task task = make_task(check_config(config), dataset);
  for (const TaskWarning& warning : task.validate(config))
    if (warning.key == "data.node_types") first.notes.push_back(warning.text);
  const int64_t samples = task.samples(config.data.train_split).size();
  const int64_t largest = std::max<int64_t>(1, dataset.largest_mesh(config.data.train_split).nodes);
  config.train.batch =
      nodes ? 1 : std::clamp<int64_t>(kNodesOfBatch / largest, 1, std::min(kMostGraphs, samples));
  first.reasons["train.batch"] = fmt::format("graphs of up to {} nodes; see meshgrad plan", largest);
  config.train.steps = nodes ? kFewest : std::clamp(kPasses * samples / config.train.batch, kFewest, kMost);
  config.train.validate_every = config.train.checkpoint_every = config.train.steps / 10;
  config.train.validate_samples = nodes ? 0 : 1000;
  first.reasons["train.steps"] = fmt::format("{} to train on", counted(samples, "sample"));
  config = with_presets(config, chosen);
  mark_presets(first, chosen);
  return first;
}

}  // namespace meshgrad
