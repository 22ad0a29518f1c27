// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/world_edges.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace meshgrad {
namespace {

/// Nodes sorted by cells of a grid. Along an axis there are at most 2^20 cells, numbered from 1, so that
/// three numbers and their neighbours fit 63 bits.
class CellGrid {
 public:
  CellGrid(std::span<const float> positions, size_t dim, double radius)
      : positions_(positions), dim_(dim), side_(radius) {
    std::array<double, 3> high{};
    low_.fill(std::numeric_limits<double>::infinity());
    high.fill(-std::numeric_limits<double>::infinity());
    const size_t nodes = positions.size() / dim;
    for (size_t node = 0; node < nodes; ++node) {
      if (!finite(node)) continue;
      for (size_t axis = 0; axis < dim; ++axis) {
        low_[axis] = std::min(low_[axis], at(node, axis));
        high[axis] = std::max(high[axis], at(node, axis));
      }
    }
    for (size_t axis = 0; axis < dim; ++axis) side_ = std::max(side_, (high[axis] - low_[axis]) / kMostCells);
    for (size_t node = 0; node < nodes; ++node)
      if (finite(node)) sorted_.emplace_back(key_of(node), static_cast<int32_t>(node));
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
  static constexpr double kMostCells = 1 << 20;

  double at(size_t node, size_t axis) const { return static_cast<double>(positions_[node * dim_ + axis]); }
  bool finite(size_t node) const {
    return std::ranges::all_of(positions_.subspan(node * dim_, dim_),
                               [](float x) { return std::isfinite(x); });
  }
  uint64_t key_of(size_t node) const {
    uint64_t key = 0;
    for (size_t axis = 0; axis < dim_; ++axis)
      key = (key << kBits) | (1 + static_cast<uint64_t>((at(node, axis) - low_[axis]) / side_));
    return key;
  }

  std::span<const float> positions_;
  size_t dim_;
  double side_;
  std::array<double, 3> low_{};
  std::vector<std::pair<uint64_t, int32_t>> sorted_;
};

}  // namespace

MeshEdges world_edges(const MeshView& mesh, std::span<const float> positions, int dim,
                      const WorldEdgeOptions& options) {
  const CellGrid grid(positions, static_cast<size_t>(dim), options.radius);
  const double most = options.radius * options.radius;
  std::vector<int32_t> senders, offsets{0};
  offsets.reserve(static_cast<size_t>(mesh.nodes) + 1);
  for (size_t node = 0; node < static_cast<size_t>(mesh.nodes); ++node) {
    const auto first = static_cast<std::ptrdiff_t>(senders.size());
    const auto begin = static_cast<size_t>(std::clamp<int64_t>(mesh.receiver_offsets[node], 0, mesh.edges));
    const auto end = static_cast<size_t>(std::clamp<int64_t>(mesh.receiver_offsets[node + 1], 0, mesh.edges));
    const auto joined = mesh.senders.subspan(begin, end < begin ? 0 : end - begin);
    grid.each_near(node, [&](int32_t other) {
      const auto sender = static_cast<size_t>(other);
      if (sender == node || grid.squared_distance(sender, node) >= most) return;
      if (options.other_type && mesh.node_type[sender] == mesh.node_type[node]) return;
      if (!std::binary_search(joined.begin(), joined.end(), other)) senders.push_back(other);
    });
    std::sort(senders.begin() + first, senders.end());
    if (senders.size() >= static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
      throw data_error(fmt::format("{}: mesh {}", mesh.file, mesh.index), "fewer than 2^31 - 1 world edges",
                       "more", "lower data.world_radius");
    }
    offsets.push_back(static_cast<int32_t>(senders.size()));
  }
  return edges_of_receivers(std::move(senders), std::move(offsets));
}

}  // namespace meshgrad
