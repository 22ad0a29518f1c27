// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/tools/extras/history_timeline.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>

namespace meshgrad {
namespace {

using Kind = MemoryEvent::Kind;
using MemorySample = MemoryTimeline::Sample;

// Slices of time, each of which keeps at most four samples.
constexpr int64_t kTimeSlices = 800;

bool is_complete(const MemoryHistory& history) { return history.dropped == 0 && !history.events.empty(); }

/// Applies the event; with `sign` -1 undoes it.
void apply(MemorySample& sample, const MemoryEvent& event, int64_t sign) {
  int64_t& in_use = sample.in_use[static_cast<size_t>(event.tag)];
  if (event.kind == Kind::alloc) in_use += sign * event.bytes;
  if (event.kind == Kind::free_requested) in_use -= sign * event.bytes;
  if (event.kind == Kind::segment_map) sample.reserved += sign * event.bytes;
  if (event.kind == Kind::segment_unmap) sample.reserved -= sign * event.bytes;
}

MemorySample first_sample(const MemorySnapshot& snapshot, const MemoryHistory& history) {
  MemorySample sample;
  if (!history.events.empty()) sample.nanoseconds = history.events.front().nanoseconds;
  if (is_complete(history)) return sample;
  for (const MemorySnapshot::Segment& segment : snapshot.segments) {
    sample.reserved += segment.bytes;
    for (const MemorySnapshot::Block& block : segment.blocks) {
      if (block.state == MemorySnapshot::State::used)
        sample.in_use[static_cast<size_t>(block.tag)] += block.requested;
    }
  }
  for (const MemoryEvent& event : history.events) apply(sample, event, -1);
  return sample;
}

/// Downsamples: of each slice of time the lowest, the highest, the last sample, and the one with most
/// reserved.
class Downsampler {
 public:
  Downsampler(int64_t begin, int64_t end) : begin_(begin), span_(std::max<int64_t>(end - begin, 0) + 1) {}

  void add(const MemorySample& sample) {
    const double part = static_cast<double>(sample.nanoseconds - begin_) / static_cast<double>(span_);
    const auto slice = static_cast<int64_t>(part * static_cast<double>(kTimeSlices));
    const int64_t total = sample.total();
    if (empty_ || slice != slice_) {
      flush();
      slice_ = slice;
      empty_ = false;
      lowest_ = highest_ = fullest_ = sample;
      lowest_total_ = highest_total_ = total;
    }
    if (total < lowest_total_) lowest_ = sample, lowest_total_ = total;
    if (total > highest_total_) highest_ = sample, highest_total_ = total;
    if (sample.reserved > fullest_.reserved) fullest_ = sample;
    last_ = sample;
  }
  std::vector<MemorySample> finish() {
    flush();
    return std::move(samples_);
  }

 private:
  void flush() {
    if (empty_) return;
    std::array<MemorySample, 4> kept = {lowest_, highest_, fullest_, last_};
    std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.event < b.event; });
    samples_.insert(samples_.end(), kept.begin(), std::unique(kept.begin(), kept.end()));
  }

  int64_t begin_, span_;
  int64_t slice_ = 0;
  bool empty_ = true;
  MemorySample lowest_, highest_, fullest_, last_;
  int64_t lowest_total_ = 0, highest_total_ = 0;
  std::vector<MemorySample> samples_;
};

void follow(MemoryTimeline& timeline, const MemorySnapshot& snapshot, const MemoryHistory& history) {
  MemorySample now = first_sample(snapshot, history);
  int64_t end = now.nanoseconds;
  for (const MemoryEvent& event : history.events) end = std::max(end, event.nanoseconds);
  Downsampler downsampler(now.nanoseconds, end);
  downsampler.add(now);
  timeline.peak = now;
  int64_t peak_total = now.total();
  for (const MemoryEvent& event : history.events) {
    apply(now, event, 1);
    ++now.event;
    now.nanoseconds = std::max(now.nanoseconds, event.nanoseconds);  // clocks are set back at times
    downsampler.add(now);
    if (event.kind == Kind::alloc && now.total() > peak_total) {
      timeline.peak = now;
      peak_total = now.total();
    }
    if (event.kind == Kind::out_of_memory)
      timeline.shortages.push_back({now.nanoseconds, event.bytes, event.address, event.tag, event.name});
  }
  timeline.samples = downsampler.finish();
  if (timeline.shortages.size() > MemoryTimeline::kMostShortages)
    timeline.shortages.erase(timeline.shortages.begin(),
                             timeline.shortages.end() - MemoryTimeline::kMostShortages);
}

/// Blocks in use and memory mapped, at a time that moves from event to event.
class TimelineLayout {
 public:
  explicit TimelineLayout(std::vector<std::string>& names) : names_(names) {}

  void start_from(const MemorySnapshot& snapshot) {
    std::unordered_map<std::string, uint32_t> numbers;
    for (uint32_t i = 0; i < names_.size(); ++i) numbers.emplace(names_[i], i);
    for (const MemorySnapshot::Segment& segment : snapshot.segments) {
      const std::vector<int64_t>& mappings = segment.mappings;
      for (size_t i = 0; i < mappings.size(); ++i) {
        const int64_t end = i + 1 < mappings.size() ? mappings[i + 1] : segment.address + segment.bytes;
        mapped_[mappings[i]] = {mappings[i], end - mappings[i], segment.stream};
      }
      for (const MemorySnapshot::Block& block : segment.blocks) {
        if (block.state != MemorySnapshot::State::used) continue;
        const auto [number, is_new] = numbers.emplace(block.name, static_cast<uint32_t>(names_.size()));
        if (is_new) names_.push_back(block.name);
        blocks_[block.address] = {block.address, block.requested, block.stream, block.tag, number->second};
      }
    }
  }
  void apply(const MemoryEvent& event) {
    if (event.kind == Kind::alloc) add_block(event);
    if (event.kind == Kind::free_requested) blocks_.erase(event.address);
    if (event.kind == Kind::segment_map) map(event);
    if (event.kind == Kind::segment_unmap) mapped_.erase(event.address);
  }
  void undo(const MemoryEvent& event) {
    if (event.kind == Kind::alloc) blocks_.erase(event.address);
    if (event.kind == Kind::free_requested) add_block(event);
    if (event.kind == Kind::segment_map) mapped_.erase(event.address);
    if (event.kind == Kind::segment_unmap) map(event);
  }

  std::vector<MemoryTimeline::Block> blocks() const {
    std::vector<MemoryTimeline::Block> sorted;
    sorted.reserve(blocks_.size());
    for (const auto& [address, block] : blocks_) sorted.push_back(block);
    std::sort(sorted.begin(), sorted.end(),
              [](const auto& a, const auto& b) { return a.address < b.address; });
    return sorted;
  }
  std::vector<MemoryTimeline::Range> mapped() const {
    std::vector<MemoryTimeline::Range> joined;
    for (const auto& [address, range] : mapped_) {
      if (!joined.empty() && joined.back().stream == range.stream &&
          joined.back().address + joined.back().bytes == address) {
        joined.back().bytes += range.bytes;
      } else {
        joined.push_back(range);
      }
    }
    return joined;
  }

 private:
  void add_block(const MemoryEvent& event) {
    blocks_[event.address] = {event.address, event.bytes, event.stream, event.tag, event.name};
  }
  void map(const MemoryEvent& event) { mapped_[event.address] = {event.address, event.bytes, event.stream}; }

  std::vector<std::string>& names_;
  std::unordered_map<int64_t, MemoryTimeline::Block> blocks_;
  std::map<int64_t, MemoryTimeline::Range> mapped_;  // one entry per mapping; an unmap removes one
};

}  // namespace

int64_t MemoryTimeline::Sample::total() const {
  return std::accumulate(in_use.begin(), in_use.end(), int64_t{0});
}

MemoryTimeline make_timeline(const MemorySnapshot& snapshot, const MemoryHistory& history) {
  MemoryTimeline timeline;
  timeline.names = history.names;
  follow(timeline, snapshot, history);
  TimelineLayout layout(timeline.names);
  const auto peak = history.events.begin() + timeline.peak.event;
  if (is_complete(history)) {
    std::for_each(history.events.begin(), peak, [&](const MemoryEvent& event) { layout.apply(event); });
  } else {
    layout.start_from(snapshot);
    for (auto event = history.events.end(); event != peak;) layout.undo(*--event);
  }
  timeline.blocks = layout.blocks();
  timeline.mapped = layout.mapped();
  return timeline;
}

}  // namespace meshgrad
