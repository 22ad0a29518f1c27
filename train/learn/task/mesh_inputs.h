// SPDX-License-Identifier: Apache-2.0
// MeshInputs: what a model reads of a mesh and its fields, for every task on meshes. Nodes: the fields
// data.inputs (one on graphs, a condition of the whole mesh, at every node), then a one-hot of the node type.
// An input that is a target is its value, followed by its data.history - 1 last changes, latest first; where
// second changes are predicted (of all targets but data.value_targets), its data.history last changes.
// Between them, for nodes of data.kinematic_types their known change to the next frame, for others 0.
// Edges: relative position (sender minus receiver) and its length; of a mesh that moves, first those of the
// current positions, then those at rest. World edges (data.world_radius): relative current position and its
// length. Source: Pfaff et al. (2021), appendix A.1.
#pragma once
#include <meshgrad/nn/normalizer.h>
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/data/world_edges.h>
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/learn/task/batch_layout.h>
#include <meshgrad/train/learn/task/prediction.h>
#include <meshgrad/train/learn/task/sample.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace meshgrad {

/// Where samples and predictions are computed before they are stored. Kept from one to the next, its memory
/// is used again.
struct SampleScratch {
  FieldState state;
  std::vector<float> noise;      ///< in state.current, whole; in state.previous its walk: [nodes, outputs]
  std::vector<float> next;       ///< the target fields one frame later
  std::vector<float> positions;  ///< current ones: [nodes, dimensions]
  std::vector<float> wide_nodes, wide_edges, wide_world;          ///< rows of a batch that stores 16 bits
  std::tuple<std::vector<float>, std::vector<double>> predicted;  ///< rows of a prediction, one is used
};

/// Whether a list of node types names one.
bool contains_type(const std::vector<int64_t>& types, int64_t type);

/// What MeshInputs::find_world_edges returned, read back; 0 of nothing. Waits for the device.
int64_t missing_edges(const Runtime& runtime, const Tensor& missing);

/// What data.period and data.hops ask for.
MeshEdgeOptions edge_options(const DataConfig& config);

/// Room of a batch of so many nodes for world edges; 0 where there are none.
int64_t world_room(const DataConfig& config, int64_t nodes);

class MeshInputs {
 public:
  /// Its dataset() has the edges that the configuration asks for. Throws ConfigError when a named field does
  /// not exist, is not a float field on nodes, or a node type of the data is outside the one-hot.
  MeshInputs(const Dataset& dataset, const DataConfig& config);

  struct Input {
    FieldInfo field;
    int64_t target_column = -1;  ///< where it stands among the targets, -1: nowhere
    bool value_target = false;   ///< it does, and is one of data.value_targets
  };
  const std::vector<Input>& inputs() const { return inputs_; }
  const std::vector<FieldInfo>& targets() const { return targets_; }
  /// The field data.world_position; nothing for meshes that do not move.
  const std::optional<Input>& world_position() const { return world_position_; }
  /// What the model predicts of a target.
  Quantity predicted_quantity(std::string_view target) const;
  /// By column of a state: 1 where its value is predicted, not its change.
  const std::vector<uint8_t>& value_columns() const { return value_columns_; }
  /// Whether an input that is a target is given as changes alone, without its value.
  bool changes_alone(const Input& input) const {
    return input.target_column >= 0 && !input.value_target && config_.predict == Prediction::second_change;
  }
  /// What is known of the next frame at nodes of data.kinematic_types.
  const std::vector<Input>& known_changes() const { return known_changes_; }
  /// Whether a column of the targets is among them.
  bool is_known_change(int64_t column) const;
  /// Whether the model reads a field: as an input of nodes, or as positions.
  bool reads(std::string_view field) const;
  const DataConfig& config() const { return config_; }
  const Dataset& dataset() const { return dataset_; }
  int64_t node_inputs() const { return node_inputs_; }
  int64_t edge_inputs() const;
  bool has_world_edges() const { return world_options_.radius > 0.0; }
  const WorldEdgeOptions& world_options() const { return world_options_; }
  int64_t world_inputs() const { return world_position_ ? world_position_->field.components + 1 : 0; }
  int64_t outputs() const { return outputs_; }
  /// Frames of a state before its current one.
  int64_t earlier_frames() const {
    return config_.history - (config_.predict == Prediction::second_change ? 0 : 1);
  }
  const ModelSizes& sizes() const { return sizes_; }
  /// "velocity" or "velocity, pressure".
  std::string target_names() const;

  /// Empty normalisers, that learn from batches.
  Normalizers online_normalizers() const;
  /// From the data set's statistics: fields over all nodes, the one-hot unchanged; of current positions those
  /// of some frames (displacement_stats).
  Normalizers dataset_normalizers(Normalizer targets) const;
  /// Statistics of a field over the predicted nodes of the training split.
  FieldStatistics predicted_stats(const std::string& field, Quantity which) const;

  /// Sizes of the union of these samples' meshes, with its room for world edges. Throws ConfigError for 2^31
  /// - 1 nodes or edges and more.
  BatchShape shape(std::string_view split, const std::vector<Sample>& samples) const;

  /// The model's inputs, "target" [nodes, outputs] in the accumulator of `dtype`, and "mask" u8 [nodes].
  BatchLayout layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const;
  /// A batch of one graph for prediction, without target and mask: inputs that are targets too come from
  /// `state`, others from frame t.
  Batch prediction_batch(Runtime& runtime, DType dtype, const TrajectoryView& trajectory, int64_t t,
                         const FieldState& state, const Normalizers& normalizers) const;
  /// Parts of such a batch on the host, for one mesh of a union, whose rows begin behind those of `before`.
  void write_edge_features(const Batch& batch, const TrajectoryView& trajectory, int64_t t,
                           const FieldState& state, const Dataset::MeshSizes& before,
                           const Normalizers& normalizers, SampleScratch& scratch) const;
  void write_node_features(const Batch& batch, const TrajectoryView& trajectory, int64_t t,
                           const FieldState& state, const Dataset::MeshSizes& before,
                           const Normalizers& normalizers, SampleScratch& scratch) const;

  /// [nodes, node_inputs]: inputs that are targets too come from `state`, others from frame t.
  template <class T>
  void write_nodes(const TrajectoryView& trajectory, int64_t t, const FieldState& state, T* rows) const;
  /// [edges, edge_inputs]: current positions come from `state` if they are a target, else from frame t.
  template <class T>
  void write_edges(const TrajectoryView& trajectory, int64_t t, const FieldState& state,
                   SampleScratch& scratch, T* rows) const;
  /// Most world edges of a mesh of so many nodes in a batch: its share of data.world_edges_per_node, which
  /// binds training alone, or most_world_edges.
  int64_t world_limit(int64_t nodes) const;
  /// The world edges of a frame, by current positions as above. Throws ConfigError for more than `most`.
  MeshEdges world_edges_at(const TrajectoryView& trajectory, int64_t t, const FieldState& state,
                           SampleScratch& scratch, int64_t most) const;
  /// The error of a frame with so many world edges on `nodes` nodes, more than its batch has room for.
  ConfigError world_edges_refused(int64_t nodes, int64_t edges, std::string_view frame,
                                  std::string_view fix) const;
  /// The same inputs for validation: batches have as much room for world edges as their frames need.
  MeshInputs for_validation() const;
  /// Appends them to the union's graph behind those of `before`, writes their features to `rows`, [world
  /// edges, world_inputs()], and returns the sizes of all so far.
  template <class T>
  Dataset::MeshSizes append_world_edges(const Graph& graph, const MeshEdges& world,
                                        const TrajectoryView& trajectory, int64_t t, const FieldState& state,
                                        const Dataset::MeshSizes& before, SampleScratch& scratch,
                                        T* rows) const;
  /// The same into a batch on the host, normalised.
  Dataset::MeshSizes write_world_edges(const Batch& batch, const MeshEdges& world,
                                       const TrajectoryView& trajectory, int64_t t, const FieldState& state,
                                       const Dataset::MeshSizes& before, const Normalizers& normalizers,
                                       SampleScratch& scratch) const;
  /// Adds what a device reads to find the world edges of a batch itself; without world edges nothing.
  void add_world_search(BatchLayout& layout) const;
  bool is_searched(const Batch& batch) const;
  /// A mesh's place in the union: its number, and its first node.
  struct PlaceInUnion {
    int32_t mesh = 0;
    int64_t node = 0;
  };
  /// Writes what add_world_search has added, on the host.
  void write_world_search(const Batch& batch, const TrajectoryView& trajectory, int64_t t,
                          const FieldState& state, const PlaceInUnion& place, const Normalizers& normalizers,
                          SampleScratch& scratch) const;
  /// Finds the world edges of such a batch where it is, with the same bits as append_world_edges; of others
  /// nothing. Returns i64 [1], on the device: how many had no room.
  Tensor find_world_edges(Runtime& runtime, const Batch& batch) const;
  /// The current positions, [nodes, dimensions], in the data or in `gathered`.
  std::span<const float> current_positions(const TrajectoryView& trajectory, int64_t t,
                                           const FieldState& state, std::vector<float>& gathered) const;
  /// Target fields at frame t side by side: [nodes, outputs].
  void read_targets(const TrajectoryView& trajectory, int64_t t, std::vector<float>& values) const;
  void read_targets(const TrajectoryView& trajectory, int64_t t, std::span<float> values) const;
  std::vector<float> target_values(const TrajectoryView& trajectory, int64_t t) const;

  bool is_kinematic(int64_t node_type) const { return contains_type(config_.kinematic_types, node_type); }
  bool is_predicted(int64_t node_type) const { return contains_type(config_.predicted_types, node_type); }
  /// u8 [nodes]: 1 where a node is predicted.
  void write_mask(const MeshView& mesh, uint8_t* rows) const;
  std::vector<uint8_t> predicted_mask(const MeshView& mesh) const;
  int64_t predicted_nodes(const MeshView& mesh) const;
  int64_t predicted_nodes(std::string_view split, const std::vector<Sample>& samples) const;

 private:
  template <class T>
  size_t write_known_changes(const TrajectoryView& trajectory, int64_t t, const FieldState& state,
                             size_t column, T* rows) const;
  /// Columns of an input that is a target; returns the column behind them.
  template <class T>
  size_t write_target_input(const Input& input, const FieldState& state, size_t nodes, size_t column,
                            T* rows) const;

  Dataset dataset_;
  DataConfig config_;
  std::vector<Input> inputs_;
  std::vector<FieldInfo> targets_;
  std::vector<uint8_t> value_columns_;
  std::optional<Input> world_position_;
  std::vector<Input> known_changes_;
  WorldEdgeOptions world_options_;
  bool limited_world_ = true;  // by data.world_edges_per_node
  int64_t node_inputs_ = 0;
  int64_t outputs_ = 0;
  ModelSizes sizes_;
};

/// The disjoint union of meshes as one graph, mesh by mesh: writes one with its indices moved behind those of
/// the meshes before it, and returns the sizes of them all. The graph's tensors lie on the host and are large
/// enough; `counts`, if it has them, are written too.
Dataset::MeshSizes append_to_union(const Graph& graph, const MeshView& mesh,
                                   const Dataset::MeshSizes& before);

/// Graph offsets of the union: nodes of sample i are offsets[i] .. offsets[i + 1] - 1.
std::vector<int64_t> graph_offsets(const Dataset& dataset, std::string_view split,
                                   const std::vector<Sample>& samples);

}  // namespace meshgrad
