// SPDX-License-Identifier: Apache-2.0
// World edges of MeshInputs.
#include <meshgrad/kernels/world_edges.h>
#include <meshgrad/train/data/made_edges.h>
#include <meshgrad/train/learn/task/batch_rows.h>
#include <meshgrad/train/learn/task/displacements.h>
#include <meshgrad/train/learn/task/mesh_inputs.h>

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
  if (count >= most_world_edges(mesh.nodes)) throw too_many_world_edges(frame_name(trajectory, t));
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

namespace {

constexpr std::string_view kWorldPositions = "world.positions", kWorldLabels = "world.labels",
                           kWorldScale = "world.scale";

}  // namespace

void MeshInputs::add_world_search(BatchLayout& layout) const {
  if (!has_world_edges()) return;
  const int64_t nodes = layout.shape().nodes, dim = world_position_->field.components;
  layout.add(kWorldPositions, {nodes, dim}, DType::f32, TensorRows::nodes);
  layout.add(kWorldLabels, {3, nodes}, DType::i32);
  layout.add(kWorldScale, {2, dim + 1}, DType::f64);
}

bool MeshInputs::is_searched(const Batch& batch) const {
  return has_world_edges() && batch.has(kWorldPositions);
}

void MeshInputs::write_world_search(const Batch& batch, const TrajectoryView& trajectory, int64_t t,
                                    const FieldState& state, const PlaceInUnion& place,
                                    const Normalizers& normalizers, SampleScratch& scratch) const {
  const MeshView& mesh = trajectory.mesh();
  const Tensor& labels = batch.tensor(kWorldLabels);
  const std::span<const float> positions = current_positions(trajectory, t, state, scratch.positions);
  std::ranges::copy(positions, batch.tensor(kWorldPositions).data<float>() +
                                   place.node * world_position_->field.components);
  int32_t* const row = labels.data<int32_t>() + place.node;
  const int64_t nodes = labels.width();
  for (int64_t i = 0; i < mesh.nodes; ++i) {
    row[i] = place.mesh;
    row[nodes + i] = mesh.node_type[static_cast<size_t>(i)];
    row[2 * nodes + i] =
        static_cast<int32_t>(place.node + static_cast<int64_t>(mesh.point_of(static_cast<size_t>(i))));
  }
  double* const scale = batch.tensor(kWorldScale).data<double>();
  for (size_t column = 0; column < normalizers.world.width(); ++column) {
    scale[column] = normalizers.world.mean(column);
    scale[normalizers.world.width() + column] = 1.0 / normalizers.world.standard_deviation(column);
  }
}

Tensor MeshInputs::find_world_edges(Runtime& runtime, const Batch& batch) const {
  if (!is_searched(batch)) return {};
  const MeshEdgeOptions options = edge_options(config_);
  const EdgeSet& world = batch.graph.edge_sets[1];
  const Tensor missing = Tensor::empty(runtime, {1}, DType::i64, Tag::workspace, "world edges without room");
  kernels::find_world_edges({.mesh = batch.graph.edge_sets.front().graph,
                             .positions = batch.tensor(kWorldPositions),
                             .labels = batch.tensor(kWorldLabels),
                             .radius = world_options_.radius,
                             .other_type = world_options_.other_type,
                             .images = options.periodic(),
                             .period = options.period,
                             .scale = batch.tensor(kWorldScale),
                             .found = world.graph,
                             .features = world.features,
                             .missing = missing},
                            runtime, runtime.stream());
  return missing;
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
