// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/tools/extras/flat_mesh.h>
#include <meshgrad/train/tools/program/markup.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace meshgrad {
namespace {

constexpr double kMost = 65534;  // of u16, but for the one that is not finite

std::string packed(const std::vector<uint16_t>& numbers) {
  std::vector<std::byte> bytes;
  bytes.reserve(2 * numbers.size());
  for (const uint16_t number : numbers)
    bytes.insert(bytes.end(), {static_cast<std::byte>(number & 255), static_cast<std::byte>(number >> 8)});
  return base64(bytes);
}

}  // namespace

FlatMesh::FlatMesh(const MeshView& mesh) : drawn_(mesh), projection_(project(drawn_.view())) {
  const MeshView& view = drawn_.view();
  if (projection_.cut) {
    add_sections(view);
  } else {
    add_triangles(view);
  }
}

void FlatMesh::add_triangles(const MeshView& view) {
  const auto nodes = static_cast<size_t>(view.nodes), dim = static_cast<size_t>(view.dim);
  const auto at = [&](size_t node, int axis) -> double {
    return view.positions[node * dim + static_cast<size_t>(axis)];
  };
  for (size_t node = 0; node < nodes; ++node) {
    const auto number = static_cast<int32_t>(node);
    vertices_.push_back({(at(node, projection_.axes[0]) - projection_.left) / projection_.spread_x,
                         1 - (at(node, projection_.axes[1]) - projection_.bottom) / projection_.spread_y,
                         number, number, 0});
  }
  std::vector<std::pair<double, std::array<uint32_t, 3>>> found;
  for_each_simplex(view, [&](std::span<const int32_t> simplex) {
    double depth = 0;
    std::array<uint32_t, 3> corners{};
    for (size_t i = 0; i < 3; ++i) {
      corners[i] = static_cast<uint32_t>(simplex[i]);
      if (projection_.axes[2] >= 0) depth += at(corners[i], projection_.axes[2]);
    }
    found.emplace_back(depth, corners);
  });
  std::ranges::stable_sort(found, {}, [](const auto& triangle) { return triangle.first; });
  for (const auto& [depth, corners] : found)
    triangles_.insert(triangles_.end(), corners.begin(), corners.end());
}

/// Of each tetrahedron that the plane cuts: a triangle or a quad, whose corners lie on its edges.
void FlatMesh::add_sections(const MeshView& view) {
  const auto dim = static_cast<size_t>(view.dim);
  const auto at = [&](size_t node, int axis) -> double {
    return view.positions[node * dim + static_cast<size_t>(axis)];
  };
  std::map<std::pair<size_t, size_t>, uint32_t> known;
  const auto vertex_between = [&](size_t above, size_t below) {
    const auto [found, added] = known.try_emplace({above, below}, static_cast<uint32_t>(vertices_.size()));
    if (added) {
      const double from = at(above, projection_.axes[2]), to = at(below, projection_.axes[2]);
      const double share = (*projection_.cut - from) / (to - from);
      const auto place = [&](int axis) {
        return at(above, axis) + share * (at(below, axis) - at(above, axis));
      };
      vertices_.push_back({(place(projection_.axes[0]) - projection_.left) / projection_.spread_x,
                           1 - (place(projection_.axes[1]) - projection_.bottom) / projection_.spread_y,
                           static_cast<int32_t>(above), static_cast<int32_t>(below), share});
    }
    return found->second;
  };
  for_each_simplex(view, [&](std::span<const int32_t> tetrahedron) {
    std::vector<size_t> above, below;
    for (const int32_t number : tetrahedron) {
      const auto node = static_cast<size_t>(number);
      (at(node, projection_.axes[2]) >= *projection_.cut ? above : below).push_back(node);
    }
    std::vector<uint32_t> outline;  // the second corner above meets those below in reverse
    for (size_t i = 0; i < above.size(); ++i)
      for (size_t j = 0; j < below.size(); ++j)
        outline.push_back(vertex_between(above[i], below[i % 2 == 0 ? j : below.size() - 1 - j]));
    for (size_t i = 2; i < outline.size(); ++i)
      triangles_.insert(triangles_.end(), {outline[0], outline[i - 1], outline[i]});
  });
}

nlohmann::ordered_json FlatMesh::json() const {
  std::vector<uint16_t> x, y;
  const auto across = [](double place) {
    return static_cast<uint16_t>(std::lround(std::clamp(place, 0.0, 1.0) * 65535));
  };
  for (const Vertex& vertex : vertices_) {
    x.push_back(across(vertex.x));
    y.push_back(across(vertex.y));
  }
  const std::string cut =
      projection_.cut
          ? fmt::format("{} = {:.3g}", "xyz"[static_cast<size_t>(projection_.axes[2])], *projection_.cut)
          : "";
  return {{"aspect", projection_.spread_y / projection_.spread_x},
          {"x", packed(x)},
          {"y", packed(y)},
          {"triangles", packed({triangles_.begin(), triangles_.end()})},
          {"cut", cut}};
}

nlohmann::ordered_json FlatMesh::values(std::span<const float> of_nodes) const {
  const std::vector<float> drawn = drawn_.values(of_nodes);
  std::vector<double> values;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const Vertex& vertex : vertices_) {
    const double from = drawn[static_cast<size_t>(vertex.from)], to = drawn[static_cast<size_t>(vertex.to)];
    values.push_back(vertex.share > 0 ? from + vertex.share * (to - from) : from);
    if (!std::isfinite(values.back())) continue;
    low = std::min(low, values.back());
    high = std::max(high, values.back());
  }
  if (low > high) low = high = 0;
  std::vector<uint16_t> numbers;
  for (const double value : values) {
    const double place = high > low ? (value - low) / (high - low) : 0.0;
    numbers.push_back(std::isfinite(value) ? static_cast<uint16_t>(std::lround(place * kMost))
                                           : static_cast<uint16_t>(65535));
  }
  return {{"low", low}, {"high", high}, {"values", packed(numbers)}};
}

}  // namespace meshgrad
