// SPDX-License-Identifier: Apache-2.0
// Operations of all ranks together, above Ranks::exchange. Every rank calls them with the same sizes; all
// throw RankError. Sums are made in the order of the ranks, so that they are the same in every run.
#pragma once
#include <meshgrad/engine/ranks/ranks.h>

#include <type_traits>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Returns when every rank has called it.
void barrier(Ranks& ranks, std::string_view operation);
/// The last one. Ranks that are in agree() or barrier() instead throw RankError, and so do those that end.
void end_barrier(Ranks& ranks);

/// Whether any rank said so.
bool agree(Ranks& ranks, bool mine, std::string_view operation);

/// The root's bytes, on every rank.
void broadcast(Ranks& ranks, std::span<std::byte> bytes, int root, std::string_view operation);

/// parts[r] gets the bytes of rank r; this rank's own are there already.
void all_gather_bytes(Ranks& ranks, std::span<const std::span<std::byte>> parts, std::string_view operation);

/// One value of each rank, in their order.
template <class T>
[[gnu::visibility("default")]] std::vector<T> all_gather(Ranks& ranks, const T& mine,
                                                         std::string_view operation) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> values(static_cast<size_t>(ranks.size()));
  values[static_cast<size_t>(ranks.rank())] = mine;
  std::vector<std::span<std::byte>> parts;
  for (T& value : values) parts.push_back(std::as_writable_bytes(std::span(&value, 1)));
  all_gather_bytes(ranks, parts, operation);
  return values;
}

/// lists[r] goes to rank r; the result's list r is what rank r sent here. One list a rank; this rank's own
/// comes back.
std::vector<std::vector<int64_t>> exchange_lists(Ranks& ranks, const std::vector<std::vector<int64_t>>& lists,
                                                 std::string_view operation);

/// The rank's part of an array that all ranks share out: elements [begin, end).
struct RankSlice {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};
/// Consecutive slices; the first ones have one element more where the number does not divide.
RankSlice rank_slice(int64_t elements, int rank, int size);

/// The first half of reduce_scatter: its messages are in flight. `values` stay until the second.
template <class T>
struct SlicesInFlight {
  std::span<T> values;
  std::vector<T> received;  // this rank's slice of each other rank
  Ranks::Exchange exchange;
};
template <class T>
[[gnu::visibility("default")]] SlicesInFlight<T> start_reduce_scatter(Ranks& ranks, std::span<T> values,
                                                                      std::string_view operation);
template <class T>
[[gnu::visibility("default")]] void finish_reduce_scatter(Ranks& ranks, SlicesInFlight<T> flight);

/// Afterwards this rank's slice of `values` holds the sum of all ranks'; the rest is as it was. T: float,
/// double, int64_t.
template <class T>
[[gnu::visibility("default")]] void reduce_scatter(Ranks& ranks, std::span<T> values,
                                                   std::string_view operation);

/// Afterwards `values` holds every rank's own slice.
template <class T>
[[gnu::visibility("default")]] void all_gather_slices(Ranks& ranks, std::span<T> values,
                                                      std::string_view operation);
/// The same without waiting: Ranks::wait.
template <class T>
[[gnu::visibility("default")]] Ranks::Exchange start_all_gather_slices(Ranks& ranks, std::span<T> values,
                                                                       std::string_view operation);

/// Returns what `body` does, which exchanges messages: where it throws, this rank leaves.
template <class Body>
auto or_leave(Ranks& ranks, Body&& body) {
  try {
    return body();
  } catch (...) {
    ranks.leave();
    throw;
  }
}

/// Afterwards `values` holds the sum of all ranks', the same bits on each. Sends 2 (n - 1) / n of the array.
template <class T>
[[gnu::visibility("default")]] void all_reduce(Ranks& ranks, std::span<T> values, std::string_view operation);

}  // namespace meshgrad
#pragma GCC visibility pop
