// SPDX-License-Identifier: Apache-2.0
#include "allocator_recount.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

namespace meshgrad::test {
namespace {

using Segment = MemorySnapshot::Segment;
using Block = MemorySnapshot::Block;
using State = MemorySnapshot::State;

constexpr int64_t kSlab = int64_t{2} << 20;

/// Current values of MemoryCounters.
struct Sums {
  int64_t requested = 0, allocated = 0, active = 0, reserved = 0, inactive_split = 0;
};

class Recount {
 public:
  explicit Recount(const MemorySnapshot& snapshot) : snapshot_(snapshot), stats_(snapshot.stats) {
    for (const MemoryStats::OfStream& of : stats_.by_stream) by_stream_[of.stream];
    for (const Segment& segment : snapshot.segments) segments_.push_back(&segment);
    std::sort(segments_.begin(), segments_.end(),
              [](const Segment* a, const Segment* b) { return a->address < b->address; });
    const Segment* before = nullptr;
    for (const Segment* segment : segments_) {
      if (before != nullptr && before->address + before->bytes > segment->address)
        wrong("segments overlap", segment->address);
      count(*segment, before != nullptr && before->range == segment->range);
      before = segment;
    }
    count_pending();
    compare_all();
  }
  const std::string& text() const { return text_; }

 private:
  void wrong(const char* what, int64_t address) { text_ += fmt::format("{} at {:#x}\n", what, address); }

  void expect(const std::string& name, int64_t counted, int64_t expected) {
    if (counted != expected) text_ += fmt::format("{} is {}, by recount {}\n", name, counted, expected);
  }

  void count(const Segment& segment, bool same_range_as_before) {
    if (segment.range > segment.address) wrong("segment before its range", segment.address);
    if (same_range_as_before || segment.range < segment.address) ++holes_;
    const bool in_use = std::any_of(segment.blocks.begin(), segment.blocks.end(),
                                    [](const Block& block) { return block.state == State::used; });
    int64_t end = segment.address, slab_run = 0;
    bool free_before = false;
    for (const Block& block : segment.blocks) {
      if (block.address != end || block.bytes <= 0 || block.bytes % 512 != 0) wrong("no tile", block.address);
      end = block.address + block.bytes;
      // A slab is a part of one run of small blocks, and small neighbours may belong to two slabs.
      if (!block.small && slab_run % kSlab != 0) wrong("broken slab", block.address);
      slab_run = block.small ? slab_run + block.bytes : 0;
      const bool free = block.state == State::free;
      if (free && !block.small && free_before) wrong("unmerged neighbour", block.address);
      free_before = free && !block.small;
      count(segment, block, in_use);
    }
    if (slab_run % kSlab != 0 || end != segment.address + segment.bytes) wrong("bad end", end);
    for (Sums* sums : {&all_, &by_stream_[segment.stream]}) sums->reserved += segment.bytes;
    count_pinned(segment);
  }

  void count(const Segment& segment, const Block& block, bool segment_in_use) {
    Sums& pool = block.small ? small_ : large_;
    pool.reserved += block.bytes;
    if (block.state == State::free) {
      if (segment_in_use)
        for (Sums* sums : {&all_, &pool, &by_stream_[segment.stream]}) sums->inactive_split += block.bytes;
      largest_free_ = std::max(largest_free_, block.bytes);
      free_.emplace_hint(free_.end(), block.address, block.address + block.bytes);
      if (block.small && !segment_in_use) wrong("slab of nothing", block.address);
      return;
    }
    ++live_;
    if (block.bytes != std::max<int64_t>((block.requested + 511) / 512, 1) * 512)
      wrong("block of the wrong size", block.address);
    for (Sums* sums : {&all_, &pool, &by_stream_[segment.stream], &by_tag_[static_cast<size_t>(block.tag)]}) {
      sums->requested += block.requested;
      sums->allocated += block.bytes;
      sums->active += block.bytes;
    }
  }

  /// Free bytes of mappings in which something is used.
  void count_pinned(const Segment& segment) {
    if (segment.mappings.empty() || segment.mappings[0] != segment.address)
      wrong("mapping before its segment", segment.address);
    auto block = segment.blocks.begin();
    for (size_t i = 0; i < segment.mappings.size(); ++i) {
      const int64_t begin = segment.mappings[i];
      const int64_t end =
          i + 1 < segment.mappings.size() ? segment.mappings[i + 1] : segment.address + segment.bytes;
      if (begin >= end) wrong("mapping beyond its segment", begin);
      int64_t used = 0;
      for (; block != segment.blocks.end() && block->address < end; ++block) {
        const int64_t until = std::min(end, block->address + block->bytes);
        if (block->state == State::used) used += until - std::max(begin, block->address);
        if (block->address + block->bytes > end) break;  // it goes on in the next mapping
      }
      if (used > 0) pinned_ += end - begin - used;
    }
  }

  void count_pending() {
    std::map<int64_t, int64_t> seen;
    for (const MemorySnapshot::Pending& pending : snapshot_.pending) {
      const int64_t end = pending.address + pending.bytes;
      // It may lie across two free blocks, of which one has become a slab.
      auto free = free_.upper_bound(pending.address);
      int64_t until = free == free_.begin() ? pending.address : (--free)->second;
      while (until < end && ++free != free_.end() && free->first == until) until = free->second;
      if (pending.bytes <= 0 || until < end) wrong("pending, but not free", pending.address);
      const auto next = seen.lower_bound(pending.address);
      if ((next != seen.end() && next->first < end) ||
          (next != seen.begin() && std::prev(next)->second > pending.address))
        wrong("pending twice", pending.address);
      seen.emplace(pending.address, end);
      for (Sums* sums : {&all_, pending.small ? &small_ : &large_, &by_stream_[pending.stream],
                         &by_tag_[static_cast<size_t>(pending.tag)]})
        sums->active += pending.bytes;
    }
  }

  void compare(const std::string& part, const MemoryCounters& counters, const Sums& sums) {
    const std::pair<const MemoryCounter*, int64_t> pairs[] = {
        {&counters.requested, sums.requested},
        {&counters.allocated, sums.allocated},
        {&counters.active, sums.active},
        {&counters.reserved, sums.reserved},
        {&counters.inactive_split, sums.inactive_split}};
    constexpr const char* kNames[] = {"requested", "allocated", "active", "reserved", "inactive_split"};
    for (size_t i = 0; i < std::size(pairs); ++i) {
      const MemoryCounter& counter = *pairs[i].first;
      if (counter.current != pairs[i].second) expect(part + kNames[i], counter.current, pairs[i].second);
      if (counter.peak < counter.current || counter.total < counter.current)
        text_ += fmt::format("{}{} is above its peak or its total\n", part, kNames[i]);
    }
  }

  void compare_all() {
    compare("", stats_, all_);
    compare("small ", stats_.small, small_);
    compare("large ", stats_.large, large_);
    for (int tag = 0; tag < kTagCount; ++tag)
      compare(std::string(name_of(static_cast<Tag>(tag))) + " ", stats_.by_tag[static_cast<size_t>(tag)],
              by_tag_[static_cast<size_t>(tag)]);
    expect("streams", static_cast<int64_t>(stats_.by_stream.size()), static_cast<int64_t>(by_stream_.size()));
    for (const MemoryStats::OfStream& of : stats_.by_stream)
      compare(fmt::format("stream {} ", of.stream), of.counters, by_stream_[of.stream]);
    expect("pinned", stats_.pinned.current, pinned_);
    expect("largest_free", stats_.largest_free, largest_free_);
    expect("holes", stats_.holes, holes_);
    expect("live_allocations", stats_.live_allocations, live_);
    expect("free_bytes", stats_.free_bytes(), all_.reserved - all_.allocated);
  }

  const MemorySnapshot& snapshot_;
  const MemoryStats& stats_;
  std::string text_;
  std::vector<const Segment*> segments_;
  Sums all_, small_, large_;
  std::array<Sums, kTagCount> by_tag_;
  std::map<int, Sums> by_stream_;
  std::map<int64_t, int64_t> free_;  // address and end of each free block
  int64_t pinned_ = 0, largest_free_ = 0, holes_ = 0, live_ = 0;
};

}  // namespace

std::string recount(const MemorySnapshot& snapshot) { return Recount(snapshot).text(); }

std::string recount(const MemorySnapshot& snapshot, const TestMemorySource& source) {
  std::string text = recount(snapshot);
  if (snapshot.stats.reserved.current != source.mapped_bytes())
    text += fmt::format("reserved is {}, by the source {}\n", snapshot.stats.reserved.current,
                        source.mapped_bytes());
  std::vector<std::pair<char*, int64_t>> mappings;
  for (const Segment& segment : snapshot.segments) {
    for (size_t i = 0; i < segment.mappings.size(); ++i) {
      const int64_t begin = segment.mappings[i];
      const int64_t end =
          i + 1 < segment.mappings.size() ? segment.mappings[i + 1] : segment.address + segment.bytes;
      mappings.emplace_back(reinterpret_cast<char*>(begin), end - begin);
    }
  }
  std::sort(mappings.begin(), mappings.end());
  if (mappings != source.mappings()) text += "the source has mapped something else\n";
  const TestMemorySource::Calls calls = source.calls();
  const int64_t all = calls.reserve + calls.map + calls.unmap + calls.release;
  if (snapshot.stats.source_calls != all)
    text += fmt::format("source_calls is {}, by the source {}\n", snapshot.stats.source_calls, all);
  for (const std::string& violation : source.violations()) text += violation + "\n";
  return text;
}

}  // namespace meshgrad::test
