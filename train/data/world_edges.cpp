// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/world_edges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

namespace meshgrad {
namespace {

/// Nodes sorted by cells of a grid as wide as the radius around the median position. Along an axis cells
/// count from 1 to 2^20 + 1, so that three numbers and their neighbours fit 63 bits; nodes beyond are in the
/// outermost.
class CellGrid {
 public:
  CellGrid(std::span<const float> positions, size_t dim, double radius)
      : positions_(positions), dim_(dim), radius_(radius) {
    std::vector<size_t> nodes;
    for (size_t node = 0; node < positions.size() / dim; ++node)
      if (finite(node)) nodes.push_back(node);
    std::vector<float> along(nodes.size());
    for (size_t axis = 0; axis < dim && !nodes.empty(); ++axis) {
      std::ranges::transform(nodes, along.begin(), [&](size_t node) { return positions[node * dim + axis]; });
      const auto middle = along.begin() + static_cast<std::ptrdiff_t>(along.size() / 2);
      std::nth_element(along.begin(), middle, along.end());
      middle_[axis] = static_cast<double>(*middle);
    }
    for (const size_t node : nodes) sorted_.emplace_back(key_of(node), static_cast<int32_t>(node));
    std::sort(sorted_.begin(), sorted_.end());
  }

  /// Calls body(other) for each node in the cells around that of `node`, itself included.
  template <class Body>
  void each_near(size_t node, Body&& body) const {
    if (!finite(node)) return;
    const uint64_t center = key_of(node);
    // Cells that differ along the last axis alone have keys in a row.
    const int64_t planes = dim_ == 3 ? 1 : 0;
    for (int64_t plane = -planes; plane <= planes; ++plane) {
      for (int64_t row = -1; row <= 1; ++row) {
        const uint64_t middle =
            center + (static_cast<uint64_t>(plane) << (2 * kBits)) + (static_cast<uint64_t>(row) << kBits);
        auto other =
            std::lower_bound(sorted_.begin(), sorted_.end(), std::pair<uint64_t, int32_t>{middle - 1, 0});
        for (; other != sorted_.end() && other->first <= middle + 1; ++other) body(other->second);
      }
    }
  }

  double squared_distance(size_t a, size_t b) const {
    double squares = 0.0;
    for (size_t axis = 0; axis < dim_; ++axis) {
      const double d = at(a, axis) - at(b, axis);
      squares += d * d;
    }
    return squares;
  }

 private:
  static constexpr uint64_t kBits = 21;
  static constexpr double kOutermost = 1 << 19;

  double at(size_t node, size_t axis) const { return static_cast<double>(positions_[node * dim_ + axis]); }
  bool finite(size_t node) const {
    return std::ranges::all_of(positions_.subspan(node * dim_, dim_),
                               [](float x) { return std::isfinite(x); });
  }
  uint64_t key_of(size_t node) const {
    uint64_t key = 0;
    for (size_t axis = 0; axis < dim_; ++axis) {
      const double cell = std::floor((at(node, axis) - middle_[axis]) / radius_);
      key =
          (key << kBits) | static_cast<uint64_t>(1 + kOutermost + std::clamp(cell, -kOutermost, kOutermost));
    }
    return key;
  }

  std::span<const float> positions_;
  size_t dim_;
  double radius_;
  std::array<double, 3> middle_{};
  std::vector<std::pair<uint64_t, int32_t>> sorted_;
};

/// Calls body(receiver, sender) for each edge, receiver after receiver, until it returns false.
template <class Body>
void each_edge(const MeshView& mesh, std::span<const float> positions, int dim,
               const WorldEdgeOptions& options, Body&& body) {
  const CellGrid grid(positions, static_cast<size_t>(dim), options.radius);
  const double most = options.radius * options.radius;
  bool more = true;
  for (size_t node = 0; more && node < static_cast<size_t>(mesh.nodes); ++node) {
    const auto begin = static_cast<size_t>(std::clamp<int64_t>(mesh.receiver_offsets[node], 0, mesh.edges));
    const auto end = static_cast<size_t>(std::clamp<int64_t>(mesh.receiver_offsets[node + 1], 0, mesh.edges));
    const auto joined = mesh.senders.subspan(begin, end < begin ? 0 : end - begin);
    grid.each_near(node, [&](int32_t other) {
      const auto sender = static_cast<size_t>(other);
      if (!more || sender == node || grid.squared_distance(sender, node) >= most) return;
      if (options.other_type && mesh.node_type[sender] == mesh.node_type[node]) return;
      if (!std::binary_search(joined.begin(), joined.end(), other)) more = body(node, other);
    });
  }
}

}  // namespace

std::optional<MeshEdges> world_edges(const MeshView& mesh, std::span<const float> positions, int dim,
                                     const WorldEdgeOptions& options, int64_t most) {
  const auto nodes = static_cast<size_t>(mesh.nodes);
  std::vector<int32_t> senders, offsets(nodes + 1);
  bool fits = true;
  each_edge(mesh, positions, dim, options, [&](size_t receiver, int32_t sender) {
    fits = std::cmp_less(senders.size(), most);
    if (fits) senders.push_back(sender), offsets[receiver + 1] = static_cast<int32_t>(senders.size());
    return fits;
  });
  if (!fits) return std::nullopt;
  for (size_t node = 0; node < nodes; ++node) {
    offsets[node + 1] = std::max(offsets[node + 1], offsets[node]);
    std::sort(senders.begin() + offsets[node], senders.begin() + offsets[node + 1]);
  }
  return edges_of_receivers(std::move(senders), std::move(offsets));
}

int64_t count_world_edges(const MeshView& mesh, std::span<const float> positions, int dim,
                          const WorldEdgeOptions& options) {
  const int64_t most = kMostWorldEdgesPerNode * mesh.nodes;
  int64_t count = 0;
  each_edge(mesh, positions, dim, options, [&](size_t, int32_t) { return ++count < most; });
  return count;
}

}  // namespace meshgrad
