// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/tools/extras/history_page.h>
#include <meshgrad/train/tools/extras/history_timeline.h>
#include <meshgrad/train/tools/extras/page.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

namespace meshgrad {
namespace {

using Json = nlohmann::json;
using MemorySample = MemoryTimeline::Sample;

// Limits that keep the page small: blocks drawn one by one, ranges drawn at all, owners listed, characters of
// a name.
constexpr size_t kMostBlocks = 5000;
constexpr size_t kMostRanges = 5000;
constexpr size_t kMostOwners = 20;
constexpr size_t kLongestName = 96;

/// The name as the page shows it; of a long one its end, since the outermost scopes differ little.
std::string shown_name(const std::vector<std::string>& names, uint32_t number) {
  if (number >= names.size() || names[number].empty()) return "unnamed";
  const std::string& name = names[number];
  if (name.size() <= kLongestName) return name;
  size_t begin = name.size() - kLongestName;
  while (begin < name.size() && (name[begin] & 0xC0) == 0x80) ++begin;  // not within a UTF-8 character
  return "…" + name.substr(begin);
}

/// A block of the map, or a run of small neighbours that are drawn as one.
struct MapEntry {
  size_t range = 0;
  int64_t begin = 0, end = 0;
  std::array<int64_t, kTagCount> bytes{};
  uint32_t name = 0;
  int64_t count = 0;

  int64_t total() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }
  ptrdiff_t main_tag() const { return std::max_element(bytes.begin(), bytes.end()) - bytes.begin(); }
};

/// For each block whether it is among the kMostBlocks largest.
std::vector<bool> largest_blocks(const std::vector<MemoryTimeline::Block>& blocks) {
  std::vector<bool> kept(blocks.size(), blocks.size() <= kMostBlocks);
  if (blocks.size() <= kMostBlocks) return kept;
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto border = order.begin() + static_cast<ptrdiff_t>(kMostBlocks);
  std::nth_element(order.begin(), border, order.end(), [&](size_t a, size_t b) {
    return std::pair(-blocks[a].bytes, a) < std::pair(-blocks[b].bytes, b);
  });
  std::for_each(order.begin(), border, [&](size_t block) { kept[block] = true; });
  return kept;
}

std::vector<MapEntry> map_entries(const std::vector<MemoryTimeline::Block>& blocks,
                                  const std::vector<MemoryTimeline::Range>& ranges) {
  const std::vector<bool> kept = largest_blocks(blocks);
  std::vector<MapEntry> entries;
  bool in_run = false;
  size_t range = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const MemoryTimeline::Block& block = blocks[i];
    while (range < ranges.size() && ranges[range].address + ranges[range].bytes <= block.address) ++range;
    if (range == ranges.size()) break;
    if (block.address < ranges[range].address) continue;  // in a range that is left out
    if (kept[i] || !in_run || entries.back().range != range)
      entries.push_back({.range = range, .begin = block.address, .name = block.name});
    in_run = !kept[i];
    MapEntry& entry = entries.back();
    entry.end = block.address + block.bytes;
    entry.bytes[static_cast<size_t>(block.tag)] += block.bytes;
    ++entry.count;
  }
  return entries;
}

/// The kMostRanges largest, by address.
std::vector<MemoryTimeline::Range> drawn_ranges(std::vector<MemoryTimeline::Range> ranges) {
  if (ranges.size() <= kMostRanges) return ranges;
  std::nth_element(ranges.begin(), ranges.begin() + kMostRanges, ranges.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  ranges.resize(kMostRanges);
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.address < b.address; });
  return ranges;
}

/// The tags that are in use at some time.
std::vector<int> shown_tags(const MemoryTimeline& timeline) {
  std::vector<int> shown;
  for (int tag = 0; tag < kTagCount; ++tag) {
    const auto holds = [tag](const MemorySample& sample) {
      return sample.in_use[static_cast<size_t>(tag)] != 0;
    };
    if (std::any_of(timeline.samples.begin(), timeline.samples.end(), holds)) shown.push_back(tag);
  }
  return shown;
}

/// [sample...], each [event, microseconds, reserved, bytes of each shown tag...].
Json samples_json(const MemoryTimeline& timeline, const std::vector<int>& shown) {
  Json samples = Json::array();
  const int64_t start = timeline.samples.front().nanoseconds;
  for (const MemorySample& sample : timeline.samples) {
    Json row = {sample.event, (sample.nanoseconds - start) / 1000, sample.reserved};
    for (const int tag : shown) row.push_back(sample.in_use[static_cast<size_t>(tag)]);
    samples.push_back(std::move(row));
  }
  return samples;
}

/// [[microseconds, requested, free, tag, name]...].
Json shortages_json(const MemoryTimeline& timeline) {
  Json shortages = Json::array();
  const int64_t start = timeline.samples.front().nanoseconds;
  for (const MemoryTimeline::Shortage& shortage : timeline.shortages) {
    shortages.push_back({(shortage.nanoseconds - start) / 1000, shortage.requested, shortage.free,
                         static_cast<int>(shortage.tag), shown_name(timeline.names, shortage.name)});
  }
  return shortages;
}

/// "ranges": [[stream, address, bytes]...], "blocks": [[range, offset, span, tag, name or -1, count,
/// bytes]...], and their "names".
void add_map(Json& data, const MemoryTimeline& timeline) {
  const std::vector<MemoryTimeline::Range> ranges = drawn_ranges(timeline.mapped);
  data["ranges"] = Json::array();
  for (const MemoryTimeline::Range& range : ranges)
    data["ranges"].push_back({range.stream, range.address, range.bytes});
  std::map<std::string, int> numbers;
  data["names"] = Json::array();
  data["blocks"] = Json::array();
  for (const MapEntry& entry : map_entries(timeline.blocks, ranges)) {
    int name = -1;
    if (entry.count == 1) {
      const auto [known, is_new] =
          numbers.emplace(shown_name(timeline.names, entry.name), static_cast<int>(numbers.size()));
      if (is_new) data["names"].push_back(known->first);
      name = known->second;
    }
    data["blocks"].push_back({entry.range, entry.begin - ranges[entry.range].address, entry.end - entry.begin,
                              entry.main_tag(), name, entry.count, entry.total()});
  }
}

/// "owners": [[name, tag, bytes, blocks]...], the largest at the peak, and the number of "more_owners".
void add_owners(Json& data, const MemoryTimeline& timeline) {
  struct Owner {
    int64_t bytes = 0;
    int64_t blocks = 0;
  };
  std::map<std::pair<uint32_t, Tag>, Owner> all;
  for (const MemoryTimeline::Block& block : timeline.blocks) {
    Owner& owner = all[{block.name, block.tag}];
    owner.bytes += block.bytes;
    ++owner.blocks;
  }
  std::vector<std::pair<std::pair<uint32_t, Tag>, Owner>> sorted(all.begin(), all.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  const size_t listed = std::min(kMostOwners, sorted.size());
  data["owners"] = Json::array();
  for (size_t i = 0; i < listed; ++i) {
    const auto& [owner, held] = sorted[i];
    data["owners"].push_back(
        {shown_name(timeline.names, owner.first), static_cast<int>(owner.second), held.bytes, held.blocks});
  }
  data["more_owners"] = sorted.size() - listed;
}

/// [[tag, bytes at the peak, bytes now, most bytes]...].
Json tags_json(const MemoryTimeline& timeline, const Json& by_tag) {
  Json tags = Json::array();
  for (size_t tag = 0; tag < kTagCount; ++tag) {
    const Json& counter = by_tag.at(std::string(name_of(static_cast<Tag>(tag))));
    const int64_t at_peak = timeline.peak.in_use[tag];
    if (at_peak != 0 || counter.at(1) != 0) tags.push_back({tag, at_peak, counter.at(0), counter.at(1)});
  }
  return tags;
}

}  // namespace

std::string history_page(const HistoryFile& file) {
  const auto& [snapshot, history] = file.record;
  const MemoryTimeline timeline = make_timeline(snapshot, history);
  const std::vector<int> shown = shown_tags(timeline);
  const MemorySample& peak = timeline.peak;
  Json data;
  for (int tag = 0; tag < kTagCount; ++tag) data["tags"].push_back(name_of(static_cast<Tag>(tag)));
  data["shown"] = shown;
  data["history"] = {{"events", history.events.size()},
                     {"dropped", history.dropped},
                     {"end", timeline.samples.back().nanoseconds / 1'000'000'000}};
  data["peak"] = {{"event", peak.event},
                  {"time", (peak.nanoseconds - timeline.samples.front().nanoseconds) / 1000},
                  {"bytes", peak.total()},
                  {"reserved", peak.reserved},
                  {"blocks", timeline.blocks.size()},
                  {"ranges", timeline.mapped.size()}};
  data["samples"] = samples_json(timeline, shown);
  data["shortages"] = shortages_json(timeline);
  add_map(data, timeline);
  add_owners(data, timeline);
  data["stats"] = file.stats;
  data["by_tag"] = tags_json(timeline, data["stats"].at("by_tag"));
  data["stats"].erase("by_tag");
  return make_page(kMemoryPage, data.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace meshgrad
