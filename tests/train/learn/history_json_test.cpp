// SPDX-License-Identifier: Apache-2.0
// The files that show what an allocator did.
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/source_host.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/train/learn/run/history_json.h>
#include <meshgrad/train/tools/extras/history_page.h>
#include <meshgrad/train/tools/extras/history_timeline.h>
#include <meshgrad/train/tools/extras/replay/trace.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "support.h"
#include "train/process.h"

namespace meshgrad {
namespace {

using Kind = MemoryEvent::Kind;
using Json = nlohmann::json;
using State = MemorySnapshot::State;

struct HistoryFixture {
  explicit HistoryFixture(int64_t history, int64_t limit = 256 * kMiB)
      : allocator(CachingAllocator::create(std::make_shared<HostMemorySource>(limit), {.history = history})) {
  }
  StoragePtr take(int64_t bytes, Tag tag, std::string_view name) {
    return allocator->allocate(bytes, 64, stream, tag, name);
  }
  /// Blocks of many sizes come and go; the last ones of them stay.
  void work(uint64_t seed, int64_t times) {
    constexpr size_t kMost = 40;
    for (int64_t i = 0; i < times; ++i) {
      const auto draw = static_cast<uint64_t>(i);
      const auto bytes = static_cast<int64_t>(uniform_below(seed, 0, draw, 3 * kMiB)) + 1;
      const auto tag = static_cast<Tag>(uniform_below(seed, 1, draw, kTagCount));
      if (held.size() == kMost) held.erase(held.begin() + static_cast<ptrdiff_t>(draw % kMost));
      const MemoryScope scope(*allocator, "block." + std::to_string(i % 7));
      held.push_back(take(bytes, tag, i % 2 == 0 ? "nodes" : "edges"));
    }
  }
  Stream stream{Device{}};
  std::shared_ptr<CachingAllocator> allocator;
  std::vector<StoragePtr> held;
};

/// After four events 700 bytes are in use, more than before and not less than after.
MemoryHistory small_history() {
  return {.events = {{Kind::segment_map, Tag::host, 0, 0, 4096, 4096, 1'000},
                     {Kind::alloc, Tag::parameters, 0, 1, 4096, 100, 2'000},
                     {Kind::segment_map, Tag::host, 0, 0, 8192, 4096, 3'000},
                     {Kind::alloc, Tag::activations, 0, 2, 8192, 600, 4'000},
                     {Kind::free_requested, Tag::parameters, 0, 1, 4096, 100, 5'000},
                     {Kind::free_completed, Tag::parameters, 0, 1, 4096, 100, 5'000},
                     {Kind::alloc, Tag::data, 0, 1, 4608, 100, 6'000},
                     {Kind::out_of_memory, Tag::workspace, 0, 2, 7'000, 9'000, 7'000},
                     {Kind::free_requested, Tag::activations, 0, 2, 8192, 600, 8'000},
                     {Kind::free_completed, Tag::activations, 0, 2, 8192, 600, 8'000},
                     {Kind::segment_unmap, Tag::host, 0, 0, 8192, 4096, 9'000}},
          .names = {"", "weights", "hidden"}};
}

/// What an allocator has after small_history().
MemorySnapshot small_snapshot() {
  const auto free = [](int64_t address, int64_t bytes) {
    MemorySnapshot::Block block;
    block.address = address;
    block.bytes = bytes;
    return block;
  };
  MemorySnapshot::Block used = free(4608, 512);
  used.state = State::used;
  used.requested = 100;
  used.tag = Tag::data;
  used.name = "weights";
  MemorySnapshot::Segment segment;
  segment.address = 4096;
  segment.bytes = 4096;
  segment.mappings = {4096};
  segment.blocks = {free(4096, 512), used, free(5120, 3072)};
  MemorySnapshot snapshot;
  snapshot.segments.push_back(segment);
  snapshot.stats.requested = {100, 700, 800};
  return snapshot;
}

/// The page of what history.json holds of the snapshot, and of the history.
std::string page_of(const MemorySnapshot& snapshot, const MemoryHistory& history) {
  const test::ScratchDirectory scratch;
  write_history_json(scratch.path / "history.json", snapshot, {}, {});
  HistoryFile file = read_history_file(scratch.path / "history.json");
  file.record.history = history;
  return history_page(file);
}

Json data_of(const std::string& page) {
  const std::string opening = "id=\"data\">";
  const size_t begin = page.find(opening) + opening.size();
  return Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

TEST_CASE("JSON: read back, it is the history") {
  const test::ScratchDirectory scratch;
  MemoryHistory history = small_history();
  history.names[2] = "a \"quoted\"\nname \xff";
  history.dropped = 5;
  MemorySnapshot snapshot = small_snapshot();
  snapshot.segments[0].stream = 2;
  write_history_json(scratch.path / "history.json", snapshot, history,
                     {.memory_limit = 5, .expandable_segments = false});
  const std::string text = test::read_text(scratch.path / "history.json");
  const Json json = Json::parse(text);
  CHECK(json.at("format") == "meshgrad-memory-history");
  CHECK(json.at("version") == 1);
  CHECK(json.at("dropped") == 5);
  CHECK(json.at("names") == Json{"", "weights", "a \"quoted\"\nname \xef\xbf\xbd"});
  REQUIRE(json.at("events").size() == history.events.size());
  for (size_t i = 0; i < history.events.size(); ++i) {
    const MemoryEvent& event = history.events[i];
    CHECK(json.at("events")[i] == Json{{"kind", name_of(event.kind)},
                                       {"address", event.address},
                                       {"bytes", event.bytes},
                                       {"stream", event.stream},
                                       {"tag", name_of(event.tag)},
                                       {"name", event.name},
                                       {"time_ns", event.nanoseconds}});
  }
  CHECK(json.at("segments") ==
        Json{{{"address", 4096},
              {"bytes", 4096},
              {"stream", 2},
              {"small", false},
              {"mappings", {4096}},
              {"blocks",
               {{{"address", 4096}, {"bytes", 512}},
                {{"address", 4608}, {"bytes", 512}, {"requested", 100}, {"tag", "data"}, {"name", "weights"}},
                {{"address", 5120}, {"bytes", 3072}}}}}});
  CHECK(json.at("settings") ==
        Json{{"memory_limit", 5}, {"expandable_segments", false}, {"garbage_collection_threshold", 0.0}});
  CHECK(std::count(text.begin(), text.end(), '\n') == static_cast<ptrdiff_t>(history.events.size()) + 9);
  CHECK(read_memory_trace(scratch.path / "history.json").peak_requested == 700);
}

TEST_CASE("the ring's last events, in order, are what the files hold") {
  const test::ScratchDirectory scratch;
  HistoryFixture f(8);
  f.work(3, 20);
  write_memory_history(scratch.path / "deep" / "memory", *f.allocator);
  const Json json = Json::parse(test::read_text(scratch.path / "deep/memory/history.json"));
  const MemoryHistory history = f.allocator->history();
  CHECK(json.at("dropped") == history.dropped);
  CHECK(history.dropped > 0);
  REQUIRE(json.at("events").size() == 8);
  int64_t last = 0;
  for (size_t i = 0; i < 8; ++i) {
    CHECK(json.at("events")[i].at("address") == history.events[i].address);
    CHECK(json.at("events")[i].at("time_ns") >= last);
    last = json.at("events")[i].at("time_ns");
  }
  const HistoryFile file = read_history_file(scratch.path / "deep/memory/history.json");
  CHECK(file.record.history.names == history.names);
  CHECK(data_of(history_page(file)).at("samples").size() > 1);
}

TEST_CASE("a folder that cannot be made is an error that says so") {
  const test::ScratchDirectory scratch;
  std::ofstream(scratch.path / "file") << "in the way";
  const HistoryFixture f(8);
  std::string text;
  try {
    write_memory_history(scratch.path / "file" / "memory", *f.allocator);
  } catch (const DataError& error) {
    text = error.what();
  }
  CHECK(text.find("needed to make the directory, got Not a directory; fix: give") != std::string::npos);
}

TEST_CASE("the peak of a history that is complete, worked out by hand") {
  const MemoryTimeline timeline = make_timeline({}, small_history());
  CHECK(timeline.peak.event == 4);
  CHECK(timeline.peak.nanoseconds == 4'000);
  CHECK(timeline.peak.total() == 700);
  CHECK(timeline.peak.in_use[static_cast<size_t>(Tag::activations)] == 600);
  CHECK(timeline.peak.reserved == 8192);
  using Block = MemoryTimeline::Block;
  CHECK(timeline.blocks ==
        std::vector<Block>{{4096, 100, 0, Tag::parameters, 1}, {8192, 600, 0, Tag::activations, 2}});
  CHECK(timeline.mapped == std::vector<MemoryTimeline::Range>{{4096, 8192, 0}});
  CHECK(timeline.shortages ==
        std::vector<MemoryTimeline::Shortage>{{7'000, 9'000, 7'000, Tag::workspace, 2}});
  REQUIRE(timeline.samples.size() > 2);
  CHECK(timeline.samples.front().total() == 0);
  CHECK(timeline.samples.back().total() == 100);
  CHECK(timeline.samples.back().reserved == 4096);
  CHECK(timeline.samples.back().event == 11);
}

TEST_CASE("a truncated history takes the peak from the snapshot") {
  MemoryHistory history = small_history();
  history.events.erase(history.events.begin(), history.events.begin() + 4);
  history.dropped = 4;
  const MemoryTimeline timeline = make_timeline(small_snapshot(), history);
  CHECK(timeline.peak.event == 0);
  CHECK(timeline.peak.total() == 700);
  CHECK(timeline.peak.reserved == 8192);
  using Block = MemoryTimeline::Block;
  CHECK(timeline.blocks ==
        std::vector<Block>{{4096, 100, 0, Tag::parameters, 1}, {8192, 600, 0, Tag::activations, 2}});
  CHECK(timeline.mapped == std::vector<MemoryTimeline::Range>{{4096, 8192, 0}});
  CHECK(timeline.samples.back().total() == 100);

  SUBCASE("without any history it is the present") {
    const MemoryTimeline present = make_timeline(small_snapshot(), {});
    CHECK(present.peak.total() == 100);
    CHECK(present.names == std::vector<std::string>{"weights"});
    CHECK(present.blocks == std::vector<Block>{{4608, 100, 0, Tag::data, 0}});
    CHECK(present.mapped == std::vector<MemoryTimeline::Range>{{4096, 4096, 0}});
    CHECK(data_of(page_of(small_snapshot(), {})).at("history") ==
          Json{{"events", 0}, {"dropped", 0}, {"end", 0}});
  }
}

TEST_CASE("a peak is equal computed forward and backward") {
  HistoryFixture f(1'000'000);
  f.work(7, 2000);
  f.held.resize(15);
  f.allocator->release_cached();
  f.work(8, 3);
  const MemorySnapshot snapshot = f.allocator->snapshot();
  MemoryHistory history = f.allocator->history();
  const MemoryTimeline forwards = make_timeline(snapshot, history);
  CHECK(forwards.peak.total() == snapshot.stats.requested.peak);
  CHECK(forwards.samples.back().total() == snapshot.stats.requested.current);
  CHECK(forwards.samples.back().reserved == snapshot.stats.reserved.current);
  CHECK(static_cast<size_t>(forwards.blocks.size()) == 40);
  constexpr int64_t kLost = 50;
  REQUIRE(forwards.peak.event > kLost);
  history.events.erase(history.events.begin(), history.events.begin() + kLost);
  history.dropped = kLost;
  const MemoryTimeline backwards = make_timeline(snapshot, history);
  CHECK(backwards.peak.event == forwards.peak.event - kLost);
  CHECK(backwards.peak.in_use == forwards.peak.in_use);
  CHECK(backwards.blocks == forwards.blocks);
  CHECK(backwards.mapped == forwards.mapped);
}

TEST_CASE("a thinned curve keeps its extremes and the last value") {
  constexpr int kTimes = 20;
  MemoryHistory history;
  int64_t address = 0;
  const auto add = [&](Kind kind, int64_t bytes, int64_t time) {
    history.events.push_back({kind, Tag::data, 0, 0, ++address, bytes, time});
  };
  for (int i = 0; i < kTimes; ++i) {
    const int64_t time = i * int64_t{1'000'000'000};
    add(Kind::alloc, 1000, time);
    for (int j = 0; j < 100; ++j) {
      add(Kind::alloc, 50, time + j);
      add(Kind::free_requested, 50, time + j);
    }
    add(Kind::alloc, 7000 + i, time + 200);
    add(Kind::segment_map, 9000, time + 201);
    add(Kind::segment_unmap, 9000, time + 202);
    add(Kind::free_requested, 7000 + i, time + 203);
    add(Kind::free_requested, 1000, time + 204);
    add(Kind::alloc, 300, time + 205);
  }
  const MemoryTimeline timeline = make_timeline({}, history);
  CHECK(timeline.peak.total() == 8000 + kTimes - 1 + 300 * (kTimes - 1));
  REQUIRE(timeline.samples.size() == 4 * kTimes);
  for (int i = 0; i < kTimes; ++i) {
    const MemoryTimeline::Sample* const four = &timeline.samples[static_cast<size_t>(4 * i)];
    const int64_t before = 300 * i;
    // The first slice begins with nothing at all in use; in the others that is what is lowest, too, but
    // later.
    const bool first = i == 0;
    CHECK(four[first ? 0 : 2].total() == before);
    CHECK(four[first ? 1 : 0].total() == before + 8000 + i);
    CHECK(four[first ? 2 : 1].reserved == 9000);
    CHECK(four[3].total() == before + 300);
    CHECK(four[3].nanoseconds == i * int64_t{1'000'000'000} + 205);
  }
}

TEST_CASE("HTML: one file that loads nothing, with names escaped") {
  MemoryHistory history = small_history();
  history.names[1] = "</script><script>alert(1)</script>";
  history.names[2] = "<img src=x onerror=\"alert('2')\">& \xff";
  const std::string page = page_of(small_snapshot(), history);
  CHECK(page.starts_with("<!DOCTYPE html>"));
  CHECK(page.ends_with("</html>\n"));
  CHECK(page.find("alert(1)</script>") == std::string::npos);
  CHECK(page.find("<img") == std::string::npos);
  CHECK(test::count_of(page, "<script") == 3);  // the data, and two of the page's
  CHECK(test::count_of(page, "</script>") == 3);
  CHECK(test::count_of(page, "<style>") == 2);
  CHECK(page.find("src=\"") == std::string::npos);
  CHECK(page.find("href") == std::string::npos);
  // The only address is a name, that of SVG.
  CHECK(test::count_of(page, "http") == 1);
  CHECK(test::count_of(page, "http://www.w3.org/2000/svg") == 1);
  CHECK(data_of(page).at("names") ==
        Json{history.names[1], "<img src=x onerror=\"alert('2')\">& \xef\xbf\xbd"});
  // What the script looks for is in the page.
  for (const char* id :
       {"coverage", "tiles", "timeline", "layout", "scale", "map", "owners", "tags", "totals"}) {
    CAPTURE(id);
    CHECK(test::count_of(page, "id=\"" + std::string(id) + "\"") == 1);
    CHECK(page.find('\'' + std::string(id) + '\'') != std::string::npos);
  }
}

TEST_CASE("HTML: the numbers are in its data") {
  const MemoryHistory history = small_history();
  MemorySnapshot snapshot = small_snapshot();
  snapshot.stats.by_tag[static_cast<size_t>(Tag::activations)].requested = {50, 650, 800};
  snapshot.stats.source_calls = 3;
  snapshot.stats.allocated.current = 512;
  const Json data = data_of(page_of(snapshot, history));
  CHECK(data.at("tags").size() == kTagCount);
  CHECK(data.at("tags")[4] == "activations");
  CHECK(data.at("history") == Json{{"events", 11}, {"dropped", 0}, {"end", 0}});
  CHECK(data.at("names") == Json{"weights", "hidden"});
  CHECK(data.at("ranges") == Json{{0, 4096, 8192}});
  // Range, offset, length, tag, name, blocks, bytes.
  CHECK(data.at("blocks") == Json{{0, 0, 100, 0, 0, 1, 100}, {0, 4096, 600, 4, 1, 1, 600}});
  CHECK(data.at("peak") ==
        Json{{"event", 4}, {"time", 3}, {"bytes", 700}, {"reserved", 8192}, {"blocks", 2}, {"ranges", 1}});
  CHECK(data.at("shown") == Json{0, 4, 7});
  CHECK(data.at("samples").back() == Json{11, 8, 4096, 0, 0, 100});
  CHECK(data.at("shortages") == Json{{6, 9000, 7000, 6, "hidden"}});
  CHECK(data.at("owners") == Json{{"hidden", 4, 600, 1}, {"weights", 0, 100, 1}});
  CHECK(data.at("more_owners") == 0);
  CHECK(data.at("by_tag") == Json{{0, 100, 0, 0}, {4, 600, 50, 650}});
  CHECK(data.at("stats").at("requested") == Json{100, 700});
  CHECK(data.at("stats").at("driver_calls") == 3);
  CHECK(data.at("stats").at("internal_fragmentation") == 412);
}

TEST_CASE("HTML: a million events make a small page soon") {
  constexpr int64_t kEvents = 1'000'000;
  MemoryHistory history;
  for (int i = 0; i < 60'001; ++i)  // no multiple of kTagCount: names occur with all tags
    history.names.push_back("encoder/" + std::string(300, 'x') + std::to_string(i));
  history.events.reserve(kEvents);
  int64_t address = 0, mapped_to = 0, in_use = 0, most = 0, time = 1'700'000'000'000'000'000;
  constexpr int64_t kSegment = kMiB;
  while (static_cast<int64_t>(history.events.size()) < kEvents - 1) {
    const uint64_t draw = history.events.size();
    time += static_cast<int64_t>(uniform_below(9, 0, draw, 20'000));
    const auto bytes = static_cast<int64_t>(512 * (1 + uniform_below(9, 1, draw, 9)));
    if (address + bytes > mapped_to) {
      // With a hole before each, there are as many ranges as can be.
      address = mapped_to + kSegment;
      mapped_to = address + kSegment;
      history.events.push_back({Kind::segment_map, Tag::host, 0, 0, address, kSegment, time});
      continue;
    }
    history.events.push_back({Kind::alloc, static_cast<Tag>(draw % kTagCount), 0,
                              static_cast<uint32_t>(draw % history.names.size()), address, bytes, time});
    address += bytes;
    in_use += bytes;
    most = std::max(most, in_use);
    if (draw % 4 > 0) continue;
    history.events.push_back(history.events.back());
    history.events.back().kind = Kind::free_requested;
    in_use -= bytes;
  }
  const std::clock_t begin = std::clock();  // of the processor: other programs may be busy
  const std::string page = page_of({}, history);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  MESSAGE("a page of " << page.size() << " bytes in " << seconds << " s");
  CHECK(page.size() < 2'000'000);
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(seconds < 2.0);
#endif
  const Json data = data_of(page);
  CHECK(data.at("peak").at("bytes") == most);
  CHECK(data.at("owners").size() == 20);
  CHECK(data.at("more_owners").get<int64_t>() > 50'000);
  CHECK(data.at("samples").back()[0] == static_cast<int64_t>(history.events.size()));
  int64_t highest = 0, blocks = 0;
  for (const Json& sample : data.at("samples")) {
    int64_t total = 0;
    for (size_t i = 3; i < sample.size(); ++i) total += sample[i].get<int64_t>();
    highest = std::max(highest, total);
  }
  CHECK(highest == most);
  bool inside = true;
  for (const Json& block : data.at("blocks")) {
    blocks += block[5].get<int64_t>();
    inside = inside && block[1].get<int64_t>() + block[2].get<int64_t>() <= kSegment;
  }
  CHECK(inside);
  CHECK(blocks > 400'000);
}

}  // namespace
}  // namespace meshgrad
