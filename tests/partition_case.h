// SPDX-License-Identifier: Apache-2.0
// A triangulated square, for tests and benchmarks of meshes that are split over ranks.
#pragma once
#include <meshgrad/nn/partition/owners.h>

#include <cstdint>
#include <vector>

namespace meshgrad::test {

struct MeshCase {
  int64_t nodes = 0;
  std::vector<float> positions;             ///< [nodes, 2]
  std::vector<int32_t> senders, receivers;  ///< sorted by receiver; each connection both ways
  std::vector<int32_t> offsets;             ///< [nodes + 1]
  SortedEdges view() const { return {senders, offsets}; }
};

/// side x side nodes in rows, each connected with up to six others.
inline MeshCase square_mesh(int64_t side) {
  MeshCase mesh;
  mesh.nodes = side * side;
  mesh.offsets.push_back(0);
  constexpr int kSteps[6][2] = {{-1, -1}, {0, -1}, {-1, 0}, {1, 0}, {0, 1}, {1, 1}};
  for (int64_t y = 0; y < side; ++y) {
    for (int64_t x = 0; x < side; ++x) {
      mesh.positions.push_back(static_cast<float>(x));
      mesh.positions.push_back(static_cast<float>(y));
      for (const auto& step : kSteps) {
        const int64_t from_x = x + step[0], from_y = y + step[1];
        if (from_x < 0 || from_y < 0 || from_x >= side || from_y >= side) continue;
        mesh.senders.push_back(static_cast<int32_t>(from_y * side + from_x));
        mesh.receivers.push_back(static_cast<int32_t>(y * side + x));
      }
      mesh.offsets.push_back(static_cast<int32_t>(mesh.senders.size()));
    }
  }
  return mesh;
}

}  // namespace meshgrad::test
