// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/nn/normalizer.h>
#include <meshgrad/train/data/made_edges.h>
#include <meshgrad/train/learn/task/displacements.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

namespace meshgrad {
namespace {

/// Reads the number once, so that what is checked is what is used.
size_t node_of(const MeshView& mesh, const int32_t& number) {
  const int32_t node = __atomic_load_n(&number, __ATOMIC_RELAXED);
  if (node < 0 || node >= mesh.nodes) throw changed_mesh(mesh);
  return static_cast<size_t>(node);
}

/// Calls body(trajectory, frame) for frames spread over trajectories; with `last`, up to the last frame.
template <class Body>
void each_of_some_frames(const Dataset& dataset, bool last, Body&& body) {
  constexpr int64_t kTrajectories = 32, kFrames = 8;
  const std::string& split = dataset.statistics_split();
  const int64_t all = dataset.size(split), trajectories = std::min(all, kTrajectories);
  for (int64_t i = 0; i < trajectories; ++i) {
    const TrajectoryView view = dataset.trajectory(split, i * all / trajectories);
    const int64_t frames = std::min(view.frames(), kFrames);
    for (int64_t f = 0; f < frames; ++f)
      body(view,
           last ? f * (view.frames() - 1) / std::max<int64_t>(1, frames - 1) : f * view.frames() / frames);
  }
}

}  // namespace

int64_t most_world_edges(int64_t nodes) {
  return std::min<int64_t>(kMostWorldEdgesPerNode * nodes, std::numeric_limits<int32_t>::max() - 1);
}

std::string frame_name(const TrajectoryView& trajectory, int64_t frame) {
  if (trajectory.name().empty()) return fmt::format("mesh {}", trajectory.mesh().index);  // of a solver
  return fmt::format("frame {} of {}", frame, trajectory.name());
}

TooManyWorldEdges too_many_world_edges(std::string_view frame) {
  return TooManyWorldEdges(config_error(
      "data.world_radius",
      fmt::format("{} nodes within the radius of a node at most, on average", kMostWorldEdgesPerNode),
      fmt::format("over {} in {}", kMostWorldEdgesPerNode, frame),
      "lower it: it is a length in the positions' unit, about that of the mesh's edges; where a "
      "prediction has moved the nodes to one point, train further first"));
}

DataError changed_mesh(const MeshView& mesh) {
  return data_error(fmt::format("{}: mesh {}", mesh.file, mesh.index), "the edges it had when it was checked",
                    "a file that changed during its use", "copy the file again, then resume the run");
}

template <class T>
void write_displacements(const MeshView& mesh, std::span<const float> positions, int dim, int64_t width,
                         T* rows) {
  const auto axes = static_cast<size_t>(dim);
  for (size_t e = 0; e < static_cast<size_t>(mesh.edges); ++e, rows += width) {
    const size_t sender = node_of(mesh, mesh.senders[e]) * axes;
    const size_t receiver = node_of(mesh, mesh.receivers[e]) * axes;
    double squares = 0.0;
    for (size_t axis = 0; axis < axes; ++axis) {
      const double d = nearest_image(
          static_cast<double>(positions[sender + axis]) - static_cast<double>(positions[receiver + axis]),
          mesh.period[axis]);
      rows[axis] = static_cast<T>(d);
      squares += d * d;
    }
    rows[axes] = static_cast<T>(std::sqrt(squares));
  }
}
template void write_displacements(const MeshView&, std::span<const float>, int, int64_t, float*);
template void write_displacements(const MeshView&, std::span<const float>, int, int64_t, double*);

std::span<const float> positions_at(const TrajectoryView& trajectory, const FieldInfo* field, int64_t frame) {
  return field != nullptr ? trajectory.field(field->name).frame(frame) : trajectory.mesh().positions;
}

FieldStatistics displacement_stats(const Dataset& dataset, const FieldInfo* field,
                                   const WorldEdgeOptions& world) {
  const int dim = field != nullptr ? field->components : dataset.dim(), width = dim + 1;
  Normalizer moments(static_cast<size_t>(width));
  std::vector<double> rows;
  each_of_some_frames(dataset, world.radius > 0.0, [&](const TrajectoryView& view, int64_t frame) {
    const std::span<const float> positions = positions_at(view, field, frame);
    MeshView mesh = view.mesh();
    std::optional<MeshEdges> edges;
    if (world.radius > 0.0) {
      edges = world_edges(mesh, positions, dim, world, most_world_edges(mesh.nodes));
      if (!edges) throw too_many_world_edges(frame_name(view, frame));
      set_edges(mesh, *edges);
    }
    rows.resize(static_cast<size_t>(mesh.edges * width));
    write_displacements(mesh, positions, dim, width, rows.data());
    moments.accumulate(std::span<const double>(rows));
  });
  FieldStatistics stats{.count = moments.count(), .mean = moments.means(), .std = {}, .min = {}, .max = {}};
  for (size_t column = 0; column < moments.width(); ++column)
    stats.std.push_back(moments.standard_deviation(column));
  return stats;
}

std::vector<double> world_edges_per_node(const Dataset& dataset, const FieldInfo* field,
                                         const WorldEdgeOptions& world) {
  const int dim = field != nullptr ? field->components : dataset.dim();
  std::vector<double> counts;
  each_of_some_frames(dataset, true, [&](const TrajectoryView& view, int64_t frame) {
    const int64_t count = count_world_edges(view.mesh(), positions_at(view, field, frame), dim, world);
    counts.push_back(static_cast<double>(count) / static_cast<double>(view.mesh().nodes));
  });
  std::ranges::sort(counts);
  return counts;
}

}  // namespace meshgrad
