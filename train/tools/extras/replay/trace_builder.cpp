// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/tools/extras/replay/trace_builder.h>

#include <algorithm>
#include <limits>

namespace meshgrad {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 44;  // 16 TiB: no device has as much, and sums cannot overflow

}  // namespace

TraceBuilder::TraceBuilder(std::string name, std::string_view unit, double scale)
    : name_(std::move(name)), unit_(unit), scale_(scale) {}

std::string TraceBuilder::place(int64_t position) const {
  return unit_ == "line" ? fmt::format("{}:{}", name_, position)
                         : fmt::format("{}: {} {}", name_, unit_, position);
}

void TraceBuilder::fail(std::string_view needed, std::string_view got, std::string_view fix) const {
  throw data_error(place(position_), needed, got, fix);
}

uint16_t TraceBuilder::stream_index(uint64_t stream) {
  const auto known = std::find(streams_.begin(), streams_.end(), stream);
  if (known != streams_.end()) return static_cast<uint16_t>(known - streams_.begin());
  constexpr size_t kMostStreams = 4096;
  if (streams_.size() == kMostStreams)
    fail(fmt::format("at most {} streams", kMostStreams), fmt::format("stream {} as one more", stream),
         "is this column the stream?");
  streams_.push_back(stream);
  return static_cast<uint16_t>(streams_.size() - 1);
}

void TraceBuilder::allocate(uint64_t block, int64_t bytes, uint64_t stream, Tag tag, uint32_t name) {
  constexpr std::string_view kSizeFix = "sizes are in bytes: correct the recording";
  if (bytes < 0 || bytes > kMostBytes)
    fail("a size from 0 to 16 TiB", fmt::format("{} bytes", bytes), kSizeFix);
  int64_t scaled = bytes;
  if (bytes > 0 && scale_ != 1) {
    const double product = static_cast<double>(bytes) * scale_;
    if (product > static_cast<double>(kMostBytes))
      fail("a size of up to 16 TiB", fmt::format("{} bytes times {}", bytes, scale_),
           "use a smaller --scale");
    scaled = std::max<int64_t>(static_cast<int64_t>(product), 1);
  }
  const auto [entry, is_new] = live_.try_emplace(block, Live{scaled, position_, 0});
  if (!is_new) {
    fail("a block that is not in use", "a block in use since " + place(entry->second.position),
         "record its free as well, and every line only once");
  }
  if (scaled == 0) return;
  if (scaled > kMostBytes - requested_)
    fail("at most 16 TiB in use at once", fmt::format("{} bytes more", scaled), kSizeFix);
  uint32_t& slot = entry->second.slot;
  if (spare_slots_.empty()) {
    slot = trace_.slots++;
  } else {
    slot = spare_slots_.back();
    spare_slots_.pop_back();
  }
  trace_.events.push_back({scaled, slot, name, stream_index(stream), tag});
  ++trace_.allocations;
  requested_ += scaled;
  trace_.peak_requested = std::max(trace_.peak_requested, requested_);
}

bool TraceBuilder::free(uint64_t block) {
  const auto entry = live_.find(block);
  if (entry == live_.end()) return false;
  const Live live = entry->second;
  live_.erase(entry);
  if (live.bytes == 0) return true;
  trace_.events.push_back({.bytes = 0, .slot = live.slot});
  spare_slots_.push_back(live.slot);
  requested_ -= live.bytes;
  return true;
}

MemoryTrace TraceBuilder::finish() {
  if (trace_.allocations == 0)
    throw data_error(name_, "at least one allocation", "none", "record while the program allocates");
  trace_.streams = static_cast<int>(streams_.size());
  for (MemoryTrace::Event& event : trace_.events) {
    if (event.name >= trace_.names.size()) event.name = 0;
  }
  return std::move(trace_);
}

}  // namespace meshgrad
