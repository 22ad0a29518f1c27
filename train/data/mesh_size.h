// SPDX-License-Identifier: Apache-2.0
// How large a mesh is.
#pragma once
#include <meshgrad/train/data/dataset.h>

#include <algorithm>
#include <array>
#include <cmath>
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

/// Between the positions of its nodes as they are, not those of the nearest image in a periodic domain.
inline double edge_length(const MeshView& mesh, size_t edge) {
  const auto dim = static_cast<size_t>(mesh.dim);
  const size_t sender = static_cast<size_t>(mesh.senders[edge]) * dim;
  const size_t receiver = static_cast<size_t>(mesh.receivers[edge]) * dim;
  double square = 0.0;
  for (size_t axis = 0; axis < dim; ++axis) {
    const double distance = static_cast<double>(mesh.positions[sender + axis]) -
                            static_cast<double>(mesh.positions[receiver + axis]);
    square += distance * distance;
  }
  return std::sqrt(square);
}

}  // namespace meshgrad
