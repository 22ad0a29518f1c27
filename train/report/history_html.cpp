// SPDX-License-Identifier: Apache-2.0
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <meshgrad/train/io/atomic_file.h>
#include <meshgrad/train/report/history_html.h>
#include <meshgrad/train/report/history_page.h>
#include <meshgrad/train/report/history_timeline.h>
#include <meshgrad/train/report/xml_text.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

namespace meshgrad {
namespace {

using MemorySample = MemoryTimeline::Sample;

// What keeps the page small: this many blocks are drawn one by one, and so many ranges are drawn at all.
constexpr size_t kMostBlocks = 5000;
constexpr size_t kMostRanges = 5000;
constexpr size_t kMostOwners = 20;
constexpr size_t kLongestName = 96;

/// As the page's script writes sizes, to three or four figures.
std::string size_text(int64_t bytes) {
  constexpr std::string_view kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  const int digits = value == std::floor(value) ? 0 : value < 10 ? 2 : 1;
  return fmt::format("{:.{}f} {}", value, digits, kUnits[unit]);
}

std::string count_text(int64_t count, std::string_view of) {
  return fmt::format("{} {}{}", count, of, count == 1 ? "" : "s");
}

std::string percent_text(int64_t part, int64_t whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole))
                   : "-";
}

/// The name as the page shows it; of a long one the end, as the outermost scopes are much the same for all.
std::string shown_name(const std::vector<std::string>& names, uint32_t number) {
  if (number >= names.size() || names[number].empty()) return "unnamed";
  const std::string& name = names[number];
  if (name.size() <= kLongestName) return name;
  size_t begin = name.size() - kLongestName;
  while (begin < name.size() && (name[begin] & 0xC0) == 0x80) ++begin;  // not amid a character
  return "…" + name.substr(begin);
}

/// As JSON inside a <script> element, which only "</" could end.
std::string script_json(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at))
    text.replace(at, 1, "\\u003c");
  return text;
}

/// A block of the map, or a run of small ones that lie side by side.
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
    if (block.address < ranges[range].address) continue;  // in a range that is not drawn
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

/// The tags that hold something at some time.
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

/// What the script draws from, in short arrays: {tags, shown, peak, samples, shortages, ranges, blocks,
/// names}.
std::string drawing_data(const MemoryTimeline& timeline, const std::vector<int>& shown) {
  const int64_t start = timeline.samples.front().nanoseconds;
  const auto microseconds = [start](int64_t time) { return (time - start) / 1000; };
  nlohmann::json data;
  for (int tag = 0; tag < kTagCount; ++tag) data["tags"].push_back(name_of(static_cast<Tag>(tag)));
  data["shown"] = shown;
  const MemorySample& peak = timeline.peak;
  data["peak"] = {peak.event, microseconds(peak.nanoseconds), peak.total()};
  for (const MemorySample& sample : timeline.samples) {
    nlohmann::json row = {sample.event, microseconds(sample.nanoseconds), sample.reserved};
    for (const int tag : shown) row.push_back(sample.in_use[static_cast<size_t>(tag)]);
    data["samples"].push_back(std::move(row));
  }
  data["shortages"] = nlohmann::json::array();
  for (const MemoryTimeline::Shortage& shortage : timeline.shortages) {
    data["shortages"].push_back({microseconds(shortage.nanoseconds), shortage.asked, shortage.free,
                                 static_cast<int>(shortage.tag), shown_name(timeline.names, shortage.name)});
  }
  const std::vector<MemoryTimeline::Range> ranges = drawn_ranges(timeline.mapped);
  data["ranges"] = nlohmann::json::array();
  for (const MemoryTimeline::Range& range : ranges)
    data["ranges"].push_back({range.stream, range.address, range.bytes});
  std::map<std::string, int> numbers;
  data["names"] = nlohmann::json::array();
  data["blocks"] = nlohmann::json::array();
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
  return script_json(data);
}

std::string chip(int tag) {
  return fmt::format("<span class=\"chip\" style=\"background: var(--tag-{})\"></span>{}", tag,
                     name_of(static_cast<Tag>(tag)));
}

std::string legend(const std::vector<int>& shown, std::string_view more) {
  std::string text = "<ul class=\"legend\">";
  for (const int tag : shown) text += fmt::format("<li>{}</li>", chip(tag));
  return text + std::string(more) + "</ul>\n";
}

std::string tile(std::string_view value, std::string_view caption, bool alarm = false) {
  return fmt::format("<div class=\"tile{}\"><b>{}</b><span>{}</span></div>\n", alarm ? " alarm" : "", value,
                     caption);
}

std::string tiles(const MemoryTimeline& timeline, const MemoryStats& stats) {
  int64_t most_reserved = 0;
  for (const MemorySample& sample : timeline.samples)
    most_reserved = std::max(most_reserved, sample.reserved);
  const int64_t peak = timeline.peak.total();
  std::string text = "<div class=\"tiles\">\n";
  text += tile(size_text(peak), "in use at the peak, as asked for");
  text += tile(size_text(most_reserved), "reserved, at most");
  text += tile(
      peak > 0 ? fmt::format("{:.4f}", static_cast<double>(most_reserved) / static_cast<double>(peak)) : "-",
      "most reserved / most in use");
  text += tile(fmt::format("{:.1f} %", 100.0 * stats.external_fragmentation()),
               "external fragmentation now: free bytes outside the largest free block");
  text += tile(std::to_string(stats.out_of_memory), "times out of memory", stats.out_of_memory > 0);
  return text + "</div>\n";
}

std::string owners(const MemoryTimeline& timeline) {
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
  std::string text =
      "<table><tr><th>name</th><th>tag</th><th class=\"number\">bytes</th><th class=\"number\">share</th>"
      "<th class=\"number\">blocks</th></tr>\n";
  for (size_t i = 0; i < std::min(kMostOwners, sorted.size()); ++i) {
    const auto& [owner, held] = sorted[i];
    text += fmt::format(
        "<tr><td class=\"name\">{}</td><td>{}</td><td class=\"number\">{}</td>"
        "<td class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n",
        escaped_xml(shown_name(timeline.names, owner.first)), chip(static_cast<int>(owner.second)),
        size_text(held.bytes), percent_text(held.bytes, timeline.peak.total()), held.blocks);
  }
  text += "</table>\n";
  if (sorted.size() > kMostOwners)
    text += fmt::format("<p>and {} smaller ones</p>\n", sorted.size() - kMostOwners);
  return text;
}

std::string by_tag(const MemoryTimeline& timeline, const MemoryStats& stats) {
  std::string text =
      "<table><tr><th>tag</th><th class=\"number\">at the peak</th><th class=\"number\">share</th>"
      "<th class=\"number\">now</th><th class=\"number\">most</th></tr>\n";
  for (size_t tag = 0; tag < kTagCount; ++tag) {
    const MemoryCounter& counter = stats.by_tag[tag].requested;
    const int64_t at_peak = timeline.peak.in_use[tag];
    if (at_peak == 0 && counter.peak == 0) continue;
    text += fmt::format(
        "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>"
        "<td class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n",
        chip(static_cast<int>(tag)), size_text(at_peak), percent_text(at_peak, timeline.peak.total()),
        size_text(counter.current), size_text(counter.peak));
  }
  return text + "</table>\n";
}

std::string counters(const MemoryStats& stats) {
  const std::pair<std::string_view, const MemoryCounter*> rows[] = {
      {"requested: asked for", &stats.requested},
      {"allocated: with rounding", &stats.allocated},
      {"active: with what streams may still use", &stats.active},
      {"reserved: mapped", &stats.reserved},
      {"inactive split: free beside something in use", &stats.inactive_split},
      {"pinned: free, cannot be given back", &stats.pinned}};
  std::string text =
      "<table><tr><th>bytes</th><th class=\"number\">now</th><th class=\"number\">most</th></tr>\n";
  for (const auto& [name, counter] : rows) {
    text += fmt::format("<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n",
                        name, size_text(counter->current), size_text(counter->peak));
  }
  return text + "</table>\n";
}

std::string facts(const MemoryStats& stats) {
  const std::pair<std::string_view, std::string> rows[] = {
      {"capacity", size_text(stats.capacity)},
      {"largest free block", size_text(stats.largest_free)},
      {"internal fragmentation (rounding)", size_text(stats.internal_fragmentation())},
      {"holes between mapped ranges", std::to_string(stats.holes)},
      {"allocations, of which alive", fmt::format("{}, {}", stats.allocations, stats.live_allocations)},
      {"calls to the driver", fmt::format("{} in {:.1f} ms", stats.source_calls,
                                          static_cast<double>(stats.source_nanoseconds) / 1e6)},
      {"growths, flushes", fmt::format("{}, {}", stats.growths, stats.flushes)},
      {"borrowed blocks, retries", fmt::format("{}, {}", stats.borrows, stats.retries)},
      {"waits between streams", std::to_string(stats.stream_waits)}};
  std::string text = "<table><tr><th>also</th><th class=\"number\">now</th></tr>\n";
  for (const auto& [name, value] : rows)
    text += fmt::format("<tr><td>{}</td><td class=\"number\">{}</td></tr>\n", name, value);
  return text + "</table>\n";
}

/// What the page covers, in a sentence or two.
std::string coverage(const MemoryTimeline& timeline, const MemoryHistory& history) {
  if (history.events.empty()) return "No history was kept: the page shows the present only.";
  const int64_t begin = timeline.samples.front().nanoseconds, end = timeline.samples.back().nanoseconds;
  std::string text = fmt::format("{} over {:.3f} s, up to {:%Y-%m-%d %H:%M:%S} UTC.",
                                 count_text(static_cast<int64_t>(history.events.size()), "event"),
                                 static_cast<double>(end - begin) / 1e9,
                                 fmt::gmtime(static_cast<std::time_t>(end / 1'000'000'000)));
  if (history.dropped > 0) {
    text +=
        fmt::format(" {} before them {} no longer kept; what came of them is worked out from the present.",
                    count_text(history.dropped, "event"), history.dropped == 1 ? "is" : "are");
  }
  return text;
}

}  // namespace

std::string history_page(const MemorySnapshot& snapshot, const MemoryHistory& history) {
  const MemoryTimeline timeline = make_timeline(snapshot, history);
  const std::vector<int> shown = shown_tags(timeline);
  const MemoryStats& stats = snapshot.stats;
  std::string page =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>meshgrad memory</title>\n<style>";
  page += kHistoryPageStyle;
  page += "</style>\n</head>\n<body>\n<h1>Memory</h1>\n";
  page += fmt::format("<p>{}</p>\n", coverage(timeline, history));
  page += tiles(timeline, stats);
  page += "<section>\n<h2>Over time</h2>\n<p>Bytes in use by tag, as asked for, and bytes reserved.</p>\n";
  page += legend(shown, "<li><span class=\"chip line\"></span>reserved</li>");
  page += "<div id=\"timeline\"></div>\n</section>\n";
  page += fmt::format(
      "<section>\n<h2>Address space at the peak</h2>\n<p>{} in {}, {} reserved. "
      "<span id=\"scale\"></span></p>\n",
      count_text(static_cast<int64_t>(timeline.blocks.size()), "block"),
      count_text(static_cast<int64_t>(timeline.mapped.size()), "range"), size_text(timeline.peak.reserved));
  page += legend(shown,
                 "<li><span class=\"chip free\"></span>mapped, free</li>"
                 "<li><span class=\"chip hole\"></span>not mapped</li>");
  page += "<div class=\"scroll\"><canvas id=\"map\"></canvas></div>\n</section>\n";
  page += "<section>\n<h2>Largest owners at the peak</h2>\n" + owners(timeline) + "</section>\n";
  page +=
      "<section>\n<h2>By tag</h2>\n<p>As asked for; the last two columns are of now and of the time since "
      "the peaks were last reset.</p>\n" +
      by_tag(timeline, stats) + "</section>\n";
  page += "<section>\n<h2>Totals</h2>\n<div class=\"columns\">\n" + counters(stats) + facts(stats) +
          "</div>\n</section>\n";
  page +=
      "<div id=\"tip\" role=\"tooltip\"></div>\n<noscript><p>The pictures need JavaScript.</p></noscript>\n";
  page += "<script type=\"application/json\" id=\"data\">" + drawing_data(timeline, shown) +
          "</script>\n<script>";
  page += kHistoryPageScript;
  page += "</script>\n</body>\n</html>\n";
  return page;
}

void write_history_html(const std::filesystem::path& path, const MemorySnapshot& snapshot,
                        const MemoryHistory& history) {
  write_file_atomically(path, history_page(snapshot, history));
}

}  // namespace meshgrad
