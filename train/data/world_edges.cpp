// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/world_grid.h>
#include <meshgrad/train/data/world_edges.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace meshgrad {
namespace {

/// The grid of a mesh, with memory of its own.
struct MeshGrid {
  std::vector<int32_t> starts, members;
  WorldGrid grid;
  bool crowded = false;

  MeshGrid(const MeshView& mesh, std::span<const float> positions, int dim, const WorldEdgeOptions& options)
      : starts(static_cast<size_t>(world_grid::buckets_for(mesh.nodes)) + 1),
        members(static_cast<size_t>(mesh.nodes)),
        grid{.positions = positions.data(),
             .types = options.other_type ? mesh.node_type.data() : nullptr,
             .points = mesh.points.empty() ? nullptr : mesh.points.data(),
             .joined_offsets = mesh.receiver_offsets.data(),
             .joined = mesh.senders.data(),
             .joined_count = mesh.edges,
             .starts = starts.data(),
             .members = members.data(),
             .buckets = world_grid::buckets_for(mesh.nodes),
             .dim = dim,
             .radius = options.radius} {
    for (size_t axis = 0; axis < 3; ++axis) {
      grid.period[axis] = mesh.period[axis];
      grid.cells[axis] = world_grid::cells_of_period(mesh.period[axis], options.radius);
    }
    crowded = world_grid::is_crowded(world_grid::fill_table(grid, mesh.nodes), mesh.nodes);
  }
};

}  // namespace

std::optional<MeshEdges> world_edges(const MeshView& mesh, std::span<const float> positions, int dim,
                                     const WorldEdgeOptions& options, int64_t most) {
  const MeshGrid made(mesh, positions, dim, options);
  if (made.crowded) return std::nullopt;
  std::vector<int32_t> senders, offsets{0};
  offsets.reserve(static_cast<size_t>(mesh.nodes) + 1);
  bool fits = true;
  for (int32_t receiver = 0; receiver < mesh.nodes; ++receiver) {
    world_grid::each_sender(made.grid, receiver, [&](int32_t sender) {
      fits = fits && std::cmp_less(senders.size(), most);
      if (fits) senders.push_back(sender);
    });
    if (!fits) return std::nullopt;
    std::sort(senders.begin() + offsets.back(), senders.end());
    offsets.push_back(static_cast<int32_t>(senders.size()));
  }
  return edges_of_receivers(std::move(senders), std::move(offsets));
}

int64_t count_world_edges(const MeshView& mesh, std::span<const float> positions, int dim,
                          const WorldEdgeOptions& options, int64_t* compared) {
  const MeshGrid made(mesh, positions, dim, options);
  const int64_t most = kMostWorldEdgesPerNode * mesh.nodes;
  int64_t count = made.crowded ? most : 0, pairs = 0;
  for (int32_t receiver = 0; receiver < mesh.nodes && count < most; ++receiver)
    pairs += world_grid::each_sender(made.grid, receiver, [&](int32_t) { ++count; });
  if (compared != nullptr) *compared = pairs;
  return std::min(count, most);
}

}  // namespace meshgrad
