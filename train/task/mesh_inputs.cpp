// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/task/batch_rows.h>
#include <meshgrad/train/task/mesh_inputs.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace meshgrad {
namespace {

/// Meshes are checked when they are first read; a file that is changed afterwards must not lead out of
/// bounds.
DataError changed_mesh(const MeshView& mesh) {
  return data_error(fmt::format("{}: mesh {}", mesh.file, mesh.index), "the edges it had when it was checked",
                    "others: the file was changed while it was in use",
                    "copy the file again, then resume the run");
}

/// Reads the number once, so that what is checked is what is used.
size_t node_of(const MeshView& mesh, const int32_t& number) {
  const int32_t node = __atomic_load_n(&number, __ATOMIC_RELAXED);
  if (node < 0 || node >= mesh.nodes) throw changed_mesh(mesh);
  return static_cast<size_t>(node);
}

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

MeshInputs::MeshInputs(const Dataset& dataset, const DataConfig& config)
    : dataset_(dataset), config_(config) {
  std::vector<int64_t> target_columns;
  for (const std::string& name : config.targets) {
    targets_.push_back(checked_field(dataset, name, "data.targets", false));
    target_columns.push_back(outputs_);
    outputs_ += targets_.back().components;
  }
  for (const std::string& name : config.inputs) {
    Input input{checked_field(dataset, name, "data.inputs", true), -1};
    const auto target = std::find(config.targets.begin(), config.targets.end(), name);
    if (target != config.targets.end())
      input.target_column = target_columns[static_cast<size_t>(target - config.targets.begin())];
    node_inputs_ += input.field.components * (input.target_column >= 0 ? config.history : 1);
    inputs_.push_back(std::move(input));
  }
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
}

std::string MeshInputs::target_names() const {
  std::string names;
  for (const FieldInfo& field : targets_) names += (names.empty() ? "" : ", ") + field.name;
  return names;
}

Normalizers MeshInputs::online_normalizers() const {
  return {Normalizer(static_cast<size_t>(node_inputs_)), Normalizer(static_cast<size_t>(edge_inputs())),
          Normalizer(static_cast<size_t>(outputs_))};
}

Normalizers MeshInputs::dataset_normalizers(bool changes, Normalizer targets) const {
  std::vector<double> mean, deviation;
  for (const Input& input : inputs_) {
    const bool target = input.target_column >= 0;
    for (int64_t age = 0; age < (target ? config_.history : 1); ++age) {
      const bool change = target && (changes || age > 0);
      const FieldStatistics stats = dataset_.field_stats(input.field.name, NodeTypeSet::all(),
                                                         change ? Quantity::change : Quantity::value);
      mean.insert(mean.end(), stats.mean.begin(), stats.mean.end());
      deviation.insert(deviation.end(), stats.std.begin(), stats.std.end());
    }
  }
  mean.insert(mean.end(), static_cast<size_t>(config_.node_types), 0.0);
  deviation.insert(deviation.end(), static_cast<size_t>(config_.node_types), 1.0);
  const FieldStatistics edges = dataset_.edge_stats();
  return {Normalizer::fixed(mean, deviation), Normalizer::fixed(edges.mean, edges.std), std::move(targets)};
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
  if (shape.nodes > std::numeric_limits<int32_t>::max() - 1 ||
      shape.edges > std::numeric_limits<int32_t>::max() - 1) {
    throw config_error("train.batch", "a batch of fewer than 2^31 nodes and edges",
                       fmt::format("{} nodes and {} edges", shape.nodes, shape.edges), "lower train.batch");
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
  const BatchLayout layout(sizes_, {mesh.nodes, mesh.edges}, dtype, BatchLayout::Sizes::exact);
  SampleScratch scratch;
  Batch result = make_batch(runtime, layout, [&](const Batch& batch) {
    append_to_union(batch.graph.edge_sets.front().graph, mesh, {});
    write_edge_features(batch, mesh, {}, normalizers, scratch);
    write_node_features(batch, trajectory, t, state, {}, normalizers, scratch);
  });
  result.graph.graph_offsets = {0, mesh.nodes};
  return result;
}

void MeshInputs::write_edge_features(const Batch& batch, const MeshView& mesh,
                                     const Dataset::MeshSizes& before, const Normalizers& normalizers,
                                     SampleScratch& scratch) const {
  const Tensor& features = batch.graph.edge_sets.front().features;
  dispatch_storage(accumulator_of(features.dtype()), [&]<class T>() {
    RowsInPlace<T> rows(features, before.edges, mesh.edges, scratch.wide_edges);
    write_edges(mesh, rows.values().data());
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
  const bool second = config_.predict == Prediction::second_change;
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
  for (size_t i = 0; i < nodes; ++i) {
    for (size_t type = 0; type < width - column; ++type) {
      rows[i * width + column + type] =
          static_cast<T>(mesh.node_type[i] == static_cast<int32_t>(type) ? 1 : 0);
    }
  }
}
template void MeshInputs::write_nodes(const TrajectoryView&, int64_t, const FieldState&, float*) const;
template void MeshInputs::write_nodes(const TrajectoryView&, int64_t, const FieldState&, double*) const;

template <class T>
void MeshInputs::write_edges(const MeshView& mesh, T* rows) const {
  const auto dim = static_cast<size_t>(mesh.dim);
  for (size_t e = 0; e < static_cast<size_t>(mesh.edges); ++e, rows += dim + 1) {
    const size_t sender = node_of(mesh, mesh.senders[e]) * dim;
    const size_t receiver = node_of(mesh, mesh.receivers[e]) * dim;
    double squares = 0.0;
    for (size_t axis = 0; axis < dim; ++axis) {
      const double d = static_cast<double>(mesh.positions[sender + axis]) -
                       static_cast<double>(mesh.positions[receiver + axis]);
      rows[axis] = static_cast<T>(d);
      squares += d * d;
    }
    rows[dim] = static_cast<T>(std::sqrt(squares));
  }
}
template void MeshInputs::write_edges(const MeshView&, float*) const;
template void MeshInputs::write_edges(const MeshView&, double*) const;

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
