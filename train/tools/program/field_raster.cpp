// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/mesh_size.h>
#include <meshgrad/train/tools/program/field_raster.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace meshgrad {
namespace {

/// A node on the pixel grid; `value` from 0 to 1 of the colour map.
struct Corner {
  double x, y, depth, value;
};

class PixelGrid {
 public:
  PixelGrid(int width, int height)
      : image_{width, height,
               std::vector<std::uint8_t>(static_cast<std::size_t>(width) * static_cast<std::size_t>(height))},
        depth_(image_.pixels.size(), -std::numeric_limits<double>::infinity()) {}

  void fill_triangle(const Corner& a, const Corner& b, const Corner& c) {
    const double area = (b.x - a.x) * (c.y - a.y) - (c.x - a.x) * (b.y - a.y);
    if (area == 0 || !std::isfinite(area)) return;
    const auto [left, right] = std::minmax({a.x, b.x, c.x});
    const auto [top, bottom] = std::minmax({a.y, b.y, c.y});
    // The tolerance, far below a pixel, closes the seams between neighbours.
    constexpr double kSeam = -1e-9;
    for (int y = first(top); y <= last(bottom, image_.height); ++y) {
      for (int x = first(left); x <= last(right, image_.width); ++x) {
        const double u = ((x + 0.5 - a.x) * (c.y - a.y) - (c.x - a.x) * (y + 0.5 - a.y)) / area;
        const double v = ((b.x - a.x) * (y + 0.5 - a.y) - (x + 0.5 - a.x) * (b.y - a.y)) / area;
        if (u < kSeam || v < kSeam || u + v > 1 - kSeam) continue;
        put(x, y, a.depth + u * (b.depth - a.depth) + v * (c.depth - a.depth),
            a.value + u * (b.value - a.value) + v * (c.value - a.value));
      }
    }
  }

  void fill_disc(const Corner& centre, double radius) {
    for (int y = first(centre.y - radius); y <= last(centre.y + radius, image_.height); ++y) {
      for (int x = first(centre.x - radius); x <= last(centre.x + radius, image_.width); ++x) {
        if (std::hypot(x + 0.5 - centre.x, y + 0.5 - centre.y) <= radius)
          put(x, y, centre.depth, centre.value);
      }
    }
  }

  FieldImage finish() { return std::move(image_); }

 private:
  static int first(double from) { return static_cast<int>(std::max(from - 1, 0.0)); }
  static int last(double to, int size) { return static_cast<int>(std::clamp(to + 1, -1.0, size - 1.0)); }

  void put(int x, int y, double depth, double value) {
    const std::size_t at =
        static_cast<std::size_t>(y) * static_cast<std::size_t>(image_.width) + static_cast<std::size_t>(x);
    if (depth < depth_[at]) return;
    depth_[at] = depth;
    image_.pixels[at] = FieldImage::byte_of(value);
  }

  FieldImage image_;
  std::vector<double> depth_;
};

/// The section of a tetrahedron with the plane depth = cut: nothing, a triangle or a quad.
void fill_section(PixelGrid& grid, const std::array<Corner, 4>& corners, double cut) {
  std::vector<Corner> above, below;
  for (const Corner& corner : corners) (corner.depth >= cut ? above : below).push_back(corner);
  std::vector<Corner> section;
  for (size_t i = 0; i < above.size(); ++i) {
    // In the order of the outline: the second corner above meets those below in reverse.
    for (size_t j = 0; j < below.size(); ++j) {
      const Corner& a = above[i];
      const Corner& b = below[i % 2 == 0 ? j : below.size() - 1 - j];
      const double share = (cut - a.depth) / (b.depth - a.depth);
      section.push_back(
          {a.x + share * (b.x - a.x), a.y + share * (b.y - a.y), cut, a.value + share * (b.value - a.value)});
    }
  }
  for (size_t i = 2; i < section.size(); ++i) grid.fill_triangle(section[0], section[i - 1], section[i]);
}

}  // namespace

std::span<const int> simplices_of(CellKind kind) {
  static constexpr int kTriangle[] = {0, 1, 2};
  static constexpr int kQuad[] = {0, 1, 2, 0, 2, 3};
  static constexpr int kTetrahedron[] = {0, 1, 2, 3};
  static constexpr int kHexahedron[] = {0, 6, 1, 2, 0, 6, 2, 3, 0, 6, 3, 7,
                                        0, 6, 7, 4, 0, 6, 4, 5, 0, 6, 5, 1};
  switch (kind) {
    case CellKind::triangle:
      return kTriangle;
    case CellKind::quad:
      return kQuad;
    case CellKind::tetrahedron:
      return kTetrahedron;
    case CellKind::hexahedron:
      return kHexahedron;
    case CellKind::none:
      break;
  }
  return {};
}

Projection project(const MeshView& mesh) {
  Projection result;
  std::array<std::array<double, 2>, 3> ranges{};
  const auto dim = static_cast<std::size_t>(mesh.dim);
  for (std::size_t axis = 0; axis < dim; ++axis) ranges[axis] = range_of_axis(mesh.positions, dim, axis);
  const auto extent = [&](int axis) {
    const auto& range = ranges[static_cast<std::size_t>(axis)];
    return range[1] - range[0];
  };
  if (mesh.dim == 3) {
    result.axes = {0, 1, 2};
    std::ranges::stable_sort(result.axes, [&](int a, int b) { return extent(a) > extent(b); });
  }
  if (mesh.dim == 3 && is_volume(mesh.cell_kind)) {
    const auto& range = ranges[static_cast<std::size_t>(result.axes[2])];
    result.cut = (range[0] + range[1]) / 2;
  }
  result.left = ranges[static_cast<std::size_t>(result.axes[0])][0];
  result.bottom = ranges[static_cast<std::size_t>(result.axes[1])][0];
  // A line or a point still has an area to draw.
  const double largest = std::max({extent(result.axes[0]), extent(result.axes[1]), 1e-30});
  result.spread_x = std::max(extent(result.axes[0]), largest * 1e-3);
  result.spread_y = std::max(extent(result.axes[1]), largest * 1e-3);
  return result;
}

FieldImage raster_field(const MeshView& mesh, const Projection& projection, std::span<const float> values,
                        double low, double high, int width, int height) {
  PixelGrid grid(width, height);
  std::vector<Corner> corners(static_cast<std::size_t>(mesh.nodes));
  for (std::size_t node = 0; node < corners.size(); ++node) {
    const auto at = [&](int axis) -> double {
      return mesh.positions[node * static_cast<std::size_t>(mesh.dim) + static_cast<std::size_t>(axis)];
    };
    corners[node] = {(at(projection.axes[0]) - projection.left) / projection.spread_x * width,
                     (1 - (at(projection.axes[1]) - projection.bottom) / projection.spread_y) * height,
                     projection.axes[2] < 0 ? 0.0 : at(projection.axes[2]),
                     (values[node] - low) / (high - low)};
  }
  for_each_simplex(mesh, [&](std::span<const int32_t> nodes) {
    const auto corner = [&](std::size_t i) { return corners[static_cast<std::size_t>(nodes[i])]; };
    if (nodes.size() == 4) {
      fill_section(grid, {corner(0), corner(1), corner(2), corner(3)}, projection.cut.value_or(0));
    } else {
      grid.fill_triangle(corner(0), corner(1), corner(2));
    }
  });
  if (mesh.cells.empty() && mesh.nodes > 0) {
    const double spacing = std::sqrt(static_cast<double>(width) * height / static_cast<double>(mesh.nodes));
    for (const Corner& corner : corners) grid.fill_disc(corner, std::clamp(0.55 * spacing, 2.0, 20.0));
  }
  return grid.finish();
}

}  // namespace meshgrad
