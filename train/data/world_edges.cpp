// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/made_edges.h>
#include <meshgrad/train/data/world_edges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace meshgrad {
namespace {

/// Nodes sorted by cells of a grid as wide as the radius, around the median position. Along an axis cells
/// count from 1 to 2^20 + 1, so that three numbers and their neighbours fit 63 bits; nodes beyond are in the
/// outermost. Along a periodic axis a whole number of cells, a bit wider, makes a period.
class CellGrid {
 public:
  CellGrid(std::span<const float> positions, size_t dim, double radius, const std::array<double, 3>& period)
      : positions_(positions), dim_(dim), radius_(radius), period_(period) {
    std::vector<size_t> nodes;
    for (size_t node = 0; node < positions.size() / dim; ++node)
      if (finite(node)) nodes.push_back(node);
    std::vector<float> along(nodes.size());
    for (size_t axis = 0; axis < dim && !nodes.empty(); ++axis) {
      if (period_[axis] > 0.0) {
        cells_[axis] = std::clamp(std::floor((1.0 - 1e-9) * period_[axis] / radius), 1.0, 2.0 * kOutermost);
        continue;
      }
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
    std::array<Near, 3> near;
    for (size_t axis = 0; axis < dim_; ++axis) near[axis] = cells_near(axis, cell_of(node, axis));
    // Cells that differ along the last axis alone have keys in a row.
    const size_t last = dim_ - 1;
    each_cell(near.front(), [&](uint64_t first) {
      const auto rows = [&](uint64_t key) {
        for (const auto& [begin, end] : near[last]) {
          auto other = std::lower_bound(sorted_.begin(), sorted_.end(),
                                        std::pair<uint64_t, int32_t>{(key << kBits) + begin, 0});
          for (; other != sorted_.end() && other->first < (key << kBits) + end; ++other) body(other->second);
        }
      };
      if (dim_ == 2) return rows(first);
      each_cell(near[1], [&](uint64_t second) { rows((first << kBits) | second); });
    });
  }

  enum class Images : uint8_t { nearest, none };
  /// To the nearest image, or as they lie.
  double squared_distance(size_t a, size_t b, Images images = Images::nearest) const {
    double squares = 0.0;
    for (size_t axis = 0; axis < dim_; ++axis) {
      const double d =
          nearest_image(at(a, axis) - at(b, axis), images == Images::nearest ? period_[axis] : 0.0);
      squares += d * d;
    }
    return squares;
  }

 private:
  static constexpr uint64_t kBits = 21;
  static constexpr double kOutermost = 1 << 19;
  using Near = std::array<std::pair<uint64_t, uint64_t>, 2>;  // cells [first, second), perhaps none

  template <class Body>
  static void each_cell(const Near& near, Body&& body) {
    for (const auto& [begin, end] : near)
      for (uint64_t cell = begin; cell < end; ++cell) body(cell);
  }
  double at(size_t node, size_t axis) const { return static_cast<double>(positions_[node * dim_ + axis]); }
  bool finite(size_t node) const {
    return std::ranges::all_of(positions_.subspan(node * dim_, dim_),
                               [](float x) { return std::isfinite(x); });
  }
  uint64_t cell_of(size_t node, size_t axis) const {
    if (period_[axis] > 0.0) {
      const double periods = at(node, axis) / period_[axis];
      const double cell = std::floor((periods - std::floor(periods)) * cells_[axis]);
      return static_cast<uint64_t>(1 + std::min(cell, cells_[axis] - 1));
    }
    const double cell = std::floor((at(node, axis) - middle_[axis]) / radius_);
    return static_cast<uint64_t>(1 + kOutermost + std::clamp(cell, -kOutermost, kOutermost));
  }
  Near cells_near(size_t axis, uint64_t cell) const {
    const auto count = static_cast<uint64_t>(cells_[axis]);
    if (period_[axis] <= 0.0) return {{{cell - 1, cell + 2}, {}}};
    if (count <= 3) return {{{1, count + 1}, {}}};
    if (cell == 1) return {{{1, 3}, {count, count + 1}}};
    if (cell == count) return {{{1, 2}, {count - 1, count + 1}}};
    return {{{cell - 1, cell + 2}, {}}};
  }
  uint64_t key_of(size_t node) const {
    uint64_t key = 0;
    for (size_t axis = 0; axis < dim_; ++axis) key = (key << kBits) | cell_of(node, axis);
    return key;
  }

  std::span<const float> positions_;
  size_t dim_;
  double radius_;
  std::array<double, 3> period_;
  std::array<double, 3> middle_{}, cells_{};
  std::vector<std::pair<uint64_t, int32_t>> sorted_;
};

/// Nodes by the point of a periodic domain that they are images of.
class Points {
 public:
  explicit Points(std::span<const int32_t> points) : points_(points) {}
  bool same(int32_t a, int32_t b) const { return of(a) == of(b); }
  /// Whether any of `nodes`, ascending, is an image of `other`, or the same.
  bool among(std::span<const int32_t> nodes, int32_t other) const {
    if (points_.empty()) return std::binary_search(nodes.begin(), nodes.end(), other);
    return std::ranges::any_of(nodes, [&](int32_t node) { return same(node, other); });
  }
  /// Leaves of the images of each point the one with the least `distance`, of equal ones the first.
  template <class Distance>
  void keep_nearest(std::vector<int32_t>& nodes, Distance&& distance) const {
    if (points_.empty()) return;
    std::ranges::sort(nodes, {}, [&](int32_t node) { return std::tuple(of(node), distance(node), node); });
    const auto others = std::ranges::unique(nodes, {}, [&](int32_t node) { return of(node); });
    nodes.erase(others.begin(), others.end());
  }

 private:
  int32_t of(int32_t node) const { return points_.empty() ? node : points_[static_cast<size_t>(node)]; }
  std::span<const int32_t> points_;
};

/// Calls body(receiver, sender) for each edge, receiver after receiver, until it returns false. Returns how
/// many pairs it compared.
template <class Body>
int64_t each_edge(const MeshView& mesh, std::span<const float> positions, int dim,
                  const WorldEdgeOptions& options, Body&& body) {
  const CellGrid grid(positions, static_cast<size_t>(dim), options.radius, mesh.period);
  const Points points(mesh.points);
  const double most = options.radius * options.radius;
  std::vector<int32_t> near;
  int64_t compared = 0;
  for (int32_t node = 0; node < mesh.nodes; ++node) {
    const auto at = static_cast<size_t>(node);
    const auto begin = static_cast<size_t>(std::clamp<int64_t>(mesh.receiver_offsets[at], 0, mesh.edges));
    const auto end = static_cast<size_t>(std::clamp<int64_t>(mesh.receiver_offsets[at + 1], 0, mesh.edges));
    const auto joined = mesh.senders.subspan(begin, end < begin ? 0 : end - begin);
    near.clear();
    grid.each_near(at, [&](int32_t other) {
      const auto sender = static_cast<size_t>(other);
      ++compared;
      if (points.same(other, node) || grid.squared_distance(sender, at) >= most) return;
      if (options.other_type && mesh.node_type[sender] == mesh.node_type[at]) return;
      if (!points.among(joined, other)) near.push_back(other);
    });
    points.keep_nearest(near, [&](int32_t other) {
      return grid.squared_distance(static_cast<size_t>(other), at, CellGrid::Images::none);
    });
    for (const int32_t sender : near)
      if (!body(at, sender)) return compared;
  }
  return compared;
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
                          const WorldEdgeOptions& options, int64_t* compared) {
  const int64_t most = kMostWorldEdgesPerNode * mesh.nodes;
  int64_t count = 0;
  const int64_t pairs =
      each_edge(mesh, positions, dim, options, [&](size_t, int32_t) { return ++count < most; });
  if (compared != nullptr) *compared = pairs;
  return count;
}

}  // namespace meshgrad
