// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/cell_list.h>
#include <meshgrad/train/data/mesh_size.h>
#include <meshgrad/train/data/number.h>
#include <meshgrad/train/data/vtk_cell.h>
#include <meshgrad/train/tools/program/drawn_mesh.h>
#include <meshgrad/train/tools/program/field_raster.h>
#include <meshgrad/train/tools/program/mesh_weights.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

namespace meshgrad {
namespace {

using Point3 = std::array<double, 3>;
using Corners = std::span<const int32_t>;

Point3 point_at(std::span<const float> positions, int dim, int32_t node) {
  Point3 point{};
  for (int axis = 0; axis < dim; ++axis) {
    const auto at = static_cast<size_t>(node) * static_cast<size_t>(dim) + static_cast<size_t>(axis);
    point[static_cast<size_t>(axis)] = static_cast<double>(positions[at]);
  }
  return point;
}

Point3 minus(const Point3& a, const Point3& b) { return {a[0] - b[0], a[1] - b[1], a[2] - b[2]}; }
double dot(const Point3& a, const Point3& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }
Point3 cross(const Point3& a, const Point3& b) {
  return {a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]};
}
double length(const Point3& a) { return std::sqrt(dot(a, a)); }

/// The length of a line, the area of a triangle, the volume of a tetrahedron.
double measure_of(std::span<const Point3> corners) {
  const Point3 a = minus(corners[1], corners[0]);
  if (corners.size() == 2) return length(a);
  const Point3 b = minus(corners[2], corners[0]);
  if (corners.size() == 3) return length(cross(a, b)) / 2.0;
  return std::abs(dot(cross(a, b), minus(corners[3], corners[0]))) / 6.0;
}

/// Weights of the corners of a triangle in a plane, or a tetrahedron, that add up to 1 and to the point.
std::optional<std::array<double, 4>> shares_of(const Point3& point, std::span<const Point3> corners) {
  const Point3 a = minus(corners[1], corners[0]), b = minus(corners[2], corners[0]);
  const Point3 p = minus(point, corners[0]);
  std::array<double, 4> shares{};
  if (corners.size() == 3) {
    const double area = a[0] * b[1] - a[1] * b[0];
    if (area == 0.0) return std::nullopt;
    shares[1] = (p[0] * b[1] - p[1] * b[0]) / area;
    shares[2] = (a[0] * p[1] - a[1] * p[0]) / area;
  } else {
    const Point3 c = minus(corners[3], corners[0]);
    const double volume = dot(cross(a, b), c);
    if (volume == 0.0) return std::nullopt;
    shares[1] = dot(cross(p, b), c) / volume;
    shares[2] = dot(cross(a, p), c) / volume;
    shares[3] = dot(cross(a, b), p) / volume;
  }
  shares[0] = 1.0 - shares[1] - shares[2] - shares[3];
  return shares;
}

bool is_in_box(const Point3& point, const MeshView& mesh) {
  const auto dim = static_cast<size_t>(mesh.dim);
  for (size_t axis = 0; axis < dim; ++axis) {
    const auto [least, most] = range_of_axis(mesh.positions, dim, axis);
    const double rounding = 1e-6 * std::max(most - least, std::abs(most));
    if (point[axis] < least - rounding || point[axis] > most + rounding) return false;
  }
  return true;
}

/// Sides of a cell that another one may have, too: corners of the cell. Edges of surfaces, faces of solids.
std::vector<std::vector<int>> sides_of(uint8_t type, int corners) {
  switch (static_cast<VtkCell>(type)) {
    case VtkCell::tetrahedron:
      return {{0, 1, 2}, {0, 1, 3}, {1, 2, 3}, {0, 2, 3}};
    case VtkCell::hexahedron:
      return {{0, 1, 2, 3}, {4, 5, 6, 7}, {0, 1, 5, 4}, {1, 2, 6, 5}, {2, 3, 7, 6}, {3, 0, 4, 7}};
    case VtkCell::wedge:
      return {{0, 1, 2}, {3, 4, 5}, {0, 1, 4, 3}, {1, 2, 5, 4}, {2, 0, 3, 5}};
    case VtkCell::pyramid:
      return {{0, 1, 2, 3}, {0, 1, 4}, {1, 2, 4}, {2, 3, 4}, {3, 0, 4}};
    default:
      break;
  }
  std::vector<std::vector<int>> sides;
  for (int i = 0; corners > 2 && i < corners; ++i) sides.push_back({i, (i + 1) % corners});
  return sides;
}

/// A side by its corners, of which there are at most four.
struct Side {
  std::array<int32_t, 4> sorted{-1, -1, -1, -1};
  std::array<int32_t, 4> nodes{};
  size_t count = 0;
  Corners corners() const { return Corners(nodes).first(count); }
};

/// Those that only one cell has.
std::vector<Side> boundary_of(Corners corners, Corners ends, std::span<const uint8_t> types, bool solid) {
  std::vector<Side> all;
  size_t begin = 0;
  for (size_t cell = 0; cell < ends.size(); ++cell) {
    const auto end = static_cast<size_t>(ends[cell]);
    const Corners of = corners.subspan(begin, end - begin);
    begin = end;
    for (const std::vector<int>& corner_numbers : sides_of(types[cell], static_cast<int>(of.size()))) {
      if (solid != (corner_numbers.size() > 2)) continue;
      Side& side = all.emplace_back();
      for (const int corner : corner_numbers) side.nodes[side.count++] = of[static_cast<size_t>(corner)];
      std::ranges::copy(side.corners(), side.sorted.begin());
      std::ranges::sort(side.sorted);
    }
  }
  std::ranges::sort(all, {}, &Side::sorted);
  std::vector<Side> boundary;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool shared = (i > 0 && all[i - 1].sorted == all[i].sorted) ||
                        (i + 1 < all.size() && all[i + 1].sorted == all[i].sorted);
    if (!shared) boundary.push_back(all[i]);
  }
  return boundary;
}

class Regions {
 public:
  explicit Regions(const MeshView& mesh) : mesh_(mesh), drawn_(mesh) {}

  std::vector<MeshRegion> find() {
    add_cells();
    if (mesh_.source != nullptr && mesh_.source->nodes_are_cells()) return take();
    if (mesh_.source != nullptr) {
      add_boundary(mesh_.source->corners, mesh_.source->ends, mesh_.source->types);
    } else if (!mesh_.cells.empty()) {
      const CellList list = cells_of(mesh_.cells, mesh_.cell_kind);
      add_boundary(list.corners, list.ends, list.types);
    }
    return take();
  }

 private:
  /// Adds a line, triangle or tetrahedron, whose corners have equal parts.
  static void add(MeshRegion& region, std::span<const Point3> corners, Corners nodes) {
    const double measure = measure_of(corners);
    region.measure += measure;
    for (const int32_t node : nodes) {
      region.weights.nodes.push_back(node);
      region.weights.weights.push_back(measure / static_cast<double>(nodes.size()));
    }
  }

  void add_cells() {
    const MeshView& view = drawn_.view();
    const bool nodes_are_cells = mesh_.source != nullptr && mesh_.source->nodes_are_cells();
    for_each_simplex(view, [&](Corners corners) {
      std::array<Point3, 4> points{};
      std::array<int32_t, 4> nodes{};
      for (size_t i = 0; i < corners.size(); ++i) {
        points[i] = point_at(view.positions, view.dim, corners[i]);
        nodes[i] = drawn_.node_of(corners[i]);
      }
      const auto of = std::span(points).first(corners.size());
      add(whole_, of, Corners(nodes).first(corners.size()));
      if (nodes_are_cells)
        add(by_type(type_of(nodes[0]), MeshRegion::Over::cells), of, Corners(nodes).first(corners.size()));
    });
  }

  void add_boundary(Corners corners, Corners ends, std::span<const uint8_t> types) {
    for (const Side& found : boundary_of(corners, ends, types, is_volume(drawn_.view().cell_kind))) {
      const Corners side = found.corners();
      const int32_t type = type_of(side[0]);
      if (!std::ranges::all_of(side, [&](int32_t node) { return type_of(node) == type; })) continue;
      MeshRegion& region = by_type(type, MeshRegion::Over::boundary);
      std::vector<Point3> points;
      for (const int32_t node : side) points.push_back(point_at(mesh_.positions, mesh_.dim, node));
      if (side.size() == 2) add(region, points, side);
      for (size_t i = 2; i < side.size(); ++i) {
        add(region, std::array{points[0], points[i - 1], points[i]},
            std::array{side[0], side[i - 1], side[i]});
      }
    }
  }

  int32_t type_of(int32_t node) const { return mesh_.node_type[static_cast<size_t>(node)]; }
  MeshRegion& by_type(int32_t type, MeshRegion::Over over) {
    MeshRegion& region = types_[type];
    region.over = over;
    region.node_type = type;
    return region;
  }

  std::vector<MeshRegion> take() {
    const std::set<int32_t> present(mesh_.node_type.begin(), mesh_.node_type.end());
    for (int32_t node = 0; node < mesh_.nodes; ++node) {
      if (const auto known = types_.find(type_of(node));
          known != types_.end() && known->second.over != MeshRegion::Over::nodes)
        continue;
      MeshRegion& region = by_type(type_of(node), MeshRegion::Over::nodes);
      region.measure += 1.0;
      region.weights.nodes.push_back(node);
      region.weights.weights.push_back(1.0);
    }
    std::vector<MeshRegion> regions;
    if (whole_.measure > 0.0) regions.push_back(std::move(whole_));
    for (const int32_t type : present) regions.push_back(std::move(types_.at(type)));
    return regions;
  }

  const MeshView& mesh_;
  const DrawnMesh drawn_;
  MeshRegion whole_;
  std::map<int32_t, MeshRegion> types_;
};

}  // namespace

Probe parse_probe(const std::string& text) {
  Probe probe{text, {}};
  std::string_view rest = text;
  for (bool more = true; more;) {
    const size_t comma = rest.find(',');
    const auto number = parse_number(rest.substr(0, comma));
    more = comma != rest.npos;
    if (!number || !std::isfinite(*number) || probe.at.size() == 3 || (!more && probe.at.empty()))
      throw config_error("--probe", "a point of two or three numbers, X,Y or X,Y,Z", '"' + text + '"',
                         "write --probe 0.1,0.2 for each point");
    probe.at.push_back(*number);
    if (more) rest.remove_prefix(comma + 1);
  }
  return probe;
}

ProbePlace place_of(const Probe& probe, const MeshView& mesh) {
  if (std::cmp_not_equal(probe.at.size(), mesh.dim)) {
    throw config_error("--probe", fmt::format("{} coordinates, as the mesh has", mesh.dim),
                       '"' + probe.text + '"', "write all coordinates of the point, and no other");
  }
  Point3 point{};
  for (size_t axis = 0; axis < probe.at.size(); ++axis) point[axis] = probe.at[axis] - mesh.origin[axis];
  ProbePlace place;
  place.distance = std::numeric_limits<double>::infinity();
  for (int32_t node = 0; node < mesh.nodes; ++node) {
    const double distance = length(minus(point_at(mesh.positions, mesh.dim, node), point));
    if (distance >= place.distance) continue;
    place.distance = distance;
    place.nearest = node;
  }
  const DrawnMesh drawn(mesh);
  const MeshView& view = drawn.view();
  if (view.cells.empty() || is_volume(view.cell_kind) != (mesh.dim == 3)) {
    if (!is_in_box(point, mesh)) return place;
    place.in = ProbePlace::In::node;
    place.weights = {{place.nearest}, {1.0}};
    return place;
  }
  double best = -1e-6;
  for_each_simplex(view, [&](Corners corners) {
    std::array<Point3, 4> points{};
    for (size_t i = 0; i < corners.size(); ++i) points[i] = point_at(view.positions, view.dim, corners[i]);
    const auto shares = shares_of(point, std::span(points).first(corners.size()));
    if (!shares) return;
    const double least = *std::ranges::min_element(std::span(*shares).first(corners.size()));
    if (least <= best) return;
    best = least;
    place.in = ProbePlace::In::cell;
    place.weights = {};
    for (size_t i = 0; i < corners.size(); ++i) {
      place.weights.nodes.push_back(drawn.node_of(corners[i]));
      place.weights.weights.push_back((*shares)[i]);
    }
  });
  return place;
}

std::vector<MeshRegion> regions_of(const MeshView& mesh) { return Regions(mesh).find(); }

}  // namespace meshgrad
