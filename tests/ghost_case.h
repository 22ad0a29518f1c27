// SPDX-License-Identifier: Apache-2.0
// The exchange of ghosts in the middle of a GPU's edge update.
#pragma once
#include <meshgrad/kernels/message_passing.h>

#include <algorithm>
#include <vector>

#include "reference/message_passing.h"

namespace meshgrad::test {

/// Of edges whose first `interior` receivers have none from a ghost; without `call`.
inline GhostExchange exchange_of(Runtime& runtime, const reference::Edges& edges, int64_t interior) {
  const auto first = std::ranges::lower_bound(edges.receivers, static_cast<int32_t>(interior));
  std::vector<int32_t> receivers(first, edges.receivers.end()), offsets(1, 0);
  for (int32_t& receiver : receivers) receiver -= static_cast<int32_t>(interior);
  for (int32_t node = 0; node < edges.owned_nodes - interior; ++node)
    offsets.push_back(static_cast<int32_t>(std::ranges::upper_bound(receivers, node) - receivers.begin()));
  const auto tensor = [&](const std::vector<int32_t>& values) {
    return Tensor::from<int32_t>(runtime, values, Shape{std::ssize(values)}, Tag::data);
  };
  return {.interior = interior,
          .interior_edges = first - edges.receivers.begin(),
          .border_receivers = tensor(receivers),
          .border_offsets = tensor(offsets),
          .call = {}};
}

}  // namespace meshgrad::test
