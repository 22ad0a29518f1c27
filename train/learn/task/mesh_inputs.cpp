// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/task/batch_rows.h>
#include <meshgrad/train/learn/task/displacements.h>
#include <meshgrad/train/learn/task/edge_fields.h>
#include <meshgrad/train/learn/task/mesh_inputs.h>

#include <algorithm>

namespace meshgrad {
namespace {

/// Columns of an input that is a target; returns the column after them.
template <class T>
size_t write_target_input(const FieldSelection& fields, const FieldSelection::Input& input,
                          const FieldState& state, size_t nodes, size_t column, T* rows) {
  const auto components = static_cast<size_t>(input.field.components);
  const auto width = static_cast<size_t>(fields.node_inputs);
  const auto outputs = static_cast<size_t>(fields.outputs);
  const bool second = fields.changes_only(input);
  for (int64_t age = 0; age < fields.config.history; ++age, column += components) {
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

/// Returns the column after them.
template <class T>
size_t write_known_changes(const FieldSelection& fields, const TrajectoryView& trajectory, int64_t t,
                           const FieldState& state, size_t column, T* rows) {
  const MeshView& mesh = trajectory.mesh();
  const int64_t next_frame = std::min(t + 1, trajectory.frames() - 1);
  for (const FieldSelection::Input& known : fields.known_changes) {
    const auto components = static_cast<size_t>(known.field.components);
    const std::span<const float> next = trajectory.field(known.field.name).frame(next_frame);
    const bool target = known.target_column >= 0;
    const std::span<const float> now =
        target ? std::span(state.current).subspan(static_cast<size_t>(known.target_column))
               : trajectory.field(known.field.name).frame(t);
    const auto width = target ? static_cast<size_t>(fields.outputs) : components;
    for (size_t i = 0; i < mesh.node_type.size(); ++i) {
      T* const row = rows + i * static_cast<size_t>(fields.node_inputs) + column;
      const bool kinematic = fields.is_kinematic(mesh.node_type[i]);
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

}  // namespace

int64_t edge_inputs(const FieldSelection& fields, int dim) {
  const int64_t at_rest = dim + 1;
  return columns_of(fields.edges) + at_rest +
         (fields.world_position ? fields.world_position->field.components + 1 : 0);
}

template <class T>
void write_nodes(const FieldSelection& fields, const TrajectoryView& trajectory, int64_t t,
                 const FieldState& state, T* rows) {
  const MeshView& mesh = trajectory.mesh();
  const auto nodes = static_cast<size_t>(mesh.nodes);
  const auto width = static_cast<size_t>(fields.node_inputs);
  size_t column = 0;
  for (const FieldSelection::Input& input : fields.inputs) {
    const auto components = static_cast<size_t>(input.field.components);
    if (input.target_column >= 0) {
      column = write_target_input(fields, input, state, nodes, column, rows);
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
  column = write_known_changes(fields, trajectory, t, state, column, rows);
  for (size_t i = 0; i < nodes; ++i) {
    for (size_t type = 0; type < width - column; ++type) {
      rows[i * width + column + type] =
          static_cast<T>(mesh.node_type[i] == static_cast<int32_t>(type) ? 1 : 0);
    }
  }
}
template void write_nodes(const FieldSelection&, const TrajectoryView&, int64_t, const FieldState&, float*);
template void write_nodes(const FieldSelection&, const TrajectoryView&, int64_t, const FieldState&, double*);

template <class T>
void write_edges(const FieldSelection& fields, const TrajectoryView& trajectory, int64_t t,
                 const FieldState& state, SampleScratch& scratch, T* rows) {
  const MeshView& mesh = trajectory.mesh();
  const int64_t width = edge_inputs(fields, mesh.dim);
  if (fields.world_position) {
    const int dim = fields.world_position->field.components;
    write_displacements(mesh, fields.current_positions(trajectory, t, state, scratch.positions), dim, width,
                        rows);
    rows += dim + 1;
  }
  write_displacements(mesh, mesh.positions, mesh.dim, width, rows);
  write_edge_fields(std::span(fields.edges), trajectory, t, width, rows + mesh.dim + 1);
}
template void write_edges(const FieldSelection&, const TrajectoryView&, int64_t, const FieldState&,
                          SampleScratch&, float*);
template void write_edges(const FieldSelection&, const TrajectoryView&, int64_t, const FieldState&,
                          SampleScratch&, double*);

void write_node_features(const FieldSelection& fields, const Batch& batch, const TrajectoryView& trajectory,
                         int64_t t, const FieldState& state, const Dataset::MeshSizes& before,
                         const Normalizers& normalizers, SampleScratch& scratch) {
  const Tensor& features = batch.graph.node_features;
  dispatch_storage(accumulator_of(features.dtype()), [&]<class T>() {
    RowsInPlace<T> rows(features, before.nodes, trajectory.mesh().nodes, scratch.wide_nodes);
    write_nodes(fields, trajectory, t, state, rows.values().data());
    normalizers.nodes.normalize(rows.values());
    rows.store();
  });
}

void write_edge_features(const FieldSelection& fields, const Batch& batch, const TrajectoryView& trajectory,
                         int64_t t, const FieldState& state, const Dataset::MeshSizes& before,
                         const Normalizers& normalizers, SampleScratch& scratch) {
  const Tensor& features = batch.graph.edges(kMeshEdges).features;
  dispatch_storage(accumulator_of(features.dtype()), [&]<class T>() {
    RowsInPlace<T> rows(features, before.edges, trajectory.mesh().edges, scratch.wide_edges);
    write_edges(fields, trajectory, t, state, scratch, rows.values().data());
    normalizers.edges.normalize(rows.values());
    rows.store();
  });
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

}  // namespace meshgrad
