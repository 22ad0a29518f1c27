// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/train/embed/ghost_rows.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <utility>

namespace meshgrad {
namespace {

constexpr const char* kOperation = "rows of ghost nodes";

void check_ghosts(const Ranks& ranks, const GivenPart& part) {
  for (size_t i = 0; i < part.ghost_owner.size(); ++i) {
    const int32_t owner = part.ghost_owner[i];
    if (owner >= 0 && owner < ranks.size() && owner != ranks.rank()) continue;
    throw data_error(fmt::format("mesh in parts: owner of ghost {}", i),
                     fmt::format("another rank among 0 .. {}", ranks.size() - 1), fmt::format("{}", owner),
                     "give the rank that has the node as its own");
  }
}

using RowLists = std::vector<std::vector<int64_t>>;  // by rank
template <class T>
using RowsOfRanks = std::vector<std::vector<T>>;  // likewise

/// Sends the rows outgoing[r] of `values` to rank r; gives what each sent for the rows incoming[r].
template <class T>
RowsOfRanks<T> exchange_rows(Ranks& ranks, const RowLists& outgoing, const RowLists& incoming,
                             std::span<const T> values, size_t width) {
  RowsOfRanks<T> sent(outgoing.size()), received(incoming.size());
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (size_t rank = 0; rank < sent.size(); ++rank) {
    for (const int64_t node : outgoing[rank]) {
      const auto row = values.subspan(static_cast<size_t>(node) * width, width);
      sent[rank].insert(sent[rank].end(), row.begin(), row.end());
    }
    received[rank].resize(incoming[rank].size() * width);
    const int other = static_cast<int>(rank);
    if (!sent[rank].empty()) sends.push_back({other, std::as_bytes(std::span(sent[rank]))});
    if (!received[rank].empty())
      receives.push_back({other, std::as_writable_bytes(std::span(received[rank]))});
  }
  ranks.exchange(sends, receives, kOperation);
  return received;
}

/// Calls use(row received, row of `values`) for the rows of each rank in turn.
template <class T, class Use>
void visit_rows(const RowLists& rows, const RowsOfRanks<T>& received, std::span<T> values, size_t width,
                const Use& use) {
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    for (size_t i = 0; i < rows[rank].size(); ++i) {
      use(std::span(received[rank]).subspan(i * width, width),
          values.subspan(static_cast<size_t>(rows[rank][i]) * width, width));
    }
  }
}

/// Throws DataError on every rank unless each two agree on the rows between them. `numbers` are those of
/// nodes at their owners.
void check_borders(Ranks& ranks, const Part& part, std::span<const int64_t> numbers) {
  std::vector<std::vector<int64_t>> expected(static_cast<size_t>(ranks.size())), sent(expected);
  const auto number_of = [&](int32_t node) {
    return numbers[static_cast<size_t>(part.nodes[static_cast<size_t>(node)])];
  };
  auto ghost = static_cast<int32_t>(part.owned);
  auto from = part.sent.begin();
  for (const Neighbour& neighbour : part.neighbours) {
    const auto rank = static_cast<size_t>(neighbour.rank);
    for (int64_t i = 0; i < neighbour.ghosts; ++i) expected[rank].push_back(number_of(ghost++));
    for (int64_t i = 0; i < neighbour.sent; ++i) sent[rank].push_back(number_of(*from++));
  }
  const std::vector<std::vector<int64_t>> wanted = exchange_lists(ranks, expected, "ghosts of parts");
  const auto other = std::mismatch(wanted.begin(), wanted.end(), sent.begin()).first - wanted.begin();
  const bool fits = other == ranks.size();
  if (!agree(ranks, !fits, "ghosts of parts")) return;
  constexpr const char* kFix =
      "give each rank every cell or edge that has one of its own nodes, and each ghost its owner and number";
  const std::vector<int64_t> others = all_gather(ranks, int64_t{other}, "ghosts of parts");
  if (fits) {
    const auto first = std::ranges::find_if(others, [&](int64_t rank) { return rank != ranks.size(); });
    throw data_error("mesh in parts", "ranks that agree on the nodes at their borders",
                     fmt::format("ranks {} and {} with different lists", first - others.begin(), *first),
                     kFix);
  }
  const auto index = static_cast<size_t>(other);
  throw data_error(fmt::format("mesh in parts: ranks {} and {}", ranks.rank(), other),
                   fmt::format("the {} nodes that edges of rank {} make neighbours of rank {}",
                               sent[index].size(), ranks.rank(), other),
                   fmt::format("{} ghosts there, the first different one at {}", wanted[index].size(),
                               std::ranges::mismatch(wanted[index], sent[index]).in1 - wanted[index].begin()),
                   kFix);
}

/// This rank's part of the union of meshes; given[i] is of the mesh with index i.
Part make_given_part(std::span<const GivenPart* const> given, std::span<const MeshView> meshes,
                     std::span<const SortedEdges> edges, Ranks& ranks) {
  int64_t own_edges = 0;
  for (const SortedEdges& set : edges) own_edges += std::ssize(set.senders);
  check_some_edge(ranks, own_edges);
  std::vector<int32_t> owners;
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < meshes.size(); ++i) {
    const GivenPart& part = *given[i];
    const int64_t first = static_cast<int64_t>(i) << 32U;
    for (int64_t node = 0; node < part.owned(meshes[i]); ++node) {
      owners.push_back(ranks.rank());
      numbers.push_back(first + node);
    }
    owners.insert(owners.end(), part.ghost_owner.begin(), part.ghost_owner.end());
    for (const int32_t number : part.ghost_number) numbers.push_back(first + number);
  }
  Part whole = make_part(owners, ranks.rank(), ranks.size(), edges, numbers);
  check_borders(ranks, whole, numbers);
  return whole;
}

}  // namespace

void check_some_edge(Ranks& ranks, int64_t own_edges) {
  const auto edges = or_leave(ranks, [&] { return all_gather(ranks, own_edges, "edges of parts"); });
  if (std::ranges::count(edges, 0) < ranks.size()) return;
  throw data_error("mesh in parts", "a mesh with at least one edge", "no edge on any rank",
                   "give each rank every cell or edge that has one of its own nodes");
}

PartMaker given_parts(std::vector<GivenPart> given, Ranks& ranks) {
  return [given = std::move(given), &ranks](std::span<const MeshView> meshes,
                                            std::span<const SortedEdges> edges, int64_t) {
    std::vector<const GivenPart*> parts;
    for (const MeshView& mesh : meshes) parts.push_back(&given.at(static_cast<size_t>(mesh.index)));
    return make_given_part(parts, meshes, edges, ranks);
  };
}

void check_borders(const MeshView& mesh, const GivenPart& given, Ranks& ranks) {
  const SortedEdges edges{mesh.senders, mesh.receiver_offsets, kMeshEdges};
  const GivenPart* const part = &given;
  make_given_part({&part, 1}, {&mesh, 1}, {&edges, 1}, ranks);
}

GivenPart given_part(const MeshArrays& mesh, int dim) {
  if (mesh.ghost_owner.size() != mesh.ghost_number.size()) {
    throw invalid_argument("mesh: ghost_number", fmt::format("{}, as ghost_owner", mesh.ghost_owner.size()),
                           fmt::format("{}", mesh.ghost_number.size()));
  }
  if (mesh.ghost_owner.size() * static_cast<size_t>(dim) > mesh.positions.size()) {
    throw invalid_argument("mesh: ghost_owner", "as many ghosts as the last nodes of the mesh, or fewer",
                           fmt::format("{}", mesh.ghost_owner.size()));
  }
  const auto list = [](const Integers& numbers) {
    return std::vector<int32_t>(numbers.values().begin(), numbers.values().end());
  };
  return {list(mesh.ghost_owner), list(mesh.ghost_number)};
}

std::vector<int32_t> node_numbers(Ranks& ranks, int64_t owned, const GivenPart& part) {
  std::vector<int64_t> first;  // by rank
  int64_t before = 0;
  for (const int64_t nodes : all_gather(ranks, owned, "nodes of ranks"))
    first.push_back(std::exchange(before, before + nodes));
  std::vector<int32_t> numbers;
  for (int64_t i = 0; i < owned; ++i)
    numbers.push_back(static_cast<int32_t>(first[static_cast<size_t>(ranks.rank())] + i));
  for (size_t i = 0; i < part.ghost_owner.size(); ++i)
    numbers.push_back(
        static_cast<int32_t>(first[static_cast<size_t>(part.ghost_owner[i])] + part.ghost_number[i]));
  return numbers;
}

void on_all_ranks(Ranks& ranks, const std::function<void()>& body, std::string_view place) {
  std::exception_ptr error;
  try {
    body();
  } catch (...) {
    error = std::current_exception();
  }
  if (!or_leave(ranks, [&] { return agree(ranks, error != nullptr, place); })) return;
  const auto failed = or_leave(ranks, [&] { return all_gather(ranks, uint8_t{error != nullptr}, place); });
  if (error != nullptr) std::rethrow_exception(error);
  throw data_error(place, "no error on any rank",
                   fmt::format("an error on rank {}", std::ranges::find(failed, 1) - failed.begin()),
                   "see the error of that rank");
}

GhostRows::GhostRows(Ranks& ranks, int64_t owned, const GivenPart& part)
    : owned_(owned), ghosts_(static_cast<size_t>(ranks.size())) {
  std::vector<std::vector<int64_t>> wanted(ghosts_.size());
  on_all_ranks(ranks, [&] {
    check_ghosts(ranks, part);
    for (size_t i = 0; i < part.ghost_owner.size(); ++i) {
      const auto owner = static_cast<size_t>(part.ghost_owner[i]);
      wanted[owner].push_back(part.ghost_number[i]);
      ghosts_[owner].push_back(owned_ + static_cast<int64_t>(i));
    }
  });
  sent_ = exchange_lists(ranks, wanted, kOperation);
  on_all_ranks(ranks, [&] {
    for (size_t rank = 0; rank < sent_.size(); ++rank) {
      const auto outside =
          std::ranges::find_if(sent_[rank], [&](int64_t number) { return number < 0 || number >= owned_; });
      if (outside == sent_[rank].end()) continue;
      throw data_error(fmt::format("mesh in parts: ghost of rank {}", rank),
                       fmt::format("one of the {} nodes that rank {} owns", owned_, ranks.rank()),
                       fmt::format("number {}", *outside),
                       "a ghost's number is its row among the nodes of its owner");
    }
  });
}

template <class T>
void GhostRows::fill(Ranks& ranks, std::span<T> values, size_t width) const {
  const auto incoming = exchange_rows<T>(ranks, sent_, ghosts_, values, width);
  visit_rows<T>(ghosts_, incoming, values, width,
                [](std::span<const T> from, std::span<T> to) { std::ranges::copy(from, to.begin()); });
}

template void GhostRows::fill(Ranks&, std::span<float>, size_t) const;
template void GhostRows::fill(Ranks&, std::span<double>, size_t) const;

void GhostRows::add(Ranks& ranks, std::span<double> values, size_t width) const {
  const auto incoming = exchange_rows<double>(ranks, ghosts_, sent_, values, width);
  visit_rows<double>(sent_, incoming, values, width, [](std::span<const double> from, std::span<double> to) {
    std::ranges::transform(from, to, to.begin(), std::plus<>());
  });
}

std::string ghost_place_warning(Ranks& ranks, const GhostRows& rows, const GivenPart& part,
                                const Numbers& positions, int dim) {
  const auto width = static_cast<size_t>(dim);
  std::vector<double> there;
  for (size_t i = 0; i < positions.size(); ++i) there.push_back(positions[i]);
  rows.fill(ranks, std::span(there), width);
  double size = 0;
  for (size_t i = width; i < positions.size(); ++i)
    size = std::max(size, std::abs(positions[i] - positions[i % width]));
  const size_t first = static_cast<size_t>(rows.owned()) * width;
  for (size_t i = first; i < positions.size(); ++i) {
    if (std::abs(positions[i] - there[i]) <= 1e-5 * size) continue;
    const size_t ghost = (i - first) / width;
    return fmt::format(
        "mesh in parts: ghost {} is not where rank {}, which owns it, has the node; edges to it follow the "
        "ghost's position here, and the owner's there",
        ghost, part.ghost_owner[ghost]);
  }
  return {};
}

}  // namespace meshgrad
