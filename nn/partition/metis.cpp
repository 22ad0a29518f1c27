// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/nn/partition/owners.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <string>

#ifdef MESHGRAD_HAVE_METIS
#include <metis.h>
#endif

namespace meshgrad {
#ifdef MESHGRAD_HAVE_METIS
namespace {

/// Connections without direction, each once, as METIS wants them.
struct Connections {
  std::vector<idx_t> offsets, others;

  Connections(std::span<const SortedEdges> edge_sets, size_t nodes) : offsets(nodes + 1, 0) {
    each(edge_sets, nodes, [&](size_t a, size_t) { ++offsets[a + 1]; });
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
    others.resize(static_cast<size_t>(offsets.back()));
    std::vector<idx_t> next(offsets.begin(), offsets.end() - 1);
    each(edge_sets, nodes,
         [&](size_t a, size_t b) { others[static_cast<size_t>(next[a]++)] = static_cast<idx_t>(b); });
    size_t kept = 0;
    for (size_t node = 0; node < nodes; ++node) {
      const auto begin = others.begin() + offsets[node], end = others.begin() + next[node];
      std::sort(begin, end);
      const auto last = std::unique(begin, end);
      offsets[node] = static_cast<idx_t>(kept);
      kept = static_cast<size_t>(std::copy(begin, last, others.begin() + static_cast<std::ptrdiff_t>(kept)) -
                                 others.begin());
    }
    offsets[nodes] = static_cast<idx_t>(kept);
    others.resize(kept);
  }

  /// Both directions of every edge between two nodes.
  template <class Body>
  static void each(std::span<const SortedEdges> edge_sets, size_t nodes, Body&& body) {
    for (const SortedEdges& set : edge_sets) {
      for (size_t receiver = 0; receiver < nodes; ++receiver) {
        for (int32_t e = set.receiver_offsets[receiver]; e < set.receiver_offsets[receiver + 1]; ++e) {
          const auto sender = static_cast<size_t>(set.senders[static_cast<size_t>(e)]);
          if (sender == receiver) continue;
          body(receiver, sender);
          body(sender, receiver);
        }
      }
    }
  }
};

}  // namespace

bool metis_available() { return true; }

std::vector<int32_t> metis_owners(std::span<const SortedEdges> edge_sets, std::span<const int32_t> weights,
                                  int64_t parts) {
  constexpr std::string_view kWhere = "metis_owners";
  if (parts < 1) throw invalid_argument(kWhere, "1 part or more", std::to_string(parts));
  for (const SortedEdges& set : edge_sets) {
    if (set.receiver_offsets.size() == weights.size() + 1) continue;
    throw invalid_argument(
        kWhere, "a weight for each of " + std::to_string(set.receiver_offsets.size() - 1) + " nodes",
        std::to_string(weights.size()));
  }
  const size_t nodes = weights.size();
  std::vector<int32_t> owners(nodes, 0);
  if (parts == 1 || nodes <= static_cast<size_t>(parts)) {  // METIS wants more nodes than parts
    if (parts > 1) std::iota(owners.begin(), owners.end(), 0);
    return owners;
  }
  Connections graph(edge_sets, nodes);
  std::vector<idx_t> work(weights.begin(), weights.end()), ranks(nodes);
  idx_t options[METIS_NOPTIONS];
  METIS_SetDefaultOptions(options);
  options[METIS_OPTION_SEED] = 1;
  auto vertices = static_cast<idx_t>(nodes), constraints = idx_t{1}, wanted = static_cast<idx_t>(parts);
  idx_t cut = 0;
  // METIS draws from std::rand, which it seeds at its start: two calls at once would disturb each other, and
  // ranks that are threads would not get the same parts.
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const int status =
      METIS_PartGraphKway(&vertices, &constraints, graph.offsets.data(), graph.others.data(), work.data(),
                          nullptr, nullptr, &wanted, nullptr, nullptr, options, &cut, ranks.data());
  if (status != METIS_OK) throw internal_error("METIS_PartGraphKway failed: " + std::to_string(status));
  std::copy(ranks.begin(), ranks.end(), owners.begin());
  return owners;
}
#else

bool metis_available() { return false; }

std::vector<int32_t> metis_owners(std::span<const SortedEdges>, std::span<const int32_t>, int64_t) {
  throw config_error("ranks.partition", "\"none\" or \"rcb\" in a build without METIS", "\"metis\"",
                     "use \"rcb\", or install libmetis-dev and build with -DMESHGRAD_METIS=ON");
}
#endif

}  // namespace meshgrad
