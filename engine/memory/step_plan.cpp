// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/detail/caching_allocator_heap.h>

#include <algorithm>
#include <numeric>

namespace meshgrad {
namespace {

using Entry = StepPlan::Entry;

constexpr int kMaxRounds = 200;                   // placements of all blocks
constexpr int64_t kMaxComparisons = 100'000'000;  // of lifetimes, in all rounds together
constexpr double kGoodEnough = 1.0005;            // region / peak at which to stop

int64_t peak_bytes(const std::vector<Entry>& entries) {
  std::vector<std::pair<int64_t, int64_t>> changes;  // time, bytes
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

/// Gives each block, in `order`, the lowest offset at which it overlaps no earlier block that lives at the
/// same time. Returns the size of the region.
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
  peak_ = peak_bytes(entries_);
  std::vector<size_t> order;
  for (size_t i = 0; i < entries_.size(); ++i)
    if (entries_[i].dies >= 0) order.push_back(i);
  std::vector<double> urgency(entries_.size());
  for (const size_t i : order) urgency[i] = static_cast<double>(entries_[i].bytes);
  const int64_t comparisons = static_cast<int64_t>(order.size() * order.size()) + 1;
  const int64_t rounds = std::clamp<int64_t>(kMaxComparisons / comparisons, 1, kMaxRounds);
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

// How the allocator records and follows a plan. Offsets are hints: a block is placed at its offset if that is
// free, so that a step that differs from its plan costs memory, never correctness.

void CachingAllocator::begin_step(StepPlan& plan, const Stream& stream) {
  const std::lock_guard lock(mutex_);
  check_internal(step_ == nullptr, "a planned step began inside another");
  Heap& heap = heap_of(stream);
  step_ = std::make_shared<Step>(Step{plan, heap, ++steps_});
  if (!plan.ready()) return plan.start();
  if (plan.bytes() == 0 || plan.bytes() > limit_) return;
  // Allocating and freeing the region as one block maps its memory; the step's blocks are then placed in it.
  const Request request{.stream = &stream,
                        .home = &heap,
                        .requested = plan.bytes(),
                        .bytes = plan.bytes(),
                        .alignment = BlockHeap::kRounding};
  const Found found = find_block(heap, request);
  if (found.block == nullptr) return;
  if (found.heap == &heap) step_->base = found.block->address;
  found.heap->blocks.free(found.block);
  count_free(*found.heap);
}

void CachingAllocator::end_step(bool complete) {
  const std::lock_guard lock(mutex_);
  check_internal(step_ != nullptr, "a planned step ended that had not begun");
  StepPlan& plan = step_->plan;
  step_.reset();
  if (plan.ready()) return;
  if (!complete) return plan.start();
  plan.finish();
  release_unused([] { return false; });
}

void CachingAllocator::Step::place(Request& request) {
  if (!plan.ready()) {
    request.entry = plan.allocated(request.bytes);
    return;
  }
  if (base < 0) return;
  const bool expected = next < plan.entries().size() && plan.entries()[next].bytes == request.bytes;
  if (!expected) {
    base = -1;
    return;
  }
  const StepPlan::Entry& entry = plan.entries()[next++];
  if (entry.dies >= 0) request.address = base + entry.offset;
}

}  // namespace meshgrad
