// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/task/batch_rows.h>
#include <meshgrad/train/learn/task/displacements.h>
#include <meshgrad/train/learn/task/mesh_inputs.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace meshgrad {
namespace {

/// Targets are float fields on nodes. Inputs may also be on graphs: a condition of the whole mesh.
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

int64_t missing_edges(const Runtime& runtime, const Tensor& missing) {
  return missing.defined() && !runtime.dry() ? *to_host(missing, runtime.stream()).data<int64_t>() : 0;
}

MeshEdgeOptions edge_options(const DataConfig& config) {
  MeshEdgeOptions options{.period = {}, .hops = config.hops};
  std::copy(config.period.begin(), config.period.end(), options.period.begin());
  return options;
}

int64_t world_room(const DataConfig& config, int64_t nodes) {
  if (config.world_radius <= 0.0) return 0;
  return static_cast<int64_t>(std::ceil(config.world_edges_per_node * static_cast<double>(nodes)));
}

MeshInputs::MeshInputs(const Dataset& dataset, const DataConfig& config)
    : dataset_(dataset.with_edges(edge_options(config))),
      config_(config),
      world_options_{config.world_radius, config.world_pairs == WorldPairs::other_type} {
  std::vector<int64_t> target_columns;
  for (const std::string& name : config.targets) {
    targets_.push_back(checked_field(dataset, name, "data.targets", false));
    target_columns.push_back(outputs_);
    outputs_ += targets_.back().components;
    value_columns_.resize(static_cast<size_t>(outputs_), predicted_quantity(name) == Quantity::value ? 1 : 0);
  }
  const auto input_of = [&](const FieldInfo& field) {
    const auto target = std::find(config.targets.begin(), config.targets.end(), field.name);
    if (target == config.targets.end()) return Input{.field = field};
    const int64_t column = target_columns[static_cast<size_t>(target - config.targets.begin())];
    return Input{field, column, value_columns_[static_cast<size_t>(column)] != 0};
  };
  if (has_world_edges() && config.world_position.empty())
    throw config_error("data.world_radius", "0 where meshes do not move",
                       fmt::format("{}", config.world_radius),
                       "name the field of current positions in data.world_position");
  if (!config.world_position.empty())
    world_position_ = input_of(checked_position(dataset, config.world_position));
  for (const std::string& name : config.inputs) {
    Input input = input_of(checked_field(dataset, name, "data.inputs", true));
    node_inputs_ += input.field.components * (input.target_column >= 0 ? config.history : 1);
    inputs_.push_back(std::move(input));
  }
  if (!config.kinematic_types.empty() && world_position_) known_changes_.push_back(*world_position_);
  if (!config.kinematic_types.empty() && !world_position_)
    for (const FieldInfo& field : targets_) known_changes_.push_back(input_of(field));
  for (const Input& known : known_changes_) node_inputs_ += known.field.components;
  node_inputs_ += config.node_types;
  if (dataset.node_types() > config.node_types) {
    throw config_error(
        "data.node_types", fmt::format("more than {}, a node type of this data", dataset.node_types() - 1),
        fmt::format("{}", config.node_types), fmt::format("set data.node_types = {}", dataset.node_types()));
  }
  sizes_ = {.node_inputs = node_inputs_,
            .edge_inputs = {edge_inputs()},
            .edge_set_names = {"mesh"},
            .outputs = outputs_};
  if (!has_world_edges()) return;
  sizes_.edge_inputs.push_back(world_inputs());
  sizes_.edge_set_names.emplace_back("world");
}

int64_t MeshInputs::edge_inputs() const {
  const int64_t at_rest = dataset_.dim() + 1;
  return at_rest + (world_position_ ? world_position_->field.components + 1 : 0);
}

Quantity MeshInputs::predicted_quantity(std::string_view target) const {
  const std::vector<std::string>& values = config_.value_targets;
  if (std::find(values.begin(), values.end(), target) != values.end()) return Quantity::value;
  return config_.predict == Prediction::second_change ? Quantity::second_change : Quantity::change;
}

bool MeshInputs::is_known_change(int64_t column) const {
  return std::ranges::any_of(known_changes_, [&](const Input& known) {
    return known.target_column >= 0 && column >= known.target_column &&
           column < known.target_column + known.field.components;
  });
}

bool MeshInputs::reads(std::string_view field) const {
  return (world_position_ && world_position_->field.name == field) ||
         std::any_of(inputs_.begin(), inputs_.end(),
                     [&](const Input& input) { return input.field.name == field; });
}

std::string MeshInputs::target_names() const {
  std::string names;
  for (const FieldInfo& field : targets_) names += (names.empty() ? "" : ", ") + field.name;
  return names;
}

Normalizers MeshInputs::online_normalizers() const {
  return {Normalizer(static_cast<size_t>(node_inputs_)), Normalizer(static_cast<size_t>(edge_inputs())),
          Normalizer(static_cast<size_t>(outputs_)),
          Normalizer(static_cast<size_t>(has_world_edges() ? world_inputs() : 0))};
}

Normalizers MeshInputs::dataset_normalizers(Normalizer targets) const {
  std::vector<double> mean, deviation;
  for (const Input& input : inputs_) {
    const bool target = input.target_column >= 0;
    for (int64_t age = 0; age < (target ? config_.history : 1); ++age) {
      const bool change = changes_alone(input) || age > 0;
      const FieldStatistics stats = dataset_.field_stats(input.field.name, NodeTypeSet::all(),
                                                         change ? Quantity::change : Quantity::value);
      mean.insert(mean.end(), stats.mean.begin(), stats.mean.end());
      deviation.insert(deviation.end(), stats.std.begin(), stats.std.end());
    }
  }
  // Of known changes their root of the mean square, so that the 0 of other nodes stays 0.
  const NodeTypeSet kinematic(std::span(config_.kinematic_types));
  for (const Input& known : known_changes_) {
    const FieldStatistics stats = dataset_.field_stats(known.field.name, kinematic, Quantity::change);
    mean.insert(mean.end(), stats.mean.size(), 0.0);
    for (size_t c = 0; c < stats.mean.size(); ++c)
      deviation.push_back(std::hypot(stats.mean[c], stats.std[c]));
  }
  mean.insert(mean.end(), static_cast<size_t>(config_.node_types), 0.0);
  deviation.insert(deviation.end(), static_cast<size_t>(config_.node_types), 1.0);
  FieldStatistics edges;
  if (world_position_) edges = displacement_stats(dataset_, world_position_->field);
  const FieldStatistics at_rest = dataset_.edge_stats();
  edges.mean.insert(edges.mean.end(), at_rest.mean.begin(), at_rest.mean.end());
  edges.std.insert(edges.std.end(), at_rest.std.begin(), at_rest.std.end());
  FieldStatistics world;
  if (has_world_edges()) world = displacement_stats(dataset_, world_position_->field, world_options_);
  return {Normalizer::fixed(mean, deviation), Normalizer::fixed(edges.mean, edges.std), std::move(targets),
          Normalizer::fixed(world.mean, world.std)};
}

FieldStatistics MeshInputs::predicted_stats(const std::string& field, Quantity which) const {
  return dataset_.field_stats(field, NodeTypeSet(std::span(config_.predicted_types)), which);
}

BatchShape MeshInputs::shape(std::string_view split, const std::vector<Sample>& samples) const {
  BatchShape shape;
  for (const Sample& sample : samples) {
    const TrajectoryView view = dataset_.trajectory(split, sample.trajectory);
    shape.nodes += view.mesh().nodes;
    shape.edges += view.mesh().edges;
  }
  shape.world_edges = world_room(config_, shape.nodes);
  if (has_world_edges() && !limited_world_) {
    shape.world_edges = 1;  // of frames without noise
    for (const Sample& sample : samples) {
      const TrajectoryView view = dataset_.trajectory(split, sample.trajectory);
      shape.world_edges +=
          count_world_edges(view.mesh(), view.field(world_position_->field.name).frame(sample.frame),
                            world_position_->field.components, world_options_);
    }
  }
  if (std::max({shape.nodes, shape.edges, shape.world_edges}) > std::numeric_limits<int32_t>::max() - 1) {
    throw config_error(
        "train.batch", "a batch of fewer than 2^31 nodes and edges",
        fmt::format("{} nodes, {} edges and {} world edges", shape.nodes, shape.edges, shape.world_edges),
        "lower train.batch");
  }
  return shape;
}

BatchLayout MeshInputs::layout(const BatchShape& shape, DType dtype, BatchLayout::Sizes kind) const {
  BatchLayout layout(sizes_, shape, dtype, kind);
  layout.add("target", {shape.nodes, outputs_}, accumulator_of(dtype), TensorRows::nodes);
  layout.add("mask", {shape.nodes}, DType::u8, TensorRows::nodes);
  return layout;
}

Batch MeshInputs::prediction_batch(Runtime& runtime, DType dtype, const TrajectoryView& trajectory, int64_t t,
                                   const FieldState& state, const Normalizers& normalizers) const {
  const MeshView& mesh = trajectory.mesh();
  SampleScratch scratch;
  // A prediction has as much room as its frame needs, or on a device once more where it needed more.
  const bool searches = has_world_edges() && runtime.stream().on_gpu();
  MeshEdges world;
  int64_t room = world_room(config_, mesh.nodes);
  if (has_world_edges() && !searches) {
    world = world_edges_at(trajectory, t, state, scratch, most_world_edges(mesh.nodes));
    room = std::max<int64_t>(1, std::ssize(world.senders));
  }
  while (true) {
    BatchLayout layout(sizes_, {.nodes = mesh.nodes, .edges = mesh.edges, .world_edges = room}, dtype,
                       BatchLayout::Sizes::exact);
    if (searches) add_world_search(layout);
    Batch result = make_batch(runtime, layout, [&](const Batch& batch) {
      append_to_union(batch.graph.edge_sets.front().graph, mesh, {});
      write_edge_features(batch, trajectory, t, state, {}, normalizers, scratch);
      write_node_features(batch, trajectory, t, state, {}, normalizers, scratch);
      if (searches) {
        write_world_search(batch, trajectory, t, state, {}, normalizers, scratch);
      } else if (has_world_edges()) {
        write_world_edges(batch, world, trajectory, t, state, {}, normalizers, scratch);
      }
    });
    result.graph.graph_offsets = {0, mesh.nodes};
    const int64_t missing = missing_edges(runtime, find_world_edges(runtime, result));
    if (missing == 0) return result;
    room += missing;
    if (room > most_world_edges(mesh.nodes)) throw too_many_world_edges(frame_name(trajectory, t));
  }
}

void MeshInputs::write_edge_features(const Batch& batch, const TrajectoryView& trajectory, int64_t t,
                                     const FieldState& state, const Dataset::MeshSizes& before,
                                     const Normalizers& normalizers, SampleScratch& scratch) const {
  const Tensor& features = batch.graph.edge_sets.front().features;
  dispatch_storage(accumulator_of(features.dtype()), [&]<class T>() {
    RowsInPlace<T> rows(features, before.edges, trajectory.mesh().edges, scratch.wide_edges);
    write_edges(trajectory, t, state, scratch, rows.values().data());
    normalizers.edges.normalize(rows.values());
    rows.store();
  });
}

void MeshInputs::write_node_features(const Batch& batch, const TrajectoryView& trajectory, int64_t t,
                                     const FieldState& state, const Dataset::MeshSizes& before,
                                     const Normalizers& normalizers, SampleScratch& scratch) const {
  const Tensor& features = batch.graph.node_features;
  dispatch_storage(accumulator_of(features.dtype()), [&]<class T>() {
    RowsInPlace<T> rows(features, before.nodes, trajectory.mesh().nodes, scratch.wide_nodes);
    write_nodes(trajectory, t, state, rows.values().data());
    normalizers.nodes.normalize(rows.values());
    rows.store();
  });
}

template <class T>
size_t MeshInputs::write_target_input(const Input& input, const FieldState& state, size_t nodes,
                                      size_t column, T* rows) const {
  const auto components = static_cast<size_t>(input.field.components);
  const auto width = static_cast<size_t>(node_inputs_);
  const auto outputs = static_cast<size_t>(outputs_);
  const bool second = changes_alone(input);
  for (int64_t age = 0; age < config_.history; ++age, column += components) {
    const bool value = age == 0 && !second;
    const int64_t later = second ? age : std::max<int64_t>(age - 1, 0);  // frames before the current one
    const std::span<const float> to = state.frame(later);
    const std::span<const float> from = value ? std::span<const float>() : state.frame(later + 1);
    for (size_t i = 0; i < nodes; ++i) {
      for (size_t c = 0; c < components; ++c) {
        const size_t at = i * outputs + static_cast<size_t>(input.target_column) + c;
        const double before = value ? 0.0 : static_cast<double>(from[at]);
        rows[i * width + column + c] = static_cast<T>(static_cast<double>(to[at]) - before);
      }
    }
  }
  return column;
}

template <class T>
void MeshInputs::write_nodes(const TrajectoryView& trajectory, int64_t t, const FieldState& state,
                             T* rows) const {
  const MeshView& mesh = trajectory.mesh();
  const auto nodes = static_cast<size_t>(mesh.nodes);
  const auto width = static_cast<size_t>(node_inputs_);
  size_t column = 0;
  for (const Input& input : inputs_) {
    const auto components = static_cast<size_t>(input.field.components);
    if (input.target_column >= 0) {
      column = write_target_input(input, state, nodes, column, rows);
      continue;
    }
    const bool on_graph = input.field.on == FieldOn::graph;
    const std::span<const float> frame = trajectory.field(input.field.name).frame(t);
    for (size_t i = 0; i < nodes; ++i) {
      for (size_t c = 0; c < components; ++c)
        rows[i * width + column + c] = static_cast<T>(frame[(on_graph ? 0 : i * components) + c]);
    }
    column += components;
  }
  column = write_known_changes(trajectory, t, state, column, rows);
  for (size_t i = 0; i < nodes; ++i) {
    for (size_t type = 0; type < width - column; ++type) {
      rows[i * width + column + type] =
          static_cast<T>(mesh.node_type[i] == static_cast<int32_t>(type) ? 1 : 0);
    }
  }
}
/// Returns the column behind them.
template <class T>
size_t MeshInputs::write_known_changes(const TrajectoryView& trajectory, int64_t t, const FieldState& state,
                                       size_t column, T* rows) const {
  const MeshView& mesh = trajectory.mesh();
  const int64_t next_frame = std::min(t + 1, trajectory.frames() - 1);
  for (const Input& known : known_changes_) {
    const auto components = static_cast<size_t>(known.field.components);
    const std::span<const float> next = trajectory.field(known.field.name).frame(next_frame);
    const bool target = known.target_column >= 0;
    const std::span<const float> now =
        target ? std::span(state.current).subspan(static_cast<size_t>(known.target_column))
               : trajectory.field(known.field.name).frame(t);
    const auto width = target ? static_cast<size_t>(outputs_) : components;
    for (size_t i = 0; i < mesh.node_type.size(); ++i) {
      T* const row = rows + i * static_cast<size_t>(node_inputs_) + column;
      const bool kinematic = is_kinematic(mesh.node_type[i]);
      for (size_t c = 0; c < components; ++c) {
        row[c] = static_cast<T>(kinematic ? static_cast<double>(next[i * components + c]) -
                                                static_cast<double>(now[i * width + c])
                                          : 0.0);
      }
    }
    column += components;
  }
  return column;
}

template void MeshInputs::write_nodes(const TrajectoryView&, int64_t, const FieldState&, float*) const;
template void MeshInputs::write_nodes(const TrajectoryView&, int64_t, const FieldState&, double*) const;

template <class T>
void MeshInputs::write_edges(const TrajectoryView& trajectory, int64_t t, const FieldState& state,
                             SampleScratch& scratch, T* rows) const {
  const MeshView& mesh = trajectory.mesh();
  const int64_t width = edge_inputs();
  if (world_position_) {
    const int dim = world_position_->field.components;
    write_displacements(mesh, current_positions(trajectory, t, state, scratch.positions), dim, width, rows);
    rows += dim + 1;
  }
  write_displacements(mesh, mesh.positions, mesh.dim, width, rows);
}
template void MeshInputs::write_edges(const TrajectoryView&, int64_t, const FieldState&, SampleScratch&,
                                      float*) const;
template void MeshInputs::write_edges(const TrajectoryView&, int64_t, const FieldState&, SampleScratch&,
                                      double*) const;

std::span<const float> MeshInputs::current_positions(const TrajectoryView& trajectory, int64_t t,
                                                     const FieldState& state,
                                                     std::vector<float>& gathered) const {
  const Input& world = *world_position_;
  if (world.target_column < 0) return trajectory.field(world.field.name).frame(t);
  const auto nodes = static_cast<size_t>(trajectory.mesh().nodes);
  const auto dim = static_cast<size_t>(world.field.components);
  gathered.resize(nodes * dim);
  for (size_t i = 0; i < nodes; ++i) {
    const auto from = state.current.begin() + static_cast<std::ptrdiff_t>(i) * outputs_ + world.target_column;
    std::copy_n(from, dim, gathered.begin() + static_cast<std::ptrdiff_t>(i * dim));
  }
  return gathered;
}

void MeshInputs::read_targets(const TrajectoryView& trajectory, int64_t t, std::vector<float>& values) const {
  values.resize(static_cast<size_t>(trajectory.mesh().nodes * outputs_));
  read_targets(trajectory, t, std::span(values));
}

void MeshInputs::read_targets(const TrajectoryView& trajectory, int64_t t, std::span<float> values) const {
  const auto nodes = static_cast<size_t>(trajectory.mesh().nodes);
  const auto width = static_cast<size_t>(outputs_);
  size_t column = 0;
  for (const FieldInfo& field : targets_) {
    const std::span<const float> frame = trajectory.field(field.name).frame(t);
    const auto components = static_cast<size_t>(field.components);
    for (size_t i = 0; i < nodes; ++i) {
      std::copy_n(frame.begin() + static_cast<std::ptrdiff_t>(i * components), components,
                  values.begin() + static_cast<std::ptrdiff_t>(i * width + column));
    }
    column += components;
  }
}

std::vector<float> MeshInputs::target_values(const TrajectoryView& trajectory, int64_t t) const {
  std::vector<float> values;
  read_targets(trajectory, t, values);
  return values;
}

void MeshInputs::write_mask(const MeshView& mesh, uint8_t* rows) const {
  std::transform(mesh.node_type.begin(), mesh.node_type.end(), rows,
                 [&](int32_t type) { return static_cast<uint8_t>(is_predicted(type)); });
}

std::vector<uint8_t> MeshInputs::predicted_mask(const MeshView& mesh) const {
  std::vector<uint8_t> mask(mesh.node_type.size());
  write_mask(mesh, mask.data());
  return mask;
}

int64_t MeshInputs::predicted_nodes(const MeshView& mesh) const {
  return std::count_if(mesh.node_type.begin(), mesh.node_type.end(),
                       [&](int32_t type) { return is_predicted(type); });
}

int64_t MeshInputs::predicted_nodes(std::string_view split, const std::vector<Sample>& samples) const {
  int64_t nodes = 0;
  for (const Sample& sample : samples)
    nodes += predicted_nodes(dataset_.trajectory(split, sample.trajectory).mesh());
  return nodes;
}

Dataset::MeshSizes append_to_union(const Graph& graph, const MeshView& mesh,
                                   const Dataset::MeshSizes& before) {
  // The copies are checked, not the file, which may change in between.
  const auto append = [&](std::span<const int32_t> from, const Tensor& to, int64_t at, int64_t shift,
                          int64_t limit) {
    int32_t* const copy = to.data<int32_t>() + at;
    std::transform(from.begin(), from.end(), copy,
                   [shift](int32_t value) { return static_cast<int32_t>(value + shift); });
    const bool valid = std::all_of(copy, copy + from.size(),
                                   [&](int32_t value) { return value >= shift && value < shift + limit; });
    if (!valid) throw changed_mesh(mesh);
  };
  const auto append_offsets = [&](std::span<const int32_t> from, const Tensor& to) {
    append(from, to, before.nodes, before.edges, mesh.edges + 1);
    const int32_t* const copy = to.data<int32_t>() + before.nodes;
    if (!std::is_sorted(copy, copy + from.size())) throw changed_mesh(mesh);
  };
  append(mesh.senders, graph.senders, before.edges, before.nodes, mesh.nodes);
  append(mesh.receivers, graph.receivers, before.edges, before.nodes, mesh.nodes);
  append(mesh.sender_order, graph.sender_order, before.edges, before.edges, mesh.edges);
  append_offsets(mesh.receiver_offsets, graph.receiver_offsets);
  append_offsets(mesh.sender_offsets, graph.sender_offsets);
  const Dataset::MeshSizes all{before.nodes + mesh.nodes, before.edges + mesh.edges};
  if (graph.counts.defined()) {
    int64_t* counts = graph.counts.data<int64_t>();
    counts[0] = counts[1] = all.nodes;
    counts[2] = all.edges;
  }
  return all;
}

std::vector<int64_t> graph_offsets(const Dataset& dataset, std::string_view split,
                                   const std::vector<Sample>& samples) {
  std::vector<int64_t> offsets{0};
  for (const Sample& sample : samples)
    offsets.push_back(offsets.back() + dataset.trajectory(split, sample.trajectory).mesh().nodes);
  return offsets;
}

}  // namespace meshgrad
