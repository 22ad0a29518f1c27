// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/task/graph_task.h>
#include <meshgrad/train/tools/program/predict_graphs.h>

#include <fmt/format.h>

#include <algorithm>

namespace meshgrad::cli {
namespace {

void check_input(const FieldInfo& needed, DType dtype, const Dataset& data) {
  const FieldInfo& field = data.field(needed.name);
  if (field.on == needed.on && field.components == needed.components && field.dtype == dtype) return;
  throw data_error(
      fmt::format("{}: {}", data.path().string(), field.name),
      fmt::format("an {} field of {} components on {}s", name_of(dtype), needed.components,
                  name_of(needed.on)),
      fmt::format("{} of {} components on {}s", name_of(field.dtype), field.components, name_of(field.on)),
      "convert it as the data that the run was trained on");
}

/// One graph at one frame, in the memory of its values.
struct OneGraph {
  std::vector<double> inputs, graph_inputs, edge_inputs;
  std::vector<int32_t> edges, identifiers;

  OneGraph(const GraphPredictor& predictor, const Dataset& data, const TrajectoryView& graph, int64_t t)
      : inputs(side_by_side(predictor.inputs(), FieldOn::node, data, graph, t)),
        graph_inputs(side_by_side(predictor.inputs(), FieldOn::graph, data, graph, t)),
        edge_inputs(side_by_side(predictor.edge_inputs(), FieldOn::edge, data, graph, t)) {
    const MeshView& mesh = graph.mesh();
    for (size_t e = 0; e < mesh.senders.size(); ++e)
      edges.insert(edges.end(), {mesh.senders[e], mesh.receivers[e]});
    for (size_t node = 0; std::cmp_less(node, mesh.nodes); ++node)
      for (const FieldInfo& field : predictor.identifiers())
        identifiers.push_back(graph.field(field.name).frame_of<int32_t>(t)[node]);
  }

 private:
  /// Those on one kind of place as columns.
  static std::vector<double> side_by_side(const std::vector<FieldInfo>& fields, FieldOn on,
                                          const Dataset& data, const TrajectoryView& graph, int64_t t) {
    size_t width = 0, column = 0;
    for (const FieldInfo& field : fields)
      if (field.on == on) width += static_cast<size_t>(field.components);
    std::vector<double> rows;
    for (const FieldInfo& given : fields) {
      if (given.on != on) continue;
      const FieldInfo& field = data.field(given.name);
      const std::span<const float> values = graph.field(given.name).frame(t);
      const auto components = static_cast<size_t>(given.components);
      rows.resize(values.size() / components * width);
      for (size_t i = 0; i < values.size(); ++i)
        rows[i / components * width + column + i % components] =
            static_cast<double>(values[i]) + field.offset_of(i % components);
      column += components;
    }
    return rows;
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
  for (const FieldInfo& input : predictor.inputs()) check_input(input, DType::f32, data);
  for (const FieldInfo& input : predictor.edge_inputs()) check_input(input, DType::f32, data);
  for (const FieldInfo& input : predictor.identifiers()) check_input(input, DType::i32, data);
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
                         .directed = data.directed(),
                         .graph_inputs = one.graph_inputs,
                         .positions = mesh.positions,
                         .node_type = mesh.node_type,
                         .identifiers = one.identifiers,
                         .edge_inputs = one.edge_inputs},
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
