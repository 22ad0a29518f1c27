// SPDX-License-Identifier: Apache-2.0
// One thread: the reference for the GPU version. Batches for the CPU are written ahead of their step, with
// the edges that a host thread has found (train/data/world_edges.h).
#include <meshgrad/engine/runtime.h>
#include <meshgrad/kernels/tables.h>
#include <meshgrad/kernels/world_grid.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace meshgrad::cpu {
namespace {

using namespace world_grid;

/// A grid whose table is full.
struct FilledGrid {
  std::vector<int32_t> starts, members;
  WorldGrid grid;
  bool crowded = false;

  FilledGrid(const FindWorldEdges& args, int64_t nodes) : members(static_cast<size_t>(nodes)) {
    const auto* labels = args.labels.data<int32_t>();
    grid = {.positions = args.positions.data<float>(),
            .meshes = labels,
            .types = args.other_type ? labels + args.mesh.nodes : nullptr,
            .points = args.images ? labels + 2 * args.mesh.nodes : nullptr,
            .joined_offsets = args.mesh.receiver_offsets.data<int32_t>(),
            .joined = args.mesh.senders.data<int32_t>(),
            .joined_count = args.mesh.edges,
            .members = members.data(),
            .buckets = buckets_for(args.mesh.nodes),
            .dim = static_cast<int>(args.positions.width()),
            .radius = args.radius};
    for (size_t axis = 0; axis < 3; ++axis) {
      grid.period[axis] = args.period[axis];
      grid.cells[axis] = cells_of_period(args.period[axis], args.radius);
    }
    starts.resize(static_cast<size_t>(grid.buckets) + 1);
    grid.starts = starts.data();
    crowded = is_crowded(fill_table(grid, nodes), nodes);
  }
};

template <class S>
void find_of(const FindWorldEdges& args, int64_t nodes) {
  using A = Accumulator<S>;
  const FilledGrid filled(args, nodes);
  const WorldGrid& grid = filled.grid;
  const int width = grid.dim + 1;
  const auto room = args.found.edges;
  const double* scale = args.scale.data<double>();
  auto* senders = args.found.senders.data<int32_t>();
  auto* receivers = args.found.receivers.data<int32_t>();
  auto* offsets = args.found.receiver_offsets.data<int32_t>();
  auto* sender_offsets = args.found.sender_offsets.data<int32_t>();
  S* features = args.features.data<S>();
  std::vector<int32_t> near;
  int64_t edges = 0, missing = 0;
  std::fill_n(sender_offsets, nodes + 1, 0);
  for (int32_t receiver = 0; receiver < nodes; ++receiver) {
    offsets[receiver] = static_cast<int32_t>(edges);
    near.clear();
    if (filled.crowded) continue;
    each_sender(grid, receiver, [&](int32_t sender) { near.push_back(sender); });
    std::sort(near.begin(), near.end());
    for (const int32_t sender : near) {
      if (edges == room) {
        ++missing;
        continue;
      }
      senders[edges] = sender;
      receivers[edges] = receiver;
      ++sender_offsets[sender + 1];
      S* const row = features + edges++ * width;
      double squares = 0.0;
      for (int axis = 0; axis < width; ++axis) {
        const double d = axis < grid.dim ? displacement(grid, sender, receiver, axis) : std::sqrt(squares);
        squares = times_plus(d, d, squares);
        row[axis] =
            S(static_cast<A>((static_cast<double>(static_cast<A>(d)) - scale[axis]) * scale[width + axis]));
      }
    }
  }
  offsets[nodes] = static_cast<int32_t>(edges);
  for (int64_t node = 0; node < nodes; ++node) sender_offsets[node + 1] += sender_offsets[node];
  std::vector<int32_t> next(sender_offsets, sender_offsets + nodes);
  for (int64_t edge = 0; edge < edges; ++edge)
    args.found.sender_order.data<int32_t>()[next[static_cast<size_t>(senders[edge])]++] =
        static_cast<int32_t>(edge);
  auto* counts = args.found.counts.data<int64_t>();
  counts[0] = counts[1] = nodes;
  counts[2] = edges;
  *args.missing.data<int64_t>() = filled.crowded ? INT32_MAX : missing;
}

}  // namespace

const WorldEdgeKernels world_edge_kernels{
    .find =
        [](const FindWorldEdges& args, Runtime&, const Stream& stream) {
          dispatch_cpu_storage(args.features.dtype(), [&]<class S>() {
            stream.run([&] { find_of<S>(args, args.mesh.node_rows().value()); });
          });
        },
};

}  // namespace meshgrad::cpu
