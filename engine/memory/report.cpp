// SPDX-License-Identifier: Apache-2.0
// The allocator in words: what is where, and what to do when there is no more.
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/memory/detail/caching_allocator_heap.h>

#include <fmt/format.h>

#include <algorithm>

namespace meshgrad {
namespace {

constexpr size_t kOwners = 5;

std::string totals(const MemoryStats& stats) {
  std::string text = fmt::format(
      "  capacity {:.1f} MiB, reserved {:.1f} MiB, allocated {:.1f} MiB, free {:.1f} MiB within reserved and "
      "{:.1f} MiB beyond\n",
      mebibytes(stats.capacity), mebibytes(stats.reserved.current), mebibytes(stats.allocated.current),
      mebibytes(stats.free_bytes()), mebibytes(stats.capacity - stats.reserved.current));
  text += fmt::format(
      "  fragmentation: largest free block {:.1f} MiB ({:.0f} % of the free bytes lie elsewhere), "
      "{:.1f} MiB free but pinned by neighbours in use, {:.1f} MiB lost to rounding, {} holes\n",
      mebibytes(stats.largest_free), 100.0 * stats.external_fragmentation(), mebibytes(stats.pinned.current),
      mebibytes(stats.internal_fragmentation()), stats.holes);
  return text;
}

}  // namespace

std::string CachingAllocator::report() const {
  const std::lock_guard lock(mutex_);
  return report_locked();
}

std::string CachingAllocator::report_locked() const {
  std::string text = totals(stats_locked());
  for (int tag = 0; tag < kTagCount; ++tag) {
    const int64_t bytes = stats_.by_tag[static_cast<size_t>(tag)].allocated.current;
    if (bytes > 0)
      text += fmt::format("  {:<14}{:>12.1f} MiB\n", name_of(static_cast<Tag>(tag)), mebibytes(bytes));
  }
  std::map<std::pair<uint32_t, Tag>, int64_t> owners;
  for (const auto& heap : heaps_) {
    for (const Block* block : heap->blocks.ranges()) {
      for (; block != nullptr; block = block->next) {
        if (block->state != Block::State::used) continue;
        const auto& live = *static_cast<const Live*>(block->owner);
        owners[{live.name, live.tag}] += block->bytes;
      }
    }
  }
  std::vector<std::pair<int64_t, std::string>> largest;
  for (const auto& [owner, bytes] : owners) {
    const std::string& name = names_[owner.first];
    largest.emplace_back(bytes,
                         fmt::format("{} ({})", name.empty() ? "unnamed" : name, name_of(owner.second)));
  }
  std::sort(largest.rbegin(), largest.rend());
  for (size_t i = 0; i < std::min(kOwners, largest.size()); ++i) {
    text += fmt::format("  largest owner {}: {:.1f} MiB in {}\n", i + 1, mebibytes(largest[i].first),
                        largest[i].second);
  }
  return text;
}

/// What OutOfMemory says.
std::string CachingAllocator::shortage(const Request& request) const {
  const std::string& name = names_[request.name];
  std::string text = fmt::format("[allocate{}{}] needed {} bytes for {} ({:.1f} MiB), and {} has no room\n{}",
                                 name.empty() ? "" : " ", name, request.requested, name_of(request.tag),
                                 mebibytes(request.requested), name_of(device()), report_locked());
  std::vector<std::string> advice = advice_ ? advice_() : std::vector<std::string>();
  if (advice.empty() && limit_ < source_->capacity()) advice.push_back("raise the memory limit");
  if (advice.empty()) advice.push_back("free what is not needed, or use a device with more memory");
  text += advice.size() == 1 ? "fix: " + advice[0] : "fix: in this order,";
  for (size_t i = 0; advice.size() > 1 && i < advice.size(); ++i)
    text += fmt::format("\n  {}. {}", i + 1, advice[i]);
  return text;
}

}  // namespace meshgrad
