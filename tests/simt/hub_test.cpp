// SPDX-License-Identifier: Apache-2.0
// A receiver of very many edges is not left to one warp.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "device_array.h"
#include "planted.h"

namespace meshgrad {
namespace {

namespace planted = cuda::planted;
using test::DeviceArray;
using test::OwnStream;

/// All of 6 edges but one.
struct Receivers {
  std::vector<int> of_edge, offsets{0};
  Receivers(int nodes, int hub, int hub_edges) {
    for (int node = 0; node < nodes; ++node) {
      of_edge.insert(of_edge.end(), static_cast<size_t>(node == hub ? hub_edges : 6), node);
      offsets.push_back(static_cast<int>(of_edge.size()));
    }
  }
};

/// Where the edges of each warp begin and end: [8 blocks, 2].
std::vector<int> edge_ranges(const Receivers& receivers, int blocks) {
  OwnStream stream;
  DeviceArray<int> of_edge(receivers.of_edge, stream), offsets(receivers.offsets, stream),
      ranges(static_cast<size_t>(16 * blocks));
  planted::edge_ranges(stream.stream, of_edge.data, offsets.data, receivers.offsets.back(),
                       static_cast<int>(receivers.offsets.size()) - 1, ranges.data, blocks);
  return ranges.host(stream);
}

TEST_CASE("a receiver of 100,000 edges is divided among all warps") {
  constexpr int kNodes = 40, kHub = 5, kHubEdges = 100'000, kTile = 32;
  constexpr int kBlocks = 132, kWarps = 8 * kBlocks;  // as on an H200
  const Receivers hub(kNodes, kHub, kHubEdges);
  const std::vector<int>& receivers = hub.of_edge;
  const int edges = hub.offsets.back();
  const std::vector<int> found = edge_ranges(hub, kBlocks);
  int end = 0, rounds = 0, dividing = 0;
  bool in_order = true;
  for (size_t warp = 0; warp < kWarps; ++warp) {
    const int begin = found[2 * warp];
    in_order = in_order && begin == end;
    end = found[2 * warp + 1];
    if (end == begin || receivers[static_cast<size_t>(begin)] != kHub) continue;
    ++dividing;
    rounds = std::max(rounds, (end - begin + kTile - 1) / kTile);
  }
  CHECK(in_order);
  CHECK(end == edges);
  CHECK(rounds == 3);  // a warp alone would take 3,126
  CHECK(dividing > kWarps - 5);
}

TEST_CASE("a long receiver at the end of a share costs no warp more") {
  constexpr int kShare = 300;  // of seven warps; the eighth has what they leave
  const std::vector<int> found = edge_ranges(Receivers(301, 50, kShare), 1);
  for (int warp = 0; warp < 8; ++warp) {
    CAPTURE(warp);
    CHECK(found[static_cast<size_t>(2 * warp)] == kShare * std::min(warp, 7));
    CHECK(found[static_cast<size_t>(2 * warp + 1)] == kShare * std::min(warp + 1, 7));
  }
}

}  // namespace
}  // namespace meshgrad
