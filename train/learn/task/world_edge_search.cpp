// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/world_edges.h>
#include <meshgrad/train/data/made_edges.h>
#include <meshgrad/train/learn/task/batch_rows.h>
#include <meshgrad/train/learn/task/displacements.h>
#include <meshgrad/train/learn/task/mesh_inputs.h>
#include <meshgrad/train/learn/task/world_edge_search.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace meshgrad {

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

WorldEdgeSearch::WorldEdgeSearch(const DataConfig& config, int dim)
    : options_{config.world_radius, config.world_pairs == WorldPairs::other_type},
      edges_(edge_options(config)),
      per_node_(config.world_edges_per_node),
      dim_(dim) {}

WorldEdgeSearch WorldEdgeSearch::without_limit() const {
  WorldEdgeSearch search = *this;
  search.limited_ = false;
  return search;
}

int64_t WorldEdgeSearch::limit(int64_t nodes) const {
  const int64_t most = most_world_edges(nodes);
  if (!limited_) return most;
  // Shares of the meshes are rounded down, the room of the batch up.
  return std::min(most, static_cast<int64_t>(per_node_ * static_cast<double>(nodes)));
}

MeshEdges WorldEdgeSearch::edges_at(const TrajectoryView& trajectory, int64_t t,
                                    std::span<const float> positions, int64_t most) const {
  const MeshView& mesh = trajectory.mesh();
  std::optional<MeshEdges> edges = world_edges(mesh, positions, dim_, options_, most);
  if (edges) return *std::move(edges);
  const int64_t count = count_world_edges(mesh, positions, dim_, options_);
  if (count >= most_world_edges(mesh.nodes)) throw too_many_world_edges(frame_name(trajectory, t));
  throw refused(mesh.nodes, count, frame_name(trajectory, t),
                "raise it, which takes memory, or lower data.world_radius; a run with a "
                "checkpoint goes on with --resume");
}

ConfigError WorldEdgeSearch::refused(int64_t nodes, int64_t edges, std::string_view frame,
                                     std::string_view fix) const {
  if (edges >= most_world_edges(nodes)) return too_many_world_edges(frame);
  const double share = static_cast<double>(edges) / static_cast<double>(nodes);
  return config_error("data.world_edges_per_node",
                      fmt::format("{:.2f} or more, for {}", std::ceil(100.0 * share) / 100.0, frame),
                      fmt::format("{}", per_node_), fix);
}

namespace {

constexpr std::string_view kWorldPositions = "world.positions", kWorldLabels = "world.labels",
                           kWorldScale = "world.scale";

}  // namespace

void WorldEdgeSearch::add_to(BatchLayout& layout) const {
  if (!any()) return;
  const int64_t nodes = layout.shape().nodes;
  layout.add(kWorldPositions, {nodes, dim_}, DType::f32, TensorRows::nodes);
  layout.add(kWorldLabels, {3, nodes}, DType::i32);
  layout.add(kWorldScale, {2, inputs()}, DType::f64);
}

bool WorldEdgeSearch::is_for_device(const Batch& batch) const { return any() && batch.has(kWorldPositions); }

void WorldEdgeSearch::write_search(const Batch& batch, const MeshView& mesh, std::span<const float> positions,
                                   const Place& place, const Normalizers& normalizers) const {
  const Tensor& labels = batch.tensor(kWorldLabels);
  std::ranges::copy(positions, batch.tensor(kWorldPositions).data<float>() + place.node * dim_);
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

Tensor WorldEdgeSearch::find(Runtime& runtime, const Batch& batch) const {
  if (!is_for_device(batch)) return {};
  const EdgeSet& world = batch.graph.edges(kWorldEdges);
  const Tensor missing = Tensor::empty(runtime, {1}, DType::i64, Tag::workspace, "world edges without room");
  kernels::find_world_edges({.mesh = batch.graph.edges(kMeshEdges).graph,
                             .positions = batch.tensor(kWorldPositions),
                             .labels = batch.tensor(kWorldLabels),
                             .radius = options_.radius,
                             .other_type = options_.other_type,
                             .images = edges_.periodic(),
                             .period = edges_.period,
                             .scale = batch.tensor(kWorldScale),
                             .found = world.graph,
                             .features = world.features,
                             .missing = missing},
                            runtime, runtime.stream());
  return missing;
}

template <class T>
Dataset::MeshSizes WorldEdgeSearch::append(const Graph& graph, const MeshEdges& found,
                                           const TrajectoryView& trajectory, std::span<const float> positions,
                                           const Dataset::MeshSizes& before, T* rows) const {
  MeshView mesh = trajectory.mesh();
  set_edges(mesh, found);
  if (before.edges + mesh.edges > graph.edges) throw changed_mesh(mesh);
  write_displacements(mesh, positions, dim_, inputs(), rows);
  return append_to_union(graph, mesh, before);
}
template Dataset::MeshSizes WorldEdgeSearch::append(const Graph&, const MeshEdges&, const TrajectoryView&,
                                                    std::span<const float>, const Dataset::MeshSizes&,
                                                    float*) const;
template Dataset::MeshSizes WorldEdgeSearch::append(const Graph&, const MeshEdges&, const TrajectoryView&,
                                                    std::span<const float>, const Dataset::MeshSizes&,
                                                    double*) const;

Dataset::MeshSizes WorldEdgeSearch::write(const Batch& batch, const MeshEdges& found,
                                          const TrajectoryView& trajectory, std::span<const float> positions,
                                          const Dataset::MeshSizes& before, const Normalizers& normalizers,
                                          std::vector<float>& wide) const {
  const EdgeSet& set = batch.graph.edges(kWorldEdges);
  Dataset::MeshSizes all;
  dispatch_storage(accumulator_of(set.features.dtype()), [&]<class T>() {
    RowsInPlace<T> rows(set.features, before.edges, std::ssize(found.senders), wide);
    all = append(set.graph, found, trajectory, positions, before, rows.values().data());
    normalizers.world.normalize(rows.values());
    rows.store();
  });
  return all;
}

}  // namespace meshgrad
