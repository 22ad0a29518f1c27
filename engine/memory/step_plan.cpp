// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/step_plan.h>

#include <algorithm>
#include <numeric>

namespace meshgrad {
namespace {

using Entry = StepPlan::Entry;

constexpr int kRounds = 200;            // of placing everything anew
constexpr int64_t kWork = 100'000'000;  // comparisons of lifetimes in all rounds together
constexpr double kGoodEnough = 1.0005;  // of the region to what must live at once

int64_t most_alive(const std::vector<Entry>& entries) {
  std::vector<std::pair<int64_t, int64_t>> changes;  // when, by how much
  for (const Entry& entry : entries) {
    if (entry.dies < 0) continue;
    changes.emplace_back(entry.born, entry.bytes);
    changes.emplace_back(entry.dies, -entry.bytes);
  }
  std::sort(changes.begin(), changes.end());
  int64_t alive = 0, most = 0;
  for (const auto& [time, bytes] : changes) most = std::max(most, alive += bytes);
  return most;
}

/// Gives each block of `order` the lowest offset at which it meets none of those before it; returns where the
/// highest ends.
int64_t place(std::vector<Entry>& entries, const std::vector<size_t>& order) {
  int64_t end = 0;
  std::vector<size_t> placed;  // by offset
  for (const size_t number : order) {
    Entry& entry = entries[number];
    int64_t offset = 0;
    for (const size_t other : placed) {
      const Entry& there = entries[other];
      if (there.dies < entry.born || entry.dies < there.born) continue;
      if (there.offset >= offset + entry.bytes) break;
      offset = std::max(offset, there.offset + there.bytes);
    }
    entry.offset = offset;
    end = std::max(end, offset + entry.bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), offset,
                                   [&](int64_t at, size_t other) { return at < entries[other].offset; }),
                  number);
  }
  return end;
}

}  // namespace

int64_t StepPlan::allocated(int64_t bytes) {
  entries_.push_back({.bytes = bytes, .born = clock_++});
  return static_cast<int64_t>(entries_.size()) - 1;
}

void StepPlan::finish() {
  peak_ = most_alive(entries_);
  std::vector<size_t> order;
  for (size_t i = 0; i < entries_.size(); ++i)
    if (entries_[i].dies >= 0) order.push_back(i);
  std::vector<double> urgency(entries_.size());
  for (const size_t i : order) urgency[i] = static_cast<double>(entries_[i].bytes);
  const int64_t work = static_cast<int64_t>(order.size() * order.size()) + 1;
  const int64_t rounds = std::clamp<int64_t>(kWork / work, 1, kRounds);
  std::vector<Entry> tried = entries_;
  for (int64_t round = 0; round < rounds; ++round) {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return urgency[a] > urgency[b]; });
    const int64_t end = place(tried, order);
    if (round == 0 || end < bytes_) {
      bytes_ = end;
      entries_ = tried;
    }
    if (static_cast<double>(bytes_) <= kGoodEnough * static_cast<double>(peak_)) break;
    for (const size_t i : order)
      if (tried[i].offset + tried[i].bytes > peak_) urgency[i] *= 1.5;
  }
  ready_ = true;
}

}  // namespace meshgrad
