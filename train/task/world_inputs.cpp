// SPDX-License-Identifier: Apache-2.0
// World edges of MeshInputs.
#include <meshgrad/train/data/made_edges.h>
#include <meshgrad/train/task/batch_rows.h>
#include <meshgrad/train/task/displacements.h>
#include <meshgrad/train/task/mesh_inputs.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace meshgrad {

int64_t MeshInputs::world_limit(int64_t nodes) const {
  const int64_t most = most_world_edges(nodes);
  if (!limited_world_) return most;
  // Shares of the meshes are rounded down, the room of the batch up.
  return std::min(most, static_cast<int64_t>(config_.world_edges_per_node * static_cast<double>(nodes)));
}

MeshEdges MeshInputs::world_edges_at(const TrajectoryView& trajectory, int64_t t, const FieldState& state,
                                     SampleScratch& scratch, int64_t most) const {
  const MeshView& mesh = trajectory.mesh();
  const std::span<const float> positions = current_positions(trajectory, t, state, scratch.positions);
  const int dim = world_position_->field.components;
  std::optional<MeshEdges> edges = world_edges(mesh, positions, dim, world_options_, most);
  if (edges) return *std::move(edges);
  const int64_t count = count_world_edges(mesh, positions, dim, world_options_);
  throw world_edges_refused(mesh.nodes, count, frame_name(trajectory, t),
                            "raise it, which takes memory, or lower data.world_radius; a run with a "
                            "checkpoint goes on with --resume");
}

ConfigError MeshInputs::world_edges_refused(int64_t nodes, int64_t edges, std::string_view frame,
                                            std::string_view fix) const {
  if (edges >= most_world_edges(nodes)) return too_many_world_edges(frame);
  const double share = static_cast<double>(edges) / static_cast<double>(nodes);
  return config_error("data.world_edges_per_node",
                      fmt::format("{:.2f} or more, for {}", std::ceil(100.0 * share) / 100.0, frame),
                      fmt::format("{}", config_.world_edges_per_node), fix);
}

MeshInputs MeshInputs::for_validation() const {
  MeshInputs inputs = *this;
  inputs.limited_world_ = false;
  return inputs;
}

template <class T>
Dataset::MeshSizes MeshInputs::append_world_edges(const Graph& graph, const MeshEdges& world,
                                                  const TrajectoryView& trajectory, int64_t t,
                                                  const FieldState& state, const Dataset::MeshSizes& before,
                                                  SampleScratch& scratch, T* rows) const {
  MeshView mesh = trajectory.mesh();
  set_edges(mesh, world);
  if (before.edges + mesh.edges > graph.edges) throw changed_mesh(mesh);
  const int dim = world_position_->field.components;
  write_displacements(mesh, current_positions(trajectory, t, state, scratch.positions), dim, world_inputs(),
                      rows);
  return append_to_union(graph, mesh, before);
}
template Dataset::MeshSizes MeshInputs::append_world_edges(const Graph&, const MeshEdges&,
                                                           const TrajectoryView&, int64_t, const FieldState&,
                                                           const Dataset::MeshSizes&, SampleScratch&,
                                                           float*) const;
template Dataset::MeshSizes MeshInputs::append_world_edges(const Graph&, const MeshEdges&,
                                                           const TrajectoryView&, int64_t, const FieldState&,
                                                           const Dataset::MeshSizes&, SampleScratch&,
                                                           double*) const;

Dataset::MeshSizes MeshInputs::write_world_edges(const Batch& batch, const MeshEdges& world,
                                                 const TrajectoryView& trajectory, int64_t t,
                                                 const FieldState& state, const Dataset::MeshSizes& before,
                                                 const Normalizers& normalizers,
                                                 SampleScratch& scratch) const {
  const EdgeSet& set = batch.graph.edge_sets[1];
  Dataset::MeshSizes all;
  dispatch_storage(accumulator_of(set.features.dtype()), [&]<class T>() {
    RowsInPlace<T> rows(set.features, before.edges, std::ssize(world.senders), scratch.wide_world);
    all = append_world_edges(set.graph, world, trajectory, t, state, before, scratch, rows.values().data());
    normalizers.world.normalize(rows.values());
    rows.store();
  });
  return all;
}

}  // namespace meshgrad
