// SPDX-License-Identifier: Apache-2.0
// FieldSelection: which fields of a mesh a model reads and predicts, for every task on meshes. Nodes read the
// fields data.inputs (one on graphs, a condition of the whole mesh, at every node), then a one-hot of the
// node type. An input that is a target is its value, followed by its data.history - 1 last changes, latest
// first; where second changes are predicted (of all targets but data.value_targets), its data.history last
// changes. Between them, nodes of data.kinematic_types read their known change to the next frame, others 0.
// Of targets on graphs the value is predicted: of the same frame, over time of the next one.
// Source: Pfaff et al. (2021), appendix A.1.
#pragma once
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/learn/task/prediction.h>
#include <meshgrad/train/learn/task/target_fields.h>

#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace meshgrad {

/// Whether a list of node types names one.
bool contains_type(const std::vector<int64_t>& types, int64_t type);
/// Of node types those that are neither predicted nor moved by the data, ascending: "1", "4".
std::vector<std::string> held_types(const std::set<int64_t>& types, const DataConfig& config);

struct FieldSelection {
  struct Input {
    FieldInfo field;
    int64_t target_column = -1;  ///< where it stands among the targets, -1: nowhere
    bool value_target = false;   ///< it does, and its value is predicted
  };

  /// Without time, values are predicted. Throws ConfigError when a named field does not exist, is not a float
  /// field on nodes (targets and inputs: or graphs), over time no target is on nodes, or a node type of the
  /// data is outside the one-hot; and what TargetFields::on_graphs throws.
  FieldSelection(const Dataset& dataset, const DataConfig& config, bool over_time);

  DataConfig config;
  bool over_time;
  std::vector<Input> inputs;
  TargetFields targets;                 ///< on nodes; without time perhaps none, beside those on graphs
  TargetFields graph_targets;           ///< on graphs, perhaps none
  std::vector<uint8_t> value_columns;   ///< by column of a state: 1 where its value is predicted
  std::optional<Input> world_position;  ///< the field data.world_position; absent: meshes do not move
  std::vector<FieldInfo> edges;         ///< the fields data.edge_inputs
  std::vector<Input> known_changes;     ///< known of the next frame at nodes of data.kinematic_types
  int64_t node_inputs = 0;              ///< columns that nodes read
  int64_t outputs = 0;                  ///< columns of the targets on nodes

  /// What the model predicts of a target.
  Quantity predicted_quantity(std::string_view target) const;
  /// Whether second changes are predicted, where not values are.
  bool second_change() const { return over_time && config.predict == Prediction::second_change; }
  /// Whether an input that is a target is given as changes only, without its value.
  bool changes_only(const Input& input) const {
    return input.target_column >= 0 && !input.value_target && second_change();
  }
  /// Whether a column of the targets is among the known changes.
  bool is_known_change(int64_t column) const;
  /// Whether the model reads a field: as an input of nodes, or as positions.
  bool reads(std::string_view field) const;
  /// Frames of a state before its current one.
  int64_t earlier_frames() const { return config.history - (second_change() ? 0 : 1); }
  /// "velocity" or "velocity, pressure", of nodes and graphs.
  std::string target_names() const;
  /// Names of the inputs of nodes and edges that change over time and are not predicted: rollouts read them
  /// from the data.
  std::vector<std::string> given_inputs() const;

  bool is_kinematic(int64_t node_type) const { return contains_type(config.kinematic_types, node_type); }
  bool is_predicted(int64_t node_type) const { return contains_type(config.predicted_types, node_type); }
  /// As held_types, of the types in the split of the data set's statistics.
  std::vector<std::string> held_types_of(const Dataset& dataset) const;
  /// u8 [nodes]: 1 where a node is predicted.
  void write_mask(const MeshView& mesh, uint8_t* rows) const;
  std::vector<uint8_t> predicted_mask(const MeshView& mesh) const;
  int64_t predicted_nodes(const MeshView& mesh) const;

  /// The field of current positions; null: meshes do not move.
  const FieldInfo* moving() const { return world_position ? &world_position->field : nullptr; }
  /// The current positions, [nodes, dimensions], in the data or in `gathered`; of a mesh that does not move
  /// those at rest.
  std::span<const float> current_positions(const TrajectoryView& trajectory, int64_t t,
                                           const FieldState& state, std::vector<float>& gathered) const;
  /// Target fields at frame t side by side: [nodes, outputs].
  void read_targets(const TrajectoryView& trajectory, int64_t t, std::vector<float>& values) const;
  std::vector<float> target_values(const TrajectoryView& trajectory, int64_t t) const;
  /// The state at frame t, from the data.
  void read_state(const TrajectoryView& trajectory, int64_t t, FieldState& state) const;
};

}  // namespace meshgrad
