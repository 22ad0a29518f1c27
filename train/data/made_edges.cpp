// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/made_edges.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace meshgrad {
namespace {

constexpr size_t kMostKept = size_t{1} << 30U;  // bytes
constexpr double kImageTolerance = 1e-3;        // of the shortest edge
constexpr char kAxes[] = "xyz";

double coordinate(const MeshView& mesh, size_t node, size_t axis) {
  return static_cast<double>(mesh.positions[node * static_cast<size_t>(mesh.dim) + axis]);
}

ConfigError period_error(const MeshView& mesh, size_t axis, const std::string& needed, const std::string& got,
                         const std::string& fix) {
  return config_error("data.period", needed,
                      fmt::format("{} along {} in mesh {} of {}", got, kAxes[axis], mesh.index, mesh.file),
                      fix);
}

/// A mesh with copies of its edges, which are checked: the file may change meanwhile.
struct OwnEdges {
  std::vector<int32_t> senders, receivers, offsets;
  MeshView mesh;

  explicit OwnEdges(const MeshView& given)
      : senders(given.senders.begin(), given.senders.end()),
        receivers(given.receivers.begin(), given.receivers.end()),
        offsets(given.receiver_offsets.begin(), given.receiver_offsets.end()),
        mesh(given) {
    const auto below = [](const std::vector<int32_t>& numbers, int64_t end) {
      return std::all_of(numbers.begin(), numbers.end(),
                         [end](int32_t number) { return number >= 0 && number < end; });
    };
    if (!below(senders, mesh.nodes) || !below(receivers, mesh.nodes) || !below(offsets, mesh.edges + 1) ||
        !std::is_sorted(offsets.begin(), offsets.end())) {
      throw data_error(fmt::format("{}: mesh {}", mesh.file, mesh.index),
                       "the edges it had when it was checked", "a file that was changed while it was in use",
                       "copy the file again, then resume the run");
    }
    mesh.senders = senders;
    mesh.receivers = receivers;
    mesh.receiver_offsets = offsets;
  }
};

/// What the periods look like on one mesh.
struct PeriodicBox {
  std::array<double, 3> low{}, period{};
  double tolerance = 0.0;
  std::array<bool, 3> joined{};  // by an edge of the mesh

  PeriodicBox(const MeshView& mesh, const MeshEdgeOptions& options) : period(options.period) {
    const auto dim = static_cast<size_t>(mesh.dim);
    std::array<double, 3> longest{};
    double shortest = std::numeric_limits<double>::infinity();
    for (size_t e = 0; e < static_cast<size_t>(mesh.edges); ++e) {
      double squares = 0.0;
      for (size_t axis = 0; axis < dim; ++axis) {
        const double whole = coordinate(mesh, static_cast<size_t>(mesh.senders[e]), axis) -
                             coordinate(mesh, static_cast<size_t>(mesh.receivers[e]), axis);
        const double d = nearest_image(whole, period[axis]);
        longest[axis] = std::max(longest[axis], std::abs(d));
        joined[axis] = joined[axis] || std::abs(whole - d) > 0.5 * period[axis];
        squares += d * d;
      }
      if (squares > 0.0) shortest = std::min(shortest, std::sqrt(squares));
    }
    tolerance = kImageTolerance * shortest;
    for (size_t axis = 0; axis < dim; ++axis) {
      low[axis] = std::numeric_limits<double>::infinity();
      double high = -low[axis];
      for (size_t node = 0; node < static_cast<size_t>(mesh.nodes); ++node) {
        low[axis] = std::min(low[axis], coordinate(mesh, node, axis));
        high = std::max(high, coordinate(mesh, node, axis));
      }
      if (period[axis] <= 0.0) continue;
      if (high - low[axis] > period[axis] + tolerance) {
        throw period_error(mesh, axis, "a mesh that is no longer than the period",
                           fmt::format("{:.6g} with a period of {:.6g}", high - low[axis], period[axis]),
                           "give the length of the domain, in the unit of the positions");
      }
      if (static_cast<double>(options.hops) * longest[axis] >= 0.5 * period[axis]) {
        throw period_error(
            mesh, axis, "edges whose length times data.hops is less than half the period",
            fmt::format("{:.6g} times {} with a period of {:.6g}", longest[axis], options.hops, period[axis]),
            "lower data.hops, or use three cells or more a period");
      }
    }
  }
  /// Along a periodic axis the distance from the lower border, from 0 to the period.
  double folded(const MeshView& mesh, size_t node, size_t axis) const {
    const double d = coordinate(mesh, node, axis) - low[axis];
    if (period[axis] <= 0.0) return d;
    const double moved = std::fmod(d + tolerance, period[axis]);
    return moved < 0.0 ? moved + period[axis] : moved;
  }
  bool on_border(const MeshView& mesh, size_t node) const {
    for (size_t axis = 0; axis < static_cast<size_t>(mesh.dim); ++axis)
      if (period[axis] > 0.0 && folded(mesh, node, axis) <= 3.0 * tolerance) return true;
    return false;
  }
  /// Whether two nodes are images of one point: several places that differ by periods.
  bool images(const MeshView& mesh, size_t a, size_t b) const {
    bool apart = false;
    for (size_t axis = 0; axis < static_cast<size_t>(mesh.dim); ++axis) {
      const double whole = coordinate(mesh, a, axis) - coordinate(mesh, b, axis);
      const double d = nearest_image(whole, period[axis]);
      if (std::abs(d) > tolerance) return false;
      apart = apart || std::abs(whole - d) > 0.5 * period[axis];
    }
    return apart;
  }
};

/// The point that each node is an image of: the least number among its images.
std::vector<int32_t> points_of(const MeshView& mesh, PeriodicBox& box) {
  std::vector<int32_t> point(static_cast<size_t>(mesh.nodes));
  std::iota(point.begin(), point.end(), 0);
  const auto root = [&](int32_t node) {
    while (point[static_cast<size_t>(node)] != node) node = point[static_cast<size_t>(node)];
    return node;
  };
  using Cell = std::array<int64_t, 3>;
  const auto dim = static_cast<size_t>(mesh.dim);
  const double side = 4.0 * box.tolerance;
  std::map<Cell, std::vector<int32_t>> near;  // nodes of a border by their place
  for (int32_t node = 0; node < mesh.nodes; ++node) {
    const auto at = static_cast<size_t>(node);
    if (!box.on_border(mesh, at)) continue;
    Cell cell{};
    for (size_t axis = 0; axis < dim; ++axis)
      cell[axis] = static_cast<int64_t>(std::floor(box.folded(mesh, at, axis) / side));
    for (int neighbour = 0; neighbour < 27; ++neighbour) {
      const Cell other{cell[0] + neighbour % 3 - 1, cell[1] + neighbour / 3 % 3 - 1,
                       cell[2] + neighbour / 9 - 1};
      const auto found = near.find(other);
      if (found == near.end()) continue;
      for (const int32_t image : found->second) {
        if (!box.images(mesh, at, static_cast<size_t>(image))) continue;
        for (size_t axis = 0; axis < dim; ++axis) {
          const double d = coordinate(mesh, at, axis) - coordinate(mesh, static_cast<size_t>(image), axis);
          box.joined[axis] = box.joined[axis] || std::abs(d) > 0.5 * box.period[axis];
        }
        const int32_t a = root(node), b = root(image);
        point[static_cast<size_t>(std::max(a, b))] = std::min(a, b);
      }
    }
    near[cell].push_back(node);
  }
  for (int32_t node = 0; node < mesh.nodes; ++node) point[static_cast<size_t>(node)] = root(node);
  for (size_t axis = 0; axis < dim; ++axis) {
    if (box.period[axis] <= 0.0 || box.joined[axis]) continue;
    throw period_error(mesh, axis, "edges across the border, or nodes at the same place on both borders",
                       fmt::format("no edges or nodes at a period of {:.6g}", box.period[axis]),
                       "check the period against the mesh (meshgrad info), or set it to 0");
  }
  return point;
}

/// Numbers grouped by a key below `groups`: those of group g are [offsets[g], offsets[g + 1]).
struct Groups {
  std::vector<int32_t> offsets, members;
  Groups(std::span<const int32_t> key, int64_t groups)
      : offsets(static_cast<size_t>(groups) + 1, 0), members(key.size()) {
    for (const int32_t k : key) ++offsets[static_cast<size_t>(k) + 1];
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
    std::vector<int32_t> next(offsets.begin(), offsets.end() - 1);
    for (size_t i = 0; i < key.size(); ++i)
      members[static_cast<size_t>(next[static_cast<size_t>(key[i])]++)] = static_cast<int32_t>(i);
  }
  std::span<const int32_t> of(int32_t group) const {
    const auto at = static_cast<size_t>(group);
    return std::span(members).subspan(static_cast<size_t>(offsets[at]),
                                      static_cast<size_t>(offsets[at + 1] - offsets[at]));
  }
};

/// Points at most `hops` edges from a receiver's, without it: breadth first. `seen` holds the receiver that
/// reached a point last.
void reach(const MeshView& mesh, std::span<const int32_t> point, const Groups& images, int32_t receiver,
           int64_t hops, std::vector<int32_t>& seen, std::vector<int32_t>& reached) {
  reached.assign(1, point[static_cast<size_t>(receiver)]);
  seen[static_cast<size_t>(reached.front())] = receiver;
  size_t begin = 0;
  for (int64_t hop = 0; hop < hops; ++hop) {
    const size_t end = reached.size();
    for (; begin < end; ++begin) {
      for (const int32_t node : images.of(reached[begin])) {
        const auto at = static_cast<size_t>(node);
        for (int32_t e = mesh.receiver_offsets[at]; e < mesh.receiver_offsets[at + 1]; ++e) {
          const int32_t next = point[static_cast<size_t>(mesh.senders[static_cast<size_t>(e)])];
          if (std::exchange(seen[static_cast<size_t>(next)], receiver) != receiver) reached.push_back(next);
        }
      }
    }
  }
  reached.erase(reached.begin());
}

double squared_distance(const MeshView& mesh, int32_t a, int32_t b) {
  double squares = 0.0;
  for (size_t axis = 0; axis < static_cast<size_t>(mesh.dim); ++axis) {
    const double d =
        coordinate(mesh, static_cast<size_t>(a), axis) - coordinate(mesh, static_cast<size_t>(b), axis);
    squares += d * d;
  }
  return squares;
}

int32_t nearest_of(const MeshView& mesh, std::span<const int32_t> images, int32_t receiver) {
  if (images.size() == 1) return images.front();
  return *std::min_element(images.begin(), images.end(), [&](int32_t a, int32_t b) {
    return squared_distance(mesh, a, receiver) < squared_distance(mesh, b, receiver);
  });
}

}  // namespace

MeshEdges made_edges(const MeshView& given, const MeshEdgeOptions& options) {
  const OwnEdges own(given);
  const MeshView& mesh = own.mesh;
  std::vector<int32_t> point(static_cast<size_t>(mesh.nodes));
  std::iota(point.begin(), point.end(), 0);
  if (options.periodic()) {
    PeriodicBox box(mesh, options);
    point = points_of(mesh, box);
  }
  const Groups images(point, mesh.nodes);
  std::vector<int32_t> senders, offsets{0}, seen(static_cast<size_t>(mesh.nodes), -1), reached;
  for (int32_t receiver = 0; receiver < mesh.nodes; ++receiver) {
    reach(mesh, point, images, receiver, options.hops, seen, reached);
    for (int32_t& node : reached) node = nearest_of(mesh, images.of(node), receiver);
    std::sort(reached.begin(), reached.end());
    senders.insert(senders.end(), reached.begin(), reached.end());
    if (senders.size() >= static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
      throw config_error("data.hops", "fewer than 2^31 edges", fmt::format("{} or more", senders.size()),
                         "lower data.hops");
    }
    offsets.push_back(static_cast<int32_t>(senders.size()));
  }
  MeshEdges made = edges_of_receivers(std::move(senders), std::move(offsets));
  for (int32_t node = 0; node < mesh.nodes; ++node)
    if (point[static_cast<size_t>(node)] != node) return made.points = std::move(point), made;
  return made;
}

void set_edges(MeshView& mesh, const MeshEdges& edges) {
  mesh.edges = std::ssize(edges.senders);
  mesh.senders = edges.senders;
  mesh.receivers = edges.receivers;
  mesh.receiver_offsets = edges.receiver_offsets;
  mesh.sender_offsets = edges.sender_offsets;
  mesh.sender_order = edges.sender_order;
  mesh.points = edges.points;
}

std::vector<int32_t> drawn_edges(const MeshView& mesh) {
  const bool made = mesh.made != nullptr;
  const std::span<const int32_t> senders = made ? mesh.given_senders : mesh.senders;
  const std::span<const int32_t> receivers = made ? mesh.given_receivers : mesh.receivers;
  const auto dim = static_cast<size_t>(mesh.dim);
  const auto crosses = [&](int32_t a, int32_t b) {
    for (size_t axis = 0; axis < dim; ++axis) {
      const double period = mesh.period[axis];
      const auto at = [&](int32_t node) {
        return static_cast<double>(mesh.positions[static_cast<size_t>(node) * dim + axis]);
      };
      if (period > 0 && std::abs(at(a) - at(b)) > period / 2) return true;
    }
    return false;
  };
  std::vector<int32_t> lines;
  for (size_t i = 0; i < senders.size(); ++i) {
    // One line is enough for a connection, which is there both ways unless edges are directed.
    const bool drawn = mesh.directed ? senders[i] != receivers[i] : senders[i] < receivers[i];
    if (drawn && !crosses(senders[i], receivers[i])) lines.insert(lines.end(), {senders[i], receivers[i]});
  }
  return lines;
}

void MadeEdges::replace(MeshView& mesh) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = kept_.find(mesh.index); found != kept_.end()) mesh.made = found->second;
  }
  if (mesh.made == nullptr) {
    mesh.made = std::make_shared<const MeshEdges>(made_edges(mesh, options_));
    const std::lock_guard lock(mutex_);
    const size_t bytes =
        sizeof(int32_t) *
        (3 * mesh.made->senders.size() + 2 * mesh.made->receiver_offsets.size() + mesh.made->points.size());
    if (bytes_ + bytes > kMostKept) {
      kept_.clear();
      bytes_ = 0;
    }
    if (kept_.emplace(mesh.index, mesh.made).second) bytes_ += bytes;
    counts_[mesh.index] = std::ssize(mesh.made->senders);
  }
  mesh.given_senders = mesh.senders;
  mesh.given_receivers = mesh.receivers;
  set_edges(mesh, *mesh.made);
  mesh.period = options_.period;
}

}  // namespace meshgrad
