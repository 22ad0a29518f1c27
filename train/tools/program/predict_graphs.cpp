// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/task/graph_task.h>
#include <meshgrad/train/tools/program/predict_graphs.h>

#include <fmt/format.h>

#include <algorithm>

namespace meshgrad::cli {
namespace {

void check_input(const FieldInfo& needed, const Dataset& data) {
  const FieldInfo& field = data.field(needed.name);
  if (field.on == needed.on && field.components == needed.components && field.dtype == DType::f32) return;
  throw data_error(
      fmt::format("{}: {}", data.path().string(), field.name),
      fmt::format("an f32 field of {} components on {}s", needed.components, name_of(needed.on)),
      fmt::format("{} of {} components on {}s", name_of(field.dtype), field.components, name_of(field.on)),
      "convert it as the data that the run was trained on");
}

/// One graph at one frame, in the memory of its values.
struct OneGraph {
  std::vector<double> inputs, graph_inputs;
  std::vector<int32_t> edges;

  OneGraph(const GraphPredictor& predictor, const Dataset& data, const TrajectoryView& graph, int64_t t) {
    const MeshView& mesh = graph.mesh();
    for (size_t e = 0; e < mesh.senders.size(); ++e)
      edges.insert(edges.end(), {mesh.senders[e], mesh.receivers[e]});
    const auto width = static_cast<size_t>(predictor.node_columns());
    inputs.resize(static_cast<size_t>(mesh.nodes) * width);
    size_t column = 0;
    for (const FieldInfo& input : predictor.inputs()) {
      const FieldInfo& field = data.field(input.name);
      const std::span<const float> values = graph.field(input.name).frame(t);
      const auto components = static_cast<size_t>(input.components);
      for (size_t i = 0; i < values.size(); ++i) {
        const double value = static_cast<double>(values[i]) + field.offset_of(i % components);
        if (input.on == FieldOn::graph) {
          graph_inputs.push_back(value);
        } else {
          inputs[i / components * width + column + i % components] = value;
        }
      }
      if (input.on != FieldOn::graph) column += components;
    }
  }
};

}  // namespace

bool lacks_targets(const Config& config, const Dataset& data) {
  const TaskName task = config.task.name;
  const bool on_graphs = task == TaskName::node_classification || task == TaskName::graph_classification ||
                         task == TaskName::graph_regression;
  return on_graphs && std::ranges::any_of(config.data.targets, [&](const std::string& target) {
           return std::ranges::find(data.fields(), target, &FieldInfo::name) == data.fields().end();
         });
}

PredictedTable predict_without_targets(GraphPredictor& predictor, const Dataset& data,
                                       const std::string& split, int64_t most) {
  for (const FieldInfo& input : predictor.inputs()) check_input(input, data);
  const bool nodes = !predictor.per_graph();
  if (nodes && data.trajectories() != 1) {
    throw data_error(data.path().string(), "one graph, whose nodes are predicted",
                     fmt::format("{} graphs", data.trajectories()), "convert one graph");
  }
  PredictedTable table{.rows = nodes ? "node" : "graph"};
  if (predictor.classes()) {
    table.groups = {{"probability", predictor.columns()}};
  } else {
    for (const FieldInfo& target : predictor.targets())
      table.groups.push_back({target.name, target.components});
  }
  const int64_t size = nodes ? 1 : data.size(split);
  const int64_t count = most > 0 && !nodes ? std::min(most, size) : size;
  const auto width = static_cast<size_t>(predictor.columns());
  for (int64_t g = 0; g < count; ++g) {
    const TrajectoryView graph = nodes ? data.trajectory(0) : data.trajectory(split, g);
    const MeshView& mesh = graph.mesh();
    for (int64_t t = 0; t < (nodes ? 1 : graph.frames()); ++t) {
      const OneGraph one(predictor, data, graph, t);
      std::vector<double> values(width * static_cast<size_t>(nodes ? mesh.nodes : 1));
      predictor.predict({.inputs = one.inputs,
                         .edges = one.edges,
                         .directed = true,  // as the file has them
                         .graph_inputs = one.graph_inputs,
                         .positions = mesh.positions,
                         .node_type = mesh.node_type},
                        values);
      for (size_t row = 0; row < values.size() / width; ++row) {
        const std::span<const double> of_row = std::span(values).subspan(row * width, width);
        const auto number = nodes ? static_cast<int64_t>(row) : g;
        if (predictor.classes()) {
          table.add_classes(number, of_row);
        } else {
          table.numbers.push_back(number);
          table.values.insert(table.values.end(), of_row.begin(), of_row.end());
        }
        if (!nodes) table.frames.push_back(t);
      }
    }
  }
  data.check_unchanged();
  drop_first_frames(table);
  return table;
}

}  // namespace meshgrad::cli
