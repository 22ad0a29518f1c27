// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/task/batch_rows.h>
#include <meshgrad/train/learn/task/task.h>

#include <algorithm>

namespace meshgrad {

namespace {

Task make_any_task(const Config& config, const Dataset& dataset) {
  const ModelConfig& model = config.model;
  if (config.task.name == TaskName::steady_field)
    return Task(SteadyField(dataset, config.data, config.loss), model);
  if (config.task.name == TaskName::node_classification)
    return Task(NodeClassification(dataset, config), model);
  if (config.task.name == TaskName::graph_regression) return Task(GraphRegression(dataset, config), model);
  if (config.task.name == TaskName::graph_classification)
    return Task(GraphClassification(dataset, config), model);
  if (config.task.name == TaskName::link_reconstruction)
    return Task(LinkReconstruction(dataset, config), model);
  return Task(MeshDynamics(dataset, config.data, config.unroll.steps, config.loss), model);
}

/// Keys that count nodes keep their defaults where none is predicted.
void check_graphs_alone(const Config& config) {
  constexpr const char* kAlone = " where all targets are on graphs";
  for (const char* name : {"loss.sample", "loss.type_weights"}) {
    const std::string given = toml_literal(*find_key(name), config),
                      unset = toml_literal(*find_key(name), Config{});
    if (given != unset) throw config_error(name, unset + kAlone, given, "leave it out");
  }
  if (config.loss.name == LossName::relative_l2)
    throw config_error("loss.name", std::string("\"mse\", \"huber\" or \"l1\"") + kAlone, "\"relative_l2\"",
                       "set another, or name a field on nodes in data.targets");
}

/// Of tasks on meshes: keys that are for targets on graphs, and what cannot predict them.
void check_graph_targets(const Config& config, const FieldSelection& fields) {
  const TargetFields& targets = fields.graph_targets;
  const GraphPool pool = config.model.pool;
  if (targets.empty()) {
    if (pool != ModelConfig().pool)
      throw config_error("model.pool", "\"mean\" where no target is on graphs", toml_quoted(name_of(pool)),
                         "remove it, or name a field on graphs in data.targets");
    return;
  }
  if (config.model.name != ModelName::mesh_graph_net)
    throw config_error("model.name", "\"mesh_graph_net\" for targets on graphs of a mesh: " + targets.names(),
                       toml_quoted(name_of(config.model.name)),
                       "set it, or task.name = \"graph_regression\", which predicts graphs alone");
  if (config.ranks.partition != MeshPartition::none || config.ranks.parts_in_turn > 1)
    throw config_error("ranks.partition, ranks.parts_in_turn",
                       "whole meshes for targets on graphs: " + targets.names(), "meshes that are cut",
                       "leave them out, or remove these targets");
  if (fields.targets.empty()) check_graphs_alone(config);
}

}  // namespace

Task::Task(Kind kind, const ModelConfig& model) : kind_(std::move(kind)), node_keys_(draws_by_node(model)) {
  if (!reads_graph_starts(model)) return;
  std::visit(
      [](auto& task) {
        if constexpr (requires { task.mesh(); }) {
          task.mesh().sizes.graph_starts = true;
        } else {
          task.sizes.graph_starts = true;
        }
      },
      kind_);
}

Task make_task(const Config& config, const Dataset& dataset) {
  Task task = make_any_task(config, dataset);
  if (const MeshTask* mesh = task.find_mesh()) check_graph_targets(config, mesh->fields);
  best_metric_of(config, task.metrics());
  return task;
}

const MeshTask* Task::find_mesh() const {
  const MeshTask* mesh = nullptr;
  visit_shared([&](const auto& task) {
    if constexpr (requires { task.fields; }) mesh = &task;
  });
  return mesh;
}

const MeshTask& Task::mesh() const {
  const MeshTask* mesh = find_mesh();
  if (mesh == nullptr) {
    throw config_error("task.name", "a task on meshes", "a task whose sample is " + describe().sample,
                       "use meshgrad evaluate or meshgrad predict");
  }
  return *mesh;
}

PredictedTable Task::table(const TrainedModel& trained, const EvaluateOptions& options) const {
  return visit([&](const auto& task) -> PredictedTable {
    if constexpr (requires { task.table(trained, options); }) {
      return task.table(trained, options);
    } else {
      throw config_error("task.name", "a task of nodes or graphs, whose prediction is a table",
                         "a task on meshes", "use meshgrad predict or meshgrad rollout, which write meshes");
    }
  });
}

Sample SplitSamples::at(int64_t i) const {
  const auto next = std::upper_bound(starts.begin(), starts.end(), i);
  const int64_t trajectory = next - starts.begin() - 1;
  return {trajectory, first_frame + i - starts[static_cast<size_t>(trajectory)], 0};
}

void Task::write_keys(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
                      uint64_t seed) const {
  std::vector<int64_t> nodes;
  for (const Sample& sample : samples) nodes.push_back(shape(split, {sample}).nodes);
  write_node_keys(batch.graph, seed, samples, nodes);
}

NoiseOptions noise_of(const Config& config) {
  return {.deviation = config.train.noise,
          .gamma = config.train.gamma,
          .seed = static_cast<uint64_t>(config.run.seed),
          .fields = config.train.field_noise};
}

Batch training_batch(const Task& task, Runtime& runtime, DType dtype, std::string_view split,
                     const std::vector<Sample>& samples, const NoiseOptions& noise, Normalizers& normalizers,
                     bool learn) {
  const BatchLayout layout = task.layout(task.shape(split, samples), dtype, BatchLayout::Sizes::exact);
  SampleScratch scratch;
  return make_batch(runtime, layout, [&](const Batch& host) {
    task.write(host, split, samples, noise, normalizers, learn, scratch);
  });
}

}  // namespace meshgrad
