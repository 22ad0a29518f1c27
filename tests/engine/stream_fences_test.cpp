// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/stream_fences.h>

#include <doctest/doctest.h>

#include <array>

#include "allocator_recount.h"

namespace meshgrad {
namespace {

using test::Draws;
using test::stream;
using test::TestMemorySource;

SourceEventPtr event_on(TestMemorySource& source, int id) {
  return std::make_shared<const SourceEvent>(source, stream(id));
}

struct FenceBlock {
  int64_t bytes;
  Tag tag;
  std::vector<uint64_t> events;
  bool operator==(const FenceBlock&) const = default;
};

std::vector<FenceBlock> remove(StreamFences& fences, int64_t begin, int64_t end) {
  std::vector<FenceBlock> pieces;
  fences.remove(begin, end, [&](int64_t bytes, const StreamFences::Fence& fence) {
    pieces.push_back({bytes, fence.tag, {}});
    for (const SourceEventPtr& event : fence.events) pieces.back().events.push_back(event->id());
  });
  return pieces;
}

TEST_CASE("an event is forgotten with its last holder") {
  TestMemorySource source;
  SourceEventPtr event = event_on(source, 3), copy = event;
  CHECK(event->stream() == 3);
  CHECK(event->id() == 1);
  event.reset();
  CHECK(source.live_events() == 1);
  copy.reset();
  CHECK(source.live_events() == 0);
  CHECK(source.violations().empty());
}

TEST_CASE("reuse removes only the part of a fence that it covers") {
  TestMemorySource source;
  {
    StreamFences fences;
    CHECK(fences.empty());
    fences.add(100, {200, Tag::data, true, {event_on(source, 1), event_on(source, 2)}});
    fences.add(200, {300, Tag::host, false, {event_on(source, 1)}});
    fences.add(400, {500, Tag::workspace, false, {event_on(source, 3)}});
    CHECK(remove(fences, 0, 100).empty());
    CHECK(remove(fences, 300, 400).empty());
    CHECK(fences.all().size() == 3);
    // The middle of the first: 20 bytes, and two ends stay.
    CHECK(remove(fences, 140, 160) == std::vector<FenceBlock>{{20, Tag::data, {1, 2}}});
    CHECK(remove(fences, 140, 160).empty());
    CHECK(fences.all().size() == 4);
    CHECK(fences.all().at(100).end == 140);
    CHECK(fences.all().at(160).end == 200);
    CHECK(fences.all().at(160).small);
    CHECK(source.live_events() == 4);
    // Across two borders.
    CHECK(remove(fences, 130, 250) ==
          std::vector<FenceBlock>{{10, Tag::data, {1, 2}}, {40, Tag::data, {1, 2}}, {50, Tag::host, {3}}});
    CHECK(remove(fences, 0, 1000) ==
          std::vector<FenceBlock>{{30, Tag::data, {1, 2}}, {50, Tag::host, {3}}, {100, Tag::workspace, {4}}});
    CHECK(fences.empty());
    CHECK(source.live_events() == 0);
    fences.add(0, {10, Tag::data, false, {event_on(source, 1)}});
  }
  CHECK(source.live_events() == 0);
  CHECK(source.calls().forget == 5);
  CHECK(source.violations().empty());
}

TEST_CASE("random fences and reuses match a byte-map model") {
  TestMemorySource source;
  Draws draws(21);
  StreamFences fences;
  std::array<uint64_t, 256> event_of{};  // 0: none
  for (int64_t i = 0; i < test::scaled(20'000); ++i) {
    CAPTURE(i);
    const auto begin = static_cast<int64_t>(draws.below(250));
    const int64_t end = begin + 1 + static_cast<int64_t>(draws.below(static_cast<size_t>(256 - begin)));
    int64_t expected = 0, removed = 0;
    for (int64_t at = begin; at < end; ++at) expected += event_of[static_cast<size_t>(at)] != 0;
    std::array<uint64_t, 256> seen{};
    for (const FenceBlock& piece : remove(fences, begin, end)) {
      removed += piece.bytes;
      seen[piece.events[0] % 256] += static_cast<uint64_t>(piece.bytes);
    }
    REQUIRE(removed == expected);
    for (int64_t at = begin; at < end; ++at) {
      uint64_t& event = event_of[static_cast<size_t>(at)];
      if (event != 0) --seen[event % 256];
      event = 0;
    }
    REQUIRE(seen == std::array<uint64_t, 256>{});
    if (draws.unit() < 0.7) {
      const SourceEventPtr event = event_on(source, static_cast<int>(draws.below(4)));
      for (int64_t at = begin; at < end; ++at) event_of[static_cast<size_t>(at)] = event->id();
      fences.add(begin, {end, Tag::data, false, {event}});
    }
    // The fences are what the bytes say, and no event is kept for nothing.
    size_t bytes = 0;
    for (const auto& [first, fence] : fences.all()) {
      for (int64_t at = first; at < fence.end; ++at)
        if (event_of[static_cast<size_t>(at)] == fence.events[0]->id()) ++bytes;
    }
    size_t fenced = 0;
    for (const uint64_t event : event_of) fenced += event != 0;
    REQUIRE(bytes == fenced);
    REQUIRE(source.live_events() <= static_cast<int64_t>(fences.all().size()));
  }
}

}  // namespace
}  // namespace meshgrad
