// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/offsets.h>
#include <meshgrad/nn/partition/part.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace meshgrad {
namespace {

/// A node that crosses a border, its number at its owner, and the rank on the other side.
struct Crossing {
  int32_t rank;
  int64_t number;
  int32_t node;
  auto operator<=>(const Crossing&) const = default;
};

void sort_once(std::vector<Crossing>& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

void check_edges(std::span<const SortedEdges> edge_sets, size_t nodes) {
  for (const SortedEdges& set : edge_sets) {
    const std::string fault = set.receiver_offsets.size() != nodes + 1
                                  ? std::to_string(set.receiver_offsets.size()) + " offsets"
                                  : find_offset_fault(std::span<const int32_t>(set.receiver_offsets),
                                                      static_cast<int64_t>(set.senders.size()));
    if (!fault.empty()) {
      throw invalid_argument("make_part: receiver_offsets",
                             "ascending offsets for " + std::to_string(nodes) + " nodes and " +
                                 std::to_string(set.senders.size()) + " edges",
                             fault);
    }
    for (const int32_t sender : set.senders) {
      if (sender >= 0 && static_cast<size_t>(sender) < nodes) continue;
      throw invalid_argument("make_part: senders", "nodes in 0 .. " + std::to_string(nodes) + " - 1",
                             std::to_string(sender));
    }
  }
}

class PartMaker {
 public:
  PartMaker(std::span<const int32_t> owners, int32_t rank, std::span<const SortedEdges> edge_sets,
            std::span<const int64_t> numbers)
      : owners_(owners),
        numbers_(numbers),
        edge_sets_(edge_sets),
        inner_(owners.size(), true),
        local_(owners.size(), -1) {
    part_.rank = rank;
  }

  Part make() {
    find_crossings();
    number_nodes();
    for (const SortedEdges& set : edge_sets_) part_.edge_sets.push_back(edges_of(set));
    return std::move(part_);
  }

 private:
  Crossing crossing(int32_t rank, int32_t node) const {
    return {rank, numbers_.empty() ? node : numbers_[static_cast<size_t>(node)], node};
  }
  bool owned(size_t node) const { return owners_[node] == part_.rank; }

  void find_crossings() {
    for (const SortedEdges& set : edge_sets_) {
      for (size_t receiver = 0; receiver < owners_.size(); ++receiver) {
        const int32_t to = owners_[receiver];
        for (int32_t e = set.receiver_offsets[receiver]; e < set.receiver_offsets[receiver + 1]; ++e) {
          const int32_t sender = set.senders[static_cast<size_t>(e)];
          const int32_t from = owners_[static_cast<size_t>(sender)];
          if (from == to) continue;
          if (to == part_.rank) {
            ghosts_.push_back(crossing(from, sender));
            inner_[receiver] = false;
          } else if (from == part_.rank) {
            sent_.push_back(crossing(to, sender));
            inner_[static_cast<size_t>(sender)] = false;
          }
        }
      }
    }
    sort_once(ghosts_);
    sort_once(sent_);
  }

  void number_nodes() {
    for (const bool inner : {true, false}) {
      for (size_t node = 0; node < owners_.size(); ++node)
        if (owned(node) && inner_[node] == inner) add_node(static_cast<int32_t>(node));
      (inner ? part_.interior : part_.owned) = static_cast<int64_t>(part_.nodes.size());
    }
    for (const Crossing& ghost : ghosts_) {
      add_node(ghost.node);
      ++neighbour(ghost.rank).ghosts;
    }
    for (const Crossing& sent : sent_) ++neighbour(sent.rank).sent;
    std::sort(part_.neighbours.begin(), part_.neighbours.end(),
              [](const Neighbour& a, const Neighbour& b) { return a.rank < b.rank; });
    for (const Crossing& sent : sent_) part_.sent.push_back(local_[static_cast<size_t>(sent.node)]);
  }
  void add_node(int32_t node) {
    local_[static_cast<size_t>(node)] = static_cast<int32_t>(part_.nodes.size());
    part_.nodes.push_back(node);
  }
  /// Called with ranks in order, first those of ghosts and then those that are sent to.
  Neighbour& neighbour(int32_t rank) {
    if (!part_.neighbours.empty() && part_.neighbours.back().rank == rank) return part_.neighbours.back();
    const auto known = std::find_if(part_.neighbours.begin(), part_.neighbours.end(),
                                    [&](const Neighbour& other) { return other.rank == rank; });
    if (known != part_.neighbours.end()) return *known;
    return part_.neighbours.emplace_back(Neighbour{rank});
  }

  PartEdges edges_of(const SortedEdges& set) const {
    PartEdges edges;
    edges.name = set.name;
    edges.receiver_offsets.push_back(0);
    for (int64_t receiver = 0; receiver < part_.owned; ++receiver) {
      const auto row = static_cast<size_t>(part_.nodes[static_cast<size_t>(receiver)]);
      for (int32_t e = set.receiver_offsets[row]; e < set.receiver_offsets[row + 1]; ++e) {
        edges.rows.push_back(e);
        edges.senders.push_back(local_[static_cast<size_t>(set.senders[static_cast<size_t>(e)])]);
        edges.receivers.push_back(static_cast<int32_t>(receiver));
      }
      edges.receiver_offsets.push_back(static_cast<int32_t>(edges.rows.size()));
    }
    edges.interior = edges.receiver_offsets[static_cast<size_t>(part_.interior)];
    edges.sender_offsets.assign(part_.nodes.size() + 1, 0);
    for (const int32_t sender : edges.senders) ++edges.sender_offsets[static_cast<size_t>(sender) + 1];
    std::partial_sum(edges.sender_offsets.begin(), edges.sender_offsets.end(), edges.sender_offsets.begin());
    std::vector<int32_t> next(edges.sender_offsets.begin(), edges.sender_offsets.end() - 1);
    edges.sender_order.resize(edges.rows.size());
    for (size_t e = 0; e < edges.rows.size(); ++e) {
      int32_t& at = next[static_cast<size_t>(edges.senders[e])];
      edges.sender_order[static_cast<size_t>(at++)] = static_cast<int32_t>(e);
    }
    return edges;
  }

  std::span<const int32_t> owners_;
  std::span<const int64_t> numbers_;
  std::span<const SortedEdges> edge_sets_;
  std::vector<bool> inner_;
  std::vector<int32_t> local_;  // the part's number of each node of the whole mesh, or -1
  std::vector<Crossing> ghosts_, sent_;
  Part part_;
};

}  // namespace

bool Part::has_edges(std::string_view name) const {
  return std::ranges::any_of(edge_sets, [&](const PartEdges& set) { return set.name == name; });
}

const PartEdges& Part::edges(std::string_view name) const {
  for (const PartEdges& set : edge_sets)
    if (set.name == name) return set;
  throw internal_error("a part without the edge set " + std::string(name));
}

Part make_part(std::span<const int32_t> owners, int32_t rank, int64_t parts,
               std::span<const SortedEdges> edge_sets, std::span<const int64_t> numbers) {
  check_owners(owners, static_cast<int64_t>(owners.size()), parts);
  if (rank < 0 || rank >= parts) {
    throw invalid_argument("make_part: rank", "a rank in 0 .. " + std::to_string(parts - 1),
                           std::to_string(rank));
  }
  check_edges(edge_sets, owners.size());
  check_internal(numbers.empty() || numbers.size() == owners.size(), "a number for each node");
  return PartMaker(owners, rank, edge_sets, numbers).make();
}

int64_t exchanged_bytes(const Part& part, int64_t width, DType dtype) {
  return 2 * (static_cast<int64_t>(part.sent.size()) + part.ghosts()) * width * size_of(dtype);
}

Graph part_graph(Runtime& runtime, const Part& part, size_t edge_set) {
  const PartEdges& edges = part.edge_sets.at(edge_set);
  const auto tensor = [&](const std::vector<int32_t>& values, std::string_view name) {
    return Tensor::from<int32_t>(runtime, values, Shape{static_cast<int64_t>(values.size())}, Tag::data,
                                 name);
  };
  Graph graph;
  graph.nodes = static_cast<int64_t>(part.nodes.size());
  graph.owned_nodes = part.owned;
  graph.edges = edges.edges();
  graph.senders = tensor(edges.senders, "senders");
  graph.receivers = tensor(edges.receivers, "receivers");
  graph.receiver_offsets = tensor(edges.receiver_offsets, "receiver_offsets");
  graph.sender_offsets = tensor(edges.sender_offsets, "sender_offsets");
  graph.sender_order = tensor(edges.sender_order, "sender_order");
  return graph;
}

Halo part_halo(Runtime& runtime, const Part& part, std::shared_ptr<HaloExchange> exchange) {
  Halo halo = make_halo(runtime, part.owned, part.neighbours, part.sent, std::move(exchange));
  halo.interior = part.interior;
  if (!runtime.stream().on_gpu() || part.edge_sets.empty()) return halo;
  const PartEdges& edges = part.edge_sets.front();
  const auto rest_of = [&](std::span<const int32_t> values, int64_t first, int64_t from,
                           std::string_view name) {
    std::vector<int32_t> rest(values.begin() + first, values.end());
    for (int32_t& value : rest) value -= static_cast<int32_t>(from);
    return Tensor::from<int32_t>(runtime, rest, Shape{static_cast<int64_t>(rest.size())}, Tag::data, name);
  };
  halo.interior_edges = edges.interior;
  halo.border_receivers = rest_of(edges.receivers, edges.interior, part.interior, "halo: receivers");
  halo.border_offsets =
      rest_of(edges.receiver_offsets, part.interior, edges.interior, "halo: receiver offsets");
  return halo;
}

}  // namespace meshgrad
