// SPDX-License-Identifier: Apache-2.0
// How large a mesh is.
#pragma once
#include <algorithm>
#include <array>
#include <limits>
#include <span>

namespace meshgrad {

/// The least and the most of positions [nodes, dim] along an axis; 0 and 0 where there are none.
inline std::array<double, 2> range_of_axis(std::span<const float> positions, size_t dim, size_t axis) {
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (size_t i = axis; i < positions.size(); i += dim) {
    least = std::min(least, static_cast<double>(positions[i]));
    most = std::max(most, static_cast<double>(positions[i]));
  }
  return least <= most ? std::array{least, most} : std::array{0.0, 0.0};
}

}  // namespace meshgrad
