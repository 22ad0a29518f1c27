// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/collectives.h>

#include <fmt/format.h>

#include <algorithm>

namespace meshgrad {
namespace {

constexpr std::byte kEnd{2};  // the sender ends: no collective call of ranks that go on has it

/// In round k each rank receives from the one 2^k before it, which has received from as many before itself:
/// after log2(n) rounds from all (Hensgen, Finkel, Manber: "Two algorithms for barrier synchronization",
/// 1988).
std::byte spread(Ranks& ranks, std::byte mine, std::string_view operation) {
  for (int distance = 1; distance < ranks.size(); distance *= 2) {
    std::byte received{};
    const Send send{(ranks.rank() + distance) % ranks.size(), std::span(&mine, 1)};
    const Receive receive{(ranks.rank() + ranks.size() - distance) % ranks.size(), std::span(&received, 1)};
    ranks.exchange(std::span(&send, 1), std::span(&receive, 1), operation);
    if ((received & kEnd) != (mine & kEnd)) {
      const bool ended = (received & kEnd) == kEnd;
      throw rank_error(fmt::format("rank {}: {}", ranks.rank(), operation),
                       ended ? "all ranks to go on" : "all ranks to end",
                       fmt::format("{} of rank {}", ended ? "the end" : "a call", receive.from),
                       "see the error of that rank, or start all ranks with the same program and data");
    }
    mine |= received;
  }
  return mine;
}

template <class T>
std::span<T> slice_of(std::span<T> values, int rank, int size) {
  const RankSlice slice = rank_slice(static_cast<int64_t>(values.size()), rank, size);
  return values.subspan(static_cast<size_t>(slice.begin), static_cast<size_t>(slice.size()));
}

}  // namespace

RankSlice rank_slice(int64_t elements, int rank, int size) {
  const int64_t each = elements / size;
  const int64_t longer = elements % size;
  const int64_t begin = rank * each + std::min<int64_t>(rank, longer);
  return {begin, begin + each + (rank < longer ? 1 : 0)};
}

void barrier(Ranks& ranks, std::string_view operation) { spread(ranks, std::byte{0}, operation); }
void end_barrier(Ranks& ranks) { spread(ranks, kEnd, "end"); }

bool agree(Ranks& ranks, bool mine, std::string_view operation) {
  return spread(ranks, mine ? std::byte{1} : std::byte{0}, operation) != std::byte{0};
}

void broadcast(Ranks& ranks, std::span<std::byte> bytes, int root, std::string_view operation) {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int other = 0; other < ranks.size() && ranks.rank() == root; ++other)
    if (other != root) sends.push_back({other, bytes});
  if (ranks.rank() != root) receives.push_back({root, bytes});
  ranks.exchange(sends, receives, operation);
}

namespace {

Ranks::Exchange start_all_gather(Ranks& ranks, std::span<const std::span<std::byte>> parts,
                                 std::string_view operation) {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int other = 0; other < ranks.size(); ++other) {
    if (other == ranks.rank()) continue;
    sends.push_back({other, parts[static_cast<size_t>(ranks.rank())]});
    receives.push_back({other, parts[static_cast<size_t>(other)]});
  }
  return ranks.start_exchange(sends, receives, operation);
}

}  // namespace

void all_gather_bytes(Ranks& ranks, std::span<const std::span<std::byte>> parts, std::string_view operation) {
  ranks.wait(start_all_gather(ranks, parts, operation));
}

std::vector<std::vector<int64_t>> exchange_lists(Ranks& ranks, const std::vector<std::vector<int64_t>>& lists,
                                                 std::string_view operation) {
  const auto size = static_cast<size_t>(ranks.size()), own = static_cast<size_t>(ranks.rank());
  std::vector<int64_t> lengths(size), here(size);
  for (size_t to = 0; to < size; ++to) lengths[to] = std::ssize(lists[to]);
  here[own] = lengths[own];
  const auto exchange = [&](auto&& sent, auto&& received) {
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (size_t other = 0; other < size; ++other) {
      if (other == own) continue;
      if (!sent(other).empty()) sends.push_back({static_cast<int>(other), std::as_bytes(sent(other))});
      if (!received(other).empty())
        receives.push_back({static_cast<int>(other), std::as_writable_bytes(received(other))});
    }
    ranks.exchange(sends, receives, operation);
  };
  exchange([&](size_t to) { return std::span<const int64_t>(&lengths[to], 1); },
           [&](size_t from) { return std::span(&here[from], 1); });
  std::vector<std::vector<int64_t>> result(size);
  for (size_t from = 0; from < size; ++from) result[from].resize(static_cast<size_t>(here[from]));
  result[own] = lists[own];
  exchange([&](size_t to) { return std::span<const int64_t>(lists[to]); },
           [&](size_t from) { return std::span(result[from]); });
  return result;
}

template <class T>
SlicesInFlight<T> start_reduce_scatter(Ranks& ranks, std::span<T> values, std::string_view operation) {
  const size_t own = slice_of(values, ranks.rank(), ranks.size()).size();
  SlicesInFlight<T> flight{values, std::vector<T>(static_cast<size_t>(ranks.size() - 1) * own), {}};
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int other = 0; other < ranks.size(); ++other) {
    if (other == ranks.rank()) continue;
    const std::span<T> place = std::span(flight.received).subspan(receives.size() * own, own);
    receives.push_back({other, std::as_writable_bytes(place)});
    sends.push_back({other, std::as_bytes(slice_of(values, other, ranks.size()))});
  }
  flight.exchange = ranks.start_exchange(sends, receives, operation);
  return flight;
}

template <class T>
void finish_reduce_scatter(Ranks& ranks, SlicesInFlight<T> flight) {
  ranks.wait(std::move(flight.exchange));
  const std::span<T> own = slice_of(flight.values, ranks.rank(), ranks.size());
  // ((rank 0 + rank 1) + rank 2) + ..., with this rank's own values at their place.
  std::vector<T> sum;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const size_t place = static_cast<size_t>(rank < ranks.rank() ? rank : rank - 1) * own.size();
    const std::span<const T> values_of = rank == ranks.rank()
                                             ? std::span<const T>(own)
                                             : std::span<const T>(flight.received).subspan(place, own.size());
    if (rank == 0) {
      sum.assign(values_of.begin(), values_of.end());
    } else {
      for (size_t i = 0; i < own.size(); ++i) sum[i] += values_of[i];
    }
  }
  std::copy(sum.begin(), sum.end(), own.begin());
}

template <class T>
void reduce_scatter(Ranks& ranks, std::span<T> values, std::string_view operation) {
  finish_reduce_scatter(ranks, start_reduce_scatter(ranks, values, operation));
}

template <class T>
Ranks::Exchange start_all_gather_slices(Ranks& ranks, std::span<T> values, std::string_view operation) {
  std::vector<std::span<std::byte>> parts;
  for (int rank = 0; rank < ranks.size(); ++rank)
    parts.push_back(std::as_writable_bytes(slice_of(values, rank, ranks.size())));
  return start_all_gather(ranks, parts, operation);
}

template <class T>
void all_gather_slices(Ranks& ranks, std::span<T> values, std::string_view operation) {
  ranks.wait(start_all_gather_slices(ranks, values, operation));
}

template <class T>
void all_reduce(Ranks& ranks, std::span<T> values, std::string_view operation) {
  reduce_scatter(ranks, values, operation);
  all_gather_slices(ranks, values, operation);
}

template SlicesInFlight<float> start_reduce_scatter(Ranks&, std::span<float>, std::string_view);
template SlicesInFlight<double> start_reduce_scatter(Ranks&, std::span<double>, std::string_view);
template void finish_reduce_scatter(Ranks&, SlicesInFlight<float>);
template void finish_reduce_scatter(Ranks&, SlicesInFlight<double>);
template Ranks::Exchange start_all_gather_slices(Ranks&, std::span<float>, std::string_view);
template Ranks::Exchange start_all_gather_slices(Ranks&, std::span<double>, std::string_view);
template void reduce_scatter(Ranks&, std::span<float>, std::string_view);
template void reduce_scatter(Ranks&, std::span<double>, std::string_view);
template void reduce_scatter(Ranks&, std::span<int64_t>, std::string_view);
template void all_gather_slices(Ranks&, std::span<float>, std::string_view);
template void all_gather_slices(Ranks&, std::span<double>, std::string_view);
template void all_gather_slices(Ranks&, std::span<int64_t>, std::string_view);
template void all_reduce(Ranks&, std::span<float>, std::string_view);
template void all_reduce(Ranks&, std::span<double>, std::string_view);
template void all_reduce(Ranks&, std::span<int64_t>, std::string_view);

}  // namespace meshgrad
