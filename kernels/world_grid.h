// SPDX-License-Identifier: Apache-2.0
// What a world edge is (world_edges.h), and the grid of cells that finds them, for the host and for devices.
// Nodes are listed by cell in a table of buckets; cells may share a bucket. A list's order says nothing.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__  // of a .cu file only its kernels search
#define MESHGRAD_GRID __device__ static inline
#else
#define MESHGRAD_GRID static inline
#endif

namespace meshgrad {

/// Pointers to what the search reads, in memory of the caller's device.
struct WorldGrid {
  const float* positions = nullptr;         ///< [nodes, dim]
  const int32_t* meshes = nullptr;          ///< [nodes]: of a union of meshes; null: there is one
  const int32_t* types = nullptr;           ///< [nodes]; null: nodes of one type are joined, too
  const int32_t* points = nullptr;          ///< [nodes]: the node that stands for all images; null: no images
  const int32_t* joined_offsets = nullptr;  ///< [nodes + 1] into `joined`
  const int32_t* joined = nullptr;          ///< neighbours on the mesh, of each node in ascending order
  int64_t joined_count = 0;                 ///< none are read beyond, whatever the offsets are
  int32_t* starts = nullptr;                ///< [buckets + 1] into `members`
  int32_t* members = nullptr;               ///< [nodes]
  int64_t buckets = 0;                      ///< a power of two, kFewestBuckets or more
  int dim = 0;                              ///< 2 or 3
  double radius = 0.0;
  double period[3] = {0.0, 0.0, 0.0};  ///< 0: not periodic
  double cells[3] = {0.0, 0.0, 0.0};   ///< in a period, see cells_of_period
};

namespace world_grid {

/// The 27 cells around one have buckets of their own, see bucket_of_cell.
inline constexpr int64_t kFewestBuckets = 128;

/// Cells are a bit wider than the radius: rounding must not part nodes that are nearer.
inline constexpr double kWider = 1.0 + 1e-6;
inline constexpr double kMostCells = 1048576.0;

/// A whole number of cells makes a period; 0 where there is none.
inline double cells_of_period(double period, double radius) {
  if (period <= 0.0) return 0.0;
  const double cells = std::floor(period / (kWider * radius));
  return cells < 1.0 ? 1.0 : cells > kMostCells ? kMostCells : cells;
}

/// Nodes that share their cells with more nodes than this, on average over all that a search reads, are
/// crowded. All nodes at one point would take a search that is quadratic in their number.
inline constexpr int64_t kMostCrowded = 4096;

/// Of the sum over all buckets of the squared number of members: what a search costs, up to a factor of 27.
MESHGRAD_GRID bool is_crowded(int64_t squares, int64_t nodes) { return squares > kMostCrowded * nodes; }

inline int64_t buckets_for(int64_t nodes) {
  int64_t buckets = kFewestBuckets;
  while (buckets < nodes) buckets *= 2;
  return buckets;
}

/// a * b + c with both rounded, as the host computes them: a pair at the radius must not differ.
MESHGRAD_GRID double times_plus(double a, double b, double c) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(__dmul_rn(a, b), c);
#else
  const double product = a * b;
  return product + c;
#endif
}

/// The shortest of the differences d + n * period; d itself where the period is 0.
MESHGRAD_GRID double nearest_image(double d, double period) {
  return period > 0.0 ? times_plus(-period, std::nearbyint(d / period), d) : d;
}

MESHGRAD_GRID double coordinate(const WorldGrid& g, int32_t node, int axis) {
  return static_cast<double>(g.positions[static_cast<int64_t>(node) * g.dim + axis]);
}
/// From `receiver` to `sender`, to its nearest image.
MESHGRAD_GRID double displacement(const WorldGrid& g, int32_t sender, int32_t receiver, int axis) {
  return nearest_image(coordinate(g, sender, axis) - coordinate(g, receiver, axis), g.period[axis]);
}
MESHGRAD_GRID double squared_distance(const WorldGrid& g, int32_t sender, int32_t receiver) {
  double squares = 0.0;
  for (int axis = 0; axis < g.dim; ++axis) {
    const double d = displacement(g, sender, receiver, axis);
    squares = times_plus(d, d, squares);
  }
  return squares;
}
/// As they lie.
MESHGRAD_GRID double squared_distance_as_given(const WorldGrid& g, int32_t a, int32_t b) {
  double squares = 0.0;
  for (int axis = 0; axis < g.dim; ++axis) {
    const double d = coordinate(g, a, axis) - coordinate(g, b, axis);
    squares = times_plus(d, d, squares);
  }
  return squares;
}

/// Whether a node has a place: all its coordinates are finite, and along periodic axes they tell where in the
/// period it is, as those of f32 beyond 2^24 periods do not.
MESHGRAD_GRID bool has_place(const WorldGrid& g, int32_t node) {
  constexpr double kMostPeriods = 16777216.0;
  for (int axis = 0; axis < g.dim; ++axis) {
    const double x = coordinate(g, node, axis);
    if (!(x - x == 0.0)) return false;
    if (g.period[axis] > 0.0 && std::fabs(x) > kMostPeriods * g.period[axis]) return false;
  }
  return true;
}

/// The number of a positive f32 in the order of all f32. Far out, neighbouring f32 are many cells apart: then
/// each value is a cell of its own, in which all nodes have the same coordinate.
MESHGRAD_GRID int64_t order_of(double x) { return std::bit_cast<int32_t>(static_cast<float>(x)); }

MESHGRAD_GRID int64_t cell_of(const WorldGrid& g, int32_t node, int axis) {
  const double x = coordinate(g, node, axis);
  if (g.period[axis] > 0.0) {
    const double periods = x / g.period[axis];
    const double cell = std::floor((periods - std::floor(periods)) * g.cells[axis]);
    return static_cast<int64_t>(cell < g.cells[axis] ? cell : g.cells[axis] - 1.0);
  }
  constexpr double kOutermost = 4503599627370496.0;  // 2^52
  const double cell = std::floor(x / (kWider * g.radius));
  if (cell < -kOutermost) return -static_cast<int64_t>(kOutermost) - order_of(-x);
  if (cell > kOutermost) return static_cast<int64_t>(kOutermost) + order_of(x);
  return static_cast<int64_t>(cell);
}

/// Linear, with factors that are 1, 5 and 25 modulo the fewest buckets: cells at most 2 apart along each axis
/// differ by less than 64 there, so that no two of them share a bucket.
MESHGRAD_GRID int64_t bucket_of_cell(const WorldGrid& g, int32_t node, const int64_t (&cell)[3]) {
  const auto mesh = static_cast<uint64_t>(g.meshes != nullptr ? g.meshes[node] : 0);
  const uint64_t sum = 0x9e3779b97f4a7c01u * static_cast<uint64_t>(cell[0]) +
                       0xc2b2ae3d27d4eb05u * static_cast<uint64_t>(cell[1]) +
                       0x165667b19e377999u * static_cast<uint64_t>(cell[2]) + 0x85ebca77c2b2ae63u * mesh;
  return static_cast<int64_t>(sum & static_cast<uint64_t>(g.buckets - 1));
}
MESHGRAD_GRID int64_t bucket_of(const WorldGrid& g, int32_t node) {
  int64_t cell[3] = {0, 0, 0};
  for (int axis = 0; axis < g.dim; ++axis) cell[axis] = cell_of(g, node, axis);
  return bucket_of_cell(g, node, cell);
}

MESHGRAD_GRID int32_t point_of(const WorldGrid& g, int32_t node) {
  return g.points != nullptr ? g.points[node] : node;
}
MESHGRAD_GRID bool same_mesh(const WorldGrid& g, int32_t a, int32_t b) {
  return g.meshes == nullptr || g.meshes[a] == g.meshes[b];
}

/// Whether an edge of the mesh joins `receiver` to `sender`, or to an image of it.
MESHGRAD_GRID bool joined_on_mesh(const WorldGrid& g, int32_t receiver, int32_t sender) {
  int64_t begin = g.joined_offsets[receiver], end = g.joined_offsets[receiver + 1];
  begin = begin < 0 ? 0 : begin;
  end = end > g.joined_count ? g.joined_count : end;
  if (g.points != nullptr) {
    for (; begin < end; ++begin)
      if (g.points[g.joined[begin]] == g.points[sender]) return true;
    return false;
  }
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    const int32_t neighbor = g.joined[middle];
    if (neighbor == sender) return true;
    if (neighbor < sender) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return false;
}

/// Whether a world edge may join them. Of the images of one point only the nearest has it.
MESHGRAD_GRID bool may_join(const WorldGrid& g, int32_t receiver, int32_t sender) {
  return squared_distance(g, sender, receiver) < g.radius * g.radius && same_mesh(g, receiver, sender) &&
         point_of(g, receiver) != point_of(g, sender) &&
         (g.types == nullptr || g.types[receiver] != g.types[sender]) && !joined_on_mesh(g, receiver, sender);
}

#ifndef __CUDACC__
/// On the host: lists the nodes by bucket, in memory that starts[0 .. buckets] and members have. Returns the
/// sum of squares for is_crowded.
inline int64_t fill_table(const WorldGrid& g, int64_t nodes) {
  for (int64_t bucket = 0; bucket <= g.buckets; ++bucket) g.starts[bucket] = 0;
  for (int32_t node = 0; node < nodes; ++node)
    if (has_place(g, node)) ++g.starts[bucket_of(g, node)];
  int64_t squares = 0;
  for (int64_t bucket = 0; bucket < g.buckets; ++bucket) {
    squares += int64_t{g.starts[bucket]} * g.starts[bucket];
    if (bucket > 0) g.starts[bucket] += g.starts[bucket - 1];  // now ends
  }
  g.starts[g.buckets] = g.starts[g.buckets - 1];
  for (auto node = static_cast<int32_t>(nodes - 1); node >= 0; --node)
    if (has_place(g, node)) g.members[--g.starts[bucket_of(g, node)]] = node;
  return squares;
}
#endif

/// Calls body(other) for each node in the cells around that of `node`, itself and perhaps some others
/// included, each once; returns how many.
template <class Body>
MESHGRAD_GRID int64_t each_near(const WorldGrid& g, int32_t node, const Body& body) {
  if (!has_place(g, node)) return 0;
  int64_t first[3] = {0, 0, 0}, count[3] = {1, 1, 1}, cell[3] = {0, 0, 0};
  for (int axis = 0; axis < g.dim; ++axis) {
    const bool few = g.period[axis] > 0.0 && g.cells[axis] < 3.0;
    first[axis] = few ? 0 : cell_of(g, node, axis) - 1;
    count[axis] = few ? static_cast<int64_t>(g.cells[axis]) : 3;
  }
  const bool periodic = g.period[0] > 0.0 || g.period[1] > 0.0 || g.period[2] > 0.0;
  int64_t nodes = 0;
  for (int64_t i = 0; i < count[0] * count[1] * count[2]; ++i) {
    const int64_t at[3] = {i % count[0], i / count[0] % count[1], i / (count[0] * count[1])};
    for (int axis = 0; axis < g.dim; ++axis) {
      cell[axis] = first[axis] + at[axis];
      const auto cells = static_cast<int64_t>(g.cells[axis]);
      if (g.period[axis] > 0.0 && cell[axis] < 0) cell[axis] += cells;
      if (g.period[axis] > 0.0 && cell[axis] >= cells) cell[axis] -= cells;
    }
    const int64_t bucket = bucket_of_cell(g, node, cell);
    for (int32_t member = g.starts[bucket]; member < g.starts[bucket + 1]; ++member) {
      const int32_t other = g.members[member];
      // Across a border the cells are not beside each other in the table: two may share a bucket.
      bool inside = true;
      for (int axis = 0; periodic && axis < g.dim; ++axis)
        inside = inside && cell_of(g, other, axis) == cell[axis];
      if (!inside) continue;
      ++nodes;
      body(other);
    }
  }
  return nodes;
}

/// Calls body(sender) for each world edge of a receiver, in any order; returns how many nodes it looked at.
template <class Body>
MESHGRAD_GRID int64_t each_sender(const WorldGrid& g, int32_t receiver, const Body& body) {
  return each_near(g, receiver, [&](int32_t sender) {
    if (!may_join(g, receiver, sender)) return;
    bool nearest = true;
    if (g.points != nullptr) {
      const double distance = squared_distance_as_given(g, sender, receiver);
      each_near(g, receiver, [&](int32_t image) {
        if (g.points[image] != g.points[sender] || !may_join(g, receiver, image)) return;
        const double other = squared_distance_as_given(g, image, receiver);
        nearest = nearest && !(other < distance || (other == distance && image < sender));
      });
    }
    if (nearest) body(sender);
  });
}

}  // namespace world_grid
}  // namespace meshgrad
