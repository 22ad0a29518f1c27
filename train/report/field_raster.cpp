// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/report/field_raster.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace meshgrad {
namespace {

constexpr int kSamples = 3;  // a pixel and direction

/// A node on the sample grid.
struct Corner {
  double x, y, depth, value;
};

class SampleGrid {
 public:
  SampleGrid(int width, int height)
      : width_(width),
        height_(height),
        depth_(static_cast<std::size_t>(width) * static_cast<std::size_t>(height), kEmpty),
        value_(depth_.size()) {}

  void fill_triangle(const Corner& a, const Corner& b, const Corner& c) {
    const double area = (b.x - a.x) * (c.y - a.y) - (c.x - a.x) * (b.y - a.y);
    if (area == 0 || !std::isfinite(area)) return;
    const auto [left, right] = std::minmax({a.x, b.x, c.x});
    const auto [top, bottom] = std::minmax({a.y, b.y, c.y});
    // The tolerance closes the seams between neighbours; it is far below a sample.
    constexpr double kSeam = -1e-9;
    for (int y = first(top); y <= last(bottom, height_); ++y) {
      for (int x = first(left); x <= last(right, width_); ++x) {
        const double u = ((x + 0.5 - a.x) * (c.y - a.y) - (c.x - a.x) * (y + 0.5 - a.y)) / area;
        const double v = ((b.x - a.x) * (y + 0.5 - a.y) - (x + 0.5 - a.x) * (b.y - a.y)) / area;
        if (u < kSeam || v < kSeam || u + v > 1 - kSeam) continue;
        put(x, y, a.depth + u * (b.depth - a.depth) + v * (c.depth - a.depth),
            a.value + u * (b.value - a.value) + v * (c.value - a.value));
      }
    }
  }

  void fill_disc(const Corner& centre, double radius) {
    for (int y = first(centre.y - radius); y <= last(centre.y + radius, height_); ++y) {
      for (int x = first(centre.x - radius); x <= last(centre.x + radius, width_); ++x) {
        if (std::hypot(x + 0.5 - centre.x, y + 0.5 - centre.y) <= radius)
          put(x, y, centre.depth, centre.value);
      }
    }
  }

  /// Puts the mean colour of a pixel's samples over the image.
  void resolve(Image& image, int x0, int y0, ColourMap map, double low, double high) const {
    for (int y = 0; y < height_ / kSamples; ++y) {
      for (int x = 0; x < width_ / kSamples; ++x) resolve_pixel(image, x0, y0, x, y, map, low, high);
    }
  }

 private:
  static constexpr double kEmpty = -std::numeric_limits<double>::infinity();

  static int first(double from) { return std::max(static_cast<int>(std::max(from - 1, 0.0)), 0); }
  static int last(double to, int size) { return static_cast<int>(std::clamp(to + 1, -1.0, size - 1.0)); }
  std::size_t index(int x, int y) const {
    return static_cast<std::size_t>(y) * static_cast<std::size_t>(width_) + static_cast<std::size_t>(x);
  }

  void put(int x, int y, double depth, double value) {
    if (depth < depth_[index(x, y)]) return;
    depth_[index(x, y)] = depth;
    value_[index(x, y)] = value;
  }

  void resolve_pixel(Image& image, int x0, int y0, int x, int y, ColourMap map, double low,
                     double high) const {
    double red = 0, green = 0, blue = 0;
    int covered = 0;
    for (int sample = 0; sample < kSamples * kSamples; ++sample) {
      const std::size_t at = index(x * kSamples + sample % kSamples, y * kSamples + sample / kSamples);
      if (depth_[at] == kEmpty) continue;
      const double value = value_[at];
      const Colour colour = colour_of(map, std::isfinite(value) ? (value - low) / (high - low)
                                                                : std::numeric_limits<double>::quiet_NaN());
      red += colour.red;
      green += colour.green;
      blue += colour.blue;
      ++covered;
    }
    if (covered == 0) return;
    const auto mean = [&](double sum) { return static_cast<std::uint8_t>(std::lround(sum / covered)); };
    image.blend(x0 + x, y0 + y, {mean(red), mean(green), mean(blue)},
                static_cast<double>(covered) / (kSamples * kSamples));
  }

  int width_, height_;
  std::vector<double> depth_;
  std::vector<double> value_;
};

/// The triangles that are drawn for one cell: corners of the cell, three by three.
std::span<const int> triangles_of(CellKind kind) {
  static constexpr int kTriangle[] = {0, 1, 2};
  static constexpr int kQuad[] = {0, 1, 2, 0, 2, 3};
  static constexpr int kTetrahedron[] = {0, 1, 2, 0, 1, 3, 1, 2, 3, 0, 2, 3};
  static constexpr int kHexahedron[] = {0, 1, 2, 0, 2, 3, 4, 5, 6, 4, 6, 7, 0, 1, 5, 0, 5, 4,
                                        1, 2, 6, 1, 6, 5, 2, 3, 7, 2, 7, 6, 3, 0, 4, 3, 4, 7};
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

std::array<double, 2> range_of_axis(const MeshView& mesh, int axis) {
  std::array<double, 2> range{std::numeric_limits<double>::infinity(),
                              -std::numeric_limits<double>::infinity()};
  for (std::size_t i = static_cast<std::size_t>(axis); i < mesh.positions.size();
       i += static_cast<std::size_t>(mesh.dim)) {
    range[0] = std::min<double>(range[0], mesh.positions[i]);
    range[1] = std::max<double>(range[1], mesh.positions[i]);
  }
  return range[0] <= range[1] ? range : std::array<double, 2>{0, 0};
}

}  // namespace

Projection project(const MeshView& mesh) {
  Projection result;
  std::array<std::array<double, 2>, 3> ranges{};
  for (int axis = 0; axis < mesh.dim; ++axis)
    ranges[static_cast<std::size_t>(axis)] = range_of_axis(mesh, axis);
  const auto extent = [&](int axis) {
    const auto& range = ranges[static_cast<std::size_t>(axis)];
    return range[1] - range[0];
  };
  if (mesh.dim == 3) {
    result.axes = {0, 1, 2};
    std::ranges::stable_sort(result.axes, [&](int a, int b) { return extent(a) > extent(b); });
  }
  result.left = ranges[static_cast<std::size_t>(result.axes[0])][0];
  result.bottom = ranges[static_cast<std::size_t>(result.axes[1])][0];
  // A line or a point still gets a picture.
  const double largest = std::max({extent(result.axes[0]), extent(result.axes[1]), 1e-30});
  result.spread_x = std::max(extent(result.axes[0]), largest * 1e-3);
  result.spread_y = std::max(extent(result.axes[1]), largest * 1e-3);
  return result;
}

void raster_field(Image& image, int x, int y, int width, int height, const MeshView& mesh,
                  const Projection& projection, std::span<const float> values, ColourMap map, double low,
                  double high) {
  SampleGrid grid(width * kSamples, height * kSamples);
  std::vector<Corner> corners(static_cast<std::size_t>(mesh.nodes));
  for (std::size_t node = 0; node < corners.size(); ++node) {
    const auto at = [&](int axis) -> double {
      return mesh.positions[node * static_cast<std::size_t>(mesh.dim) + static_cast<std::size_t>(axis)];
    };
    corners[node] = {
        (at(projection.axes[0]) - projection.left) / projection.spread_x * width * kSamples,
        (1 - (at(projection.axes[1]) - projection.bottom) / projection.spread_y) * height * kSamples,
        projection.axes[2] < 0 ? 0.0 : at(projection.axes[2]), values[node]};
  }
  const auto each = static_cast<std::size_t>(nodes_per_cell(mesh.cell_kind));
  const std::span<const int> triangles = triangles_of(mesh.cell_kind);
  for (std::size_t cell = 0; each > 0 && cell < mesh.cells.size(); cell += each) {
    const auto corner = [&](int local) {
      return corners[static_cast<std::size_t>(mesh.cells[cell + static_cast<std::size_t>(local)])];
    };
    for (std::size_t t = 0; t < triangles.size(); t += 3) {
      grid.fill_triangle(corner(triangles[t]), corner(triangles[t + 1]), corner(triangles[t + 2]));
    }
  }
  if (mesh.cells.empty() && mesh.nodes > 0) {
    const double spacing = std::sqrt(static_cast<double>(width) * height / static_cast<double>(mesh.nodes));
    const double radius = std::clamp(0.55 * spacing, 1.2, 10.0) * kSamples;
    for (const Corner& corner : corners) grid.fill_disc(corner, radius);
  }
  grid.resolve(image, x, y, map, low, high);
}

}  // namespace meshgrad
