// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/task/edge_fields.h>
#include <meshgrad/train/learn/task/field_selection.h>
#include <meshgrad/train/learn/task/graph_inputs.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace meshgrad {
namespace {

/// Inputs may also be on graphs: a condition of the whole mesh.
const FieldInfo& checked_field(const Dataset& dataset, const std::string& name, const char* key,
                               bool on_graphs) {
  const FieldInfo& field = dataset.field(name);
  const bool fits = field.on == FieldOn::node || (on_graphs && field.on == FieldOn::graph);
  if (fits && field.dtype == DType::f32) return field;
  throw config_error(key, on_graphs ? "f32 fields on nodes or graphs" : "f32 fields on nodes",
                     fmt::format("{} ({} on {}s)", name, name_of(field.dtype), name_of(field.on)),
                     "name other fields; see meshgrad info");
}

const FieldInfo& checked_position(const Dataset& dataset, const std::string& name) {
  const FieldInfo& field = checked_field(dataset, name, "data.world_position", false);
  if (field.components == 2 || field.components == 3) return field;
  throw config_error("data.world_position", "a field of 2 or 3 components: a position",
                     fmt::format("{} of {}", name, field.components), "name another; see meshgrad info");
}

}  // namespace

void FieldState::advance(std::vector<float>&& next) {
  const auto keep = static_cast<std::ptrdiff_t>(std::min(current.size(), previous.size()));
  std::move_backward(previous.begin(), previous.end() - keep, previous.end());
  std::copy_n(current.begin(), keep, previous.begin());
  current.swap(next);
}

std::span<const float> FieldState::frame(int64_t before) const {
  if (before == 0) return current;
  return std::span(previous).subspan(static_cast<size_t>(before - 1) * current.size(), current.size());
}

bool contains_type(const std::vector<int64_t>& types, int64_t type) {
  return std::find(types.begin(), types.end(), type) != types.end();
}

std::vector<std::string> held_types(const std::set<int64_t>& types, const DataConfig& config) {
  std::vector<std::string> held;
  for (const int64_t type : types)
    if (!contains_type(config.predicted_types, type) && !contains_type(config.kinematic_types, type))
      held.push_back(std::to_string(type));
  return held;
}

FieldSelection::FieldSelection(const Dataset& dataset, const DataConfig& data, bool in_time)
    : config(data), over_time(in_time) {
  if (dataset.dim() < 2) {
    throw data_error(dataset.path().string() + ": mesh_pos",
                     "positions in 2 or 3 dimensions, which edge features are made of",
                     dataset.dim() == 0 ? "a graph without positions" : "1 dimension",
                     "convert data with positions, or choose a task for graphs");
  }
  std::vector<std::string> on_graphs;
  for (const std::string& name : config.targets) {
    if (dataset.field(name).on == FieldOn::graph) {
      if (std::ranges::find(config.value_targets, name) != config.value_targets.end())
        throw unfit_field("data.value_targets", "fields on nodes, as those on graphs are values anyway",
                          dataset.field(name));
      on_graphs.push_back(name);
      continue;
    }
    const FieldInfo& field = dataset.field(name);
    if (field.on != FieldOn::node || field.dtype != DType::f32)
      throw unfit_target("f32 fields on nodes or graphs", field);
    targets.add(field);
    outputs = targets.width;
    value_columns.resize(static_cast<size_t>(outputs), predicted_quantity(name) == Quantity::value ? 1 : 0);
  }
  graph_targets = TargetFields::on_graphs(dataset, config, on_graphs);
  if (targets.empty() && over_time) {
    throw config_error("data.targets", "a field on nodes, the state of a rollout, beside those on graphs",
                       graph_targets.names(),
                       "add one, or set task.name = \"steady_field\" or \"graph_regression\", which predict "
                       "graphs alone");
  }
  const auto input_of = [&](const FieldInfo& field) {
    int64_t column = 0;
    for (const FieldInfo& target : targets) {
      if (target.name == field.name)
        return Input{field, column, value_columns[static_cast<size_t>(column)] != 0};
      column += target.components;
    }
    return Input{.field = field};
  };
  if (!config.world_position.empty())
    world_position = input_of(checked_position(dataset, config.world_position));
  for (const std::string& name : config.inputs) {
    Input input = input_of(checked_field(dataset, name, "data.inputs", true));
    node_inputs += input.field.components * (input.target_column >= 0 ? config.history : 1);
    inputs.push_back(std::move(input));
  }
  edges = edge_fields(dataset, config);
  if (!config.kinematic_types.empty() && world_position) known_changes.push_back(*world_position);
  if (!config.kinematic_types.empty() && !world_position)
    for (const FieldInfo& field : targets) known_changes.push_back(input_of(field));
  for (const Input& known : known_changes) node_inputs += known.field.components;
  node_inputs += config.node_types;
  if (dataset.node_types() > config.node_types) {
    throw config_error(
        "data.node_types", fmt::format("more than {}, a node type of this data", dataset.node_types() - 1),
        fmt::format("{}", config.node_types), fmt::format("set data.node_types = {}", dataset.node_types()));
  }
}

Quantity FieldSelection::predicted_quantity(std::string_view target) const {
  const std::vector<std::string>& values = config.value_targets;
  if (!over_time || std::find(values.begin(), values.end(), target) != values.end()) return Quantity::value;
  return second_change() ? Quantity::second_change : Quantity::change;
}

bool FieldSelection::is_known_change(int64_t column) const {
  return std::ranges::any_of(known_changes, [&](const Input& known) {
    return known.target_column >= 0 && column >= known.target_column &&
           column < known.target_column + known.field.components;
  });
}

bool FieldSelection::reads(std::string_view field) const {
  return (world_position && world_position->field.name == field) ||
         std::ranges::any_of(inputs, [&](const Input& input) { return input.field.name == field; });
}

std::string FieldSelection::target_names() const {
  return fmt::format("{}", fmt::join(config.targets, ", "));
}

std::vector<std::string> FieldSelection::held_types_of(const Dataset& dataset) const {
  std::set<int64_t> types;
  const std::vector<double>& counts = dataset.node_type_counts();
  for (int64_t type = 0; type < std::ssize(counts); ++type)
    if (counts[static_cast<size_t>(type)] > 0) types.insert(type);
  return held_types(types, config);
}

std::vector<std::string> FieldSelection::given_inputs() const {
  std::vector<std::string> names;
  const auto add = [&](const Input& input) {
    if (input.field.dynamic && input.target_column < 0) names.push_back(input.field.name);
  };
  for (const Input& input : inputs) add(input);
  if (world_position) add(*world_position);
  for (const FieldInfo& field : edges) add({field});
  return names;
}

void FieldSelection::write_mask(const MeshView& mesh, uint8_t* rows) const {
  std::ranges::transform(mesh.node_type, rows,
                         [&](int32_t type) { return static_cast<uint8_t>(is_predicted(type)); });
}

std::vector<uint8_t> FieldSelection::predicted_mask(const MeshView& mesh) const {
  std::vector<uint8_t> mask(mesh.node_type.size());
  write_mask(mesh, mask.data());
  return mask;
}

int64_t FieldSelection::predicted_nodes(const MeshView& mesh) const {
  return std::ranges::count_if(mesh.node_type, [&](int32_t type) { return is_predicted(type); });
}

std::span<const float> FieldSelection::current_positions(const TrajectoryView& trajectory, int64_t t,
                                                         const FieldState& state,
                                                         std::vector<float>& gathered) const {
  if (!world_position) return trajectory.mesh().positions;
  const Input& world = *world_position;
  if (world.target_column < 0) return trajectory.field(world.field.name).frame(t);
  const auto nodes = static_cast<size_t>(trajectory.mesh().nodes);
  const auto dim = static_cast<size_t>(world.field.components);
  gathered.resize(nodes * dim);
  for (size_t i = 0; i < nodes; ++i) {
    const auto from = state.current.begin() + static_cast<std::ptrdiff_t>(i) * outputs + world.target_column;
    std::copy_n(from, dim, gathered.begin() + static_cast<std::ptrdiff_t>(i * dim));
  }
  return gathered;
}

void FieldSelection::read_targets(const TrajectoryView& trajectory, int64_t t,
                                  std::vector<float>& values) const {
  values.resize(static_cast<size_t>(trajectory.mesh().nodes * outputs));
  targets.read(trajectory, t, values);
}

std::vector<float> FieldSelection::target_values(const TrajectoryView& trajectory, int64_t t) const {
  std::vector<float> values;
  read_targets(trajectory, t, values);
  return values;
}

void FieldSelection::read_state(const TrajectoryView& trajectory, int64_t t, FieldState& state) const {
  read_targets(trajectory, t, state.current);
  const int64_t earlier = earlier_frames();
  const size_t size = state.current.size();
  state.previous.resize(static_cast<size_t>(earlier) * size);
  for (int64_t i = 0; i < earlier; ++i)
    targets.read(trajectory, t - 1 - i,
                 std::span(state.previous).subspan(static_cast<size_t>(i) * size, size));
}

}  // namespace meshgrad
