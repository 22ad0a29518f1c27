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

TEST_CASE("a receiver of 100,000 edges is divided among all warps, in the order of the edges") {
  constexpr int kNodes = 40, kHub = 5, kHubEdges = 100'000, kTile = 32;
  constexpr int kBlocks = 132, kWarps = 8 * kBlocks;  // as on an H200
  std::vector<int> receivers, offsets{0};
  for (int node = 0; node < kNodes; ++node) {
    receivers.insert(receivers.end(), node == kHub ? kHubEdges : 6, node);
    offsets.push_back(static_cast<int>(receivers.size()));
  }
  OwnStream stream;
  DeviceArray<int> device_receivers(receivers, stream), device_offsets(offsets, stream), ranges(2 * kWarps);
  const int edges = offsets.back();
  planted::edge_ranges(stream.stream, device_receivers.data, device_offsets.data, edges, kNodes, ranges.data,
                       kBlocks);
  const std::vector<int> found = ranges.host(stream);
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

}  // namespace
}  // namespace meshgrad
