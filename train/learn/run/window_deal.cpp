// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/run/window_deal.h>

#include <algorithm>
#include <numeric>

namespace meshgrad {
namespace {

/// Places [begin, end) of the window, those with most edges first; of equal ones the earlier first.
std::vector<int64_t> by_size(std::span<const int64_t> edges, size_t begin, size_t end) {
  std::vector<int64_t> places(end - begin);
  std::iota(places.begin(), places.end(), static_cast<int64_t>(begin));
  std::stable_sort(places.begin(), places.end(), [&](int64_t a, int64_t b) {
    return edges[static_cast<size_t>(a)] > edges[static_cast<size_t>(b)];
  });
  return places;
}

void sort_parts(WindowDeal& deal) {
  for (std::vector<int64_t>& part : deal) std::sort(part.begin(), part.end());
}

}  // namespace

WindowDeal deal_largest_first(std::span<const int64_t> edges, int ranks) {
  WindowDeal deal(static_cast<size_t>(ranks));
  std::vector<int64_t> loads(deal.size());
  for (const int64_t place : by_size(edges, 0, edges.size())) {
    // Meshes may have no edges: then the one with the fewest samples.
    size_t least = 0;
    for (size_t rank = 1; rank < deal.size(); ++rank) {
      const bool equal = loads[rank] == loads[least];
      if (loads[rank] < loads[least] || (equal && deal[rank].size() < deal[least].size())) least = rank;
    }
    deal[least].push_back(place);
    loads[least] += edges[static_cast<size_t>(place)];
  }
  sort_parts(deal);
  return deal;
}

WindowDeal deal_in_rounds(std::span<const int64_t> edges, int ranks) {
  WindowDeal deal(static_cast<size_t>(ranks));
  std::vector<int64_t> loads(deal.size());
  for (size_t begin = 0; begin < edges.size(); begin += deal.size()) {
    std::vector<size_t> order(deal.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return loads[a] < loads[b]; });
    auto rank = order.begin();
    for (const int64_t place : by_size(edges, begin, std::min(edges.size(), begin + deal.size()))) {
      deal[*rank].push_back(place);
      loads[*rank++] += edges[static_cast<size_t>(place)];
    }
  }
  sort_parts(deal);
  return deal;
}

double imbalance(std::span<const int64_t> edges, const WindowDeal& deal) {
  int64_t all = 0;
  int64_t most = 0;
  for (const std::vector<int64_t>& part : deal) {
    int64_t load = 0;
    for (const int64_t place : part) load += edges[static_cast<size_t>(place)];
    all += load;
    most = std::max(most, load);
  }
  return all > 0 ? static_cast<double>(most) * static_cast<double>(deal.size()) / static_cast<double>(all)
                 : 1.0;
}

}  // namespace meshgrad
