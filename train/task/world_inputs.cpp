// SPDX-License-Identifier: Apache-2.0
// World edges of MeshInputs.
#include <meshgrad/train/data/made_edges.h>
#include <meshgrad/train/task/displacements.h>
#include <meshgrad/train/task/mesh_inputs.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace meshgrad {

MeshEdges MeshInputs::world_edges_at(const TrajectoryView& trajectory, int64_t t, const FieldState& state,
                                     SampleScratch& scratch) const {
  const MeshView& mesh = trajectory.mesh();
  const std::span<const float> positions = current_positions(trajectory, t, state, scratch.positions);
  const int dim = world_position_->field.components;
  const auto nodes = static_cast<double>(mesh.nodes);
  int64_t most = most_world_edges(mesh.nodes);
  // Shares of the meshes are rounded down, the room of the batch up.
  if (limited_world_) most = std::min(most, static_cast<int64_t>(config_.world_edges_per_node * nodes));
  std::optional<MeshEdges> edges = world_edges(mesh, positions, dim, world_options_, most);
  if (edges) return *std::move(edges);
  const int64_t count = count_world_edges(mesh, positions, dim, world_options_);
  if (count >= most_world_edges(mesh.nodes)) throw too_many_world_edges(trajectory, t);
  throw config_error(
      "data.world_edges_per_node",
      fmt::format("{:.2f} or more, for frame {} of {}",
                  std::ceil(100.0 * static_cast<double>(count) / nodes) / 100.0, t, trajectory.name()),
      fmt::format("{}", config_.world_edges_per_node),
      "raise it, which takes memory, or lower data.world_radius; a run with a checkpoint goes on with "
      "--resume");
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
                      rows + before.edges * world_inputs());
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

}  // namespace meshgrad
