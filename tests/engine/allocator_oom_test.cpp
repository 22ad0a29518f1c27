// SPDX-License-Identifier: Apache-2.0
// When memory runs short: what is tried, in which order, what is said, and that life goes on.
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/memory/source_counted.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "allocator_recount.h"

namespace meshgrad {
namespace {

using test::stream;
using test::TestMemorySource;

struct SmallAllocator {
  explicit SmallAllocator(int64_t capacity, const AllocatorOptions& options = {}, bool expandable = true,
                          int64_t granularity = 64 * kKiB)
      : source(std::make_shared<TestMemorySource>(TestMemorySource::Options{
            .capacity = capacity, .granularity = granularity, .expandable = expandable})),
        allocator(CachingAllocator::create(source, options)) {}
  StoragePtr take(int64_t bytes, int on = 0, Tag tag = Tag::data, std::string_view name = {}) {
    return allocator->allocate(bytes, 1, stream(on), tag, name);
  }
  std::string refusal(int64_t bytes, std::string_view name = {}) {
    try {
      take(bytes, 0, Tag::workspace, name);
    } catch (const OutOfMemory& error) {
      return error.what();
    }
    return {};
  }
  std::string audit() const { return test::recount(allocator->snapshot(), *source); }
  MemoryStats stats() const { return allocator->stats(); }
  std::shared_ptr<TestMemorySource> source;
  std::shared_ptr<CachingAllocator> allocator;
};

TEST_CASE("growth, borrowing, flush and callbacks come in this order") {
  SmallAllocator f(8 * kMiB);
  int calls = 0;
  StoragePtr spare;
  f.allocator->on_out_of_memory([&] {
    ++calls;
    const bool had = spare != nullptr;
    spare.reset();
    return had;
  });
  f.take(2 * kMiB, 1).reset();  // free on stream 1
  f.take(kMiB, 0).reset();      // free on stream 0
  const StoragePtr reused = f.take(kMiB, 0);
  CHECK(f.source->mapped_bytes() == 3 * kMiB);
  const StoragePtr grown = f.take(2 * kMiB, 0);  // though stream 1 has as much
  CHECK(f.source->mapped_bytes() == 5 * kMiB);
  CHECK(f.stats().borrows == 0);
  spare = f.take(3 * kMiB, 0);
  CHECK(f.source->mapped_bytes() == 8 * kMiB);
  const StoragePtr borrowed = f.take(kMiB, 0);
  CHECK(f.stats().borrows == 1);
  CHECK(f.stats().flushes == 0);
  spare.reset();
  spare = f.take(2 * kMiB, 2);  // 3 MiB are free on stream 0
  CHECK(f.stats().borrows == 2);
  CHECK(f.stats().flushes == 0);
  CHECK(calls == 0);
  spare.reset();
  spare = f.take(3 * kMiB, 2);
  CHECK(calls == 0);
  const StoragePtr last = f.take(2 * kMiB, 0);  // nothing can be flushed: the callback frees 3 MiB
  CHECK(calls == 1);
  CHECK(f.stats().out_of_memory == 0);
  CHECK(f.stats().retries == 1);
  CHECK(f.audit() == "");
}

TEST_CASE("a flush unmaps the largest mappings first, and no more") {
  for (const bool expandable : {true, false}) {
    CAPTURE(expandable);
    SmallAllocator f(100 * kMiB, {.history = 100}, expandable);
    const int64_t sizes[] = {10 * kMiB, 30 * kMiB, 20 * kMiB, 40 * kMiB};
    std::vector<StoragePtr> blocks;
    for (int on = 0; on < 4; ++on) blocks.push_back(f.take(sizes[on], on));
    blocks.clear();
    const StoragePtr large = f.take(65 * kMiB, 5);
    std::vector<int64_t> released;
    for (const MemoryEvent& event : f.allocator->history().events)
      if (event.kind == MemoryEvent::Kind::segment_unmap) released.push_back(event.bytes);
    CHECK(std::is_sorted(released.rbegin(), released.rend()));
    if (!expandable) CHECK(released == std::vector<int64_t>{40 * kMiB, 30 * kMiB});
    CHECK(f.stats().flushes == 1);
    CHECK(f.stats().retries == 1);
    CHECK(f.source->mapped_bytes() >= 95 * kMiB);
    CHECK(f.audit() == "");
  }
}

TEST_CASE("an out-of-memory text names request, holders and changes") {
  SmallAllocator f(16 * kMiB, {.memory_limit = 8 * kMiB}, true, 8 * kMiB);
  f.allocator->advise([] {
    return std::vector<std::string>{"lower batch_size to 1", "set recompute = \"all\""};
  });
  std::vector<StoragePtr> held;
  const char* names[] = {"a", "b", "c", "d", "e", "f"};
  for (int i = 0; i < 6; ++i)
    held.push_back(
        f.take((6 - i) * 256 * kKiB, 0, i % 2 == 0 ? Tag::activations : Tag::parameters, names[i]));
  held.push_back(f.take(256 * kKiB, 0, Tag::parameters, "b"));  // with the other of that name
  held.erase(held.begin() + 2);                                 // c: a hole of 1 MiB
  held.push_back(f.take(512, 0, Tag::data, "sixth"));
  const std::string text = f.refusal(5 * kMiB, "scratch");
  const MemoryStats stats = f.stats();
  const std::string largest =
      fmt::format("largest free block {:.1f} MiB ({:.0f} ", static_cast<double>(stats.largest_free) / kMiB,
                  100.0 * stats.external_fragmentation());
  for (const char* part :
       {"[allocate scratch] needed 5242880 bytes for workspace (5.0 MiB), and cpu has no room",
        "capacity 8.0 MiB, reserved 8.0 MiB, allocated 4.5 MiB, free 3.5 MiB within reserved and 0.0 MiB "
        "beyond",
        largest.c_str(), "% of the free bytes lie elsewhere), 3.5 MiB free but pinned by neighbours in use",
        "0.0 MiB lost to rounding, 0 holes", "  parameters             2.5 MiB\n",
        "activations            2.0 MiB\n", "largest owner 1: 1.5 MiB in b (parameters)",
        "largest owner 2: 1.5 MiB in a (activations)", "largest owner 3: 0.8 MiB in d (parameters)",
        "largest owner 4: 0.5 MiB in e (activations)", "largest owner 5: 0.2 MiB in f (parameters)",
        "fix: in this order,\n  1. lower batch_size to 1\n  2. set recompute = \"all\""})
    CHECK_MESSAGE(text.find(part) != std::string::npos, std::string(part), "\n", text);
  CHECK(text.find("largest owner 6") == std::string::npos);
  f.allocator->advise({});
  CHECK(f.refusal(9 * kMiB).find("fix: raise the memory limit") != std::string::npos);
  SmallAllocator whole(kMiB);
  CHECK(whole.refusal(2 * kMiB).find("fix: free what is not needed") != std::string::npos);
  CHECK(whole.refusal(2 * kMiB).find("[allocate] needed") != std::string::npos);
}

TEST_CASE("advice is computed with the allocator unlocked") {
  SmallAllocator f(8 * kMiB);
  int calls = 0;
  f.allocator->advise([&] {
    ++calls;
    std::thread other([&] { f.take(kMiB); });  // would wait for ever for a lock that this thread holds
    other.join();
    CHECK(f.stats().live_allocations == 1);
    const std::string own = f.refusal(20 * kMiB);  // asks for no advice, or this would not end
    return std::vector<std::string>{own.find("fix: free what is not needed") != std::string::npos ? "be bold"
                                                                                                  : own};
  });
  const StoragePtr held = f.take(5 * kMiB);
  const std::string text = f.refusal(4 * kMiB);
  CHECK(calls == 1);
  CHECK_MESSAGE(text.find("fix: be bold") != std::string::npos, text);
  CHECK_MESSAGE(text.find("allocated 5.0 MiB") != std::string::npos, text);  // as it was when memory ran out
  CHECK(f.audit() == "");
  f.allocator->advise([]() -> std::vector<std::string> { throw InvalidArgument("no advice"); });
  CHECK_THROWS_WITH(f.take(4 * kMiB), "no advice");
  f.allocator->advise([&] { return std::vector<std::string>{"be " + std::to_string(++calls)}; });
  CHECK(f.refusal(4 * kMiB).find("fix: be 2") != std::string::npos);
  CHECK(f.stats().out_of_memory == 4);
}

TEST_CASE("after it the allocator is as it was, and what fits is served") {
  SmallAllocator f(8 * kMiB, {.history = 10});
  const StoragePtr held = f.take(5 * kMiB);
  const MemorySnapshot before = f.allocator->snapshot();
  CHECK(f.refusal(4 * kMiB) != "");
  CHECK(f.audit() == "");
  const MemorySnapshot after = f.allocator->snapshot();
  CHECK(after.stats.reserved == before.stats.reserved);
  CHECK(after.stats.requested == before.stats.requested);
  CHECK(after.stats.allocated == before.stats.allocated);
  CHECK(after.stats.allocations == before.stats.allocations);
  CHECK(after.stats.out_of_memory == 1);
  const MemoryEvent event = f.allocator->history().events.back();
  CHECK(event.kind == MemoryEvent::Kind::out_of_memory);
  CHECK(event.bytes == 4 * kMiB);
  CHECK(event.address == 3 * kMiB);
  CHECK(f.take(3 * kMiB)->bytes() == 3 * kMiB);
}

TEST_CASE("a limit makes any source smaller, and never larger") {
  for (const bool expandable : {true, false}) {
    SmallAllocator f(64 * kMiB, {.memory_limit = 4 * kMiB}, expandable);
    CHECK(f.stats().capacity == 4 * kMiB);
    const StoragePtr most = f.take(4 * kMiB);
    CHECK(f.refusal(512) != "");
    CHECK(f.source->mapped_bytes() == 4 * kMiB);
    SmallAllocator wide(4 * kMiB, {.memory_limit = 64 * kMiB}, expandable);
    CHECK(wide.stats().capacity == 4 * kMiB);
    CHECK(wide.refusal(5 * kMiB) != "");
  }
  // Others may use the device too: what the source refuses is no more than a shortage.
  SmallAllocator shared(64 * kMiB);
  const StoragePtr one = shared.take(4 * kMiB);
  shared.source->set_capacity(5 * kMiB);
  CHECK(shared.refusal(2 * kMiB) != "");
  CHECK(shared.take(kMiB)->bytes() == kMiB);
  CHECK(shared.audit() == "");
}

TEST_CASE("refused addresses are released if they come with memory") {
  SmallAllocator f(8 * kMiB, {}, false);
  f.source->set_capacity(0);
  CHECK(f.refusal(kMiB) != "");
  CHECK(f.source->calls().reserve == 2);  // ample, then exact
  CHECK(f.source->reservations().empty());
  CHECK(f.audit() == "");
  f.source->set_capacity(kMiB);
  CHECK(f.take(kMiB) != nullptr);
  CHECK(f.source->mapped_bytes() == kMiB);
  SmallAllocator large(32 * kMiB, {}, false);
  large.source->set_capacity(0);
  CHECK(large.refusal(16 * kMiB) != "");
  CHECK(large.source->calls().reserve == 1);  // ample is exact
}

TEST_CASE("sizes beyond all bounds are refused") {
  for (const int64_t capacity : {INT64_MAX, int64_t{1} << 46}) {
    const auto allocator = CachingAllocator::create(std::make_shared<SimulatedMemorySource>(capacity));
    for (const int64_t bytes : {INT64_MAX, INT64_MAX - 511, int64_t{1} << 62, (int64_t{1} << 61) + 1})
      CHECK_THROWS_AS(allocator->allocate(bytes, 4096, stream(0), Tag::data), OutOfMemory);
    CHECK(allocator->allocate(kMiB, 1, stream(0), Tag::data) != nullptr);
  }
}

TEST_CASE("garbage is collected above the threshold") {
  for (const bool expandable : {true, false}) {
    SmallAllocator f(64 * kMiB, {.garbage_collection_threshold = 0.5}, expandable);
    f.take(16 * kMiB).reset();
    f.take(12 * kMiB, 1).reset();
    CHECK(f.source->mapped_bytes() == 28 * kMiB);
    // 36 of 64 would be more than half; a segment for 4 is one of 20.
    const StoragePtr held = f.take((expandable ? 8 : 4) * kMiB, 2);
    CHECK(f.source->mapped_bytes() <= 32 * kMiB);
    CHECK(f.stats().flushes == 0);
    CHECK(f.audit() == "");
  }
  // What lies below the hole is garbage itself: the growth must do without it.
  SmallAllocator f(8 * kMiB, {.garbage_collection_threshold = 0.25});
  f.take(2 * kMiB).reset();
  CHECK(f.take(3 * kMiB)->bytes() == 3 * kMiB);
  CHECK(f.stats().out_of_memory == 0);
  CHECK(f.stats().flushes == 0);
  CHECK(f.audit() == "");
}

TEST_CASE("a flush after garbage collection survives refusals") {
  SmallAllocator f(16 * kMiB, {.garbage_collection_threshold = 0.9});
  StoragePtr kept[8];
  for (int on = 0; on < 6; ++on) f.take((6 - on) * 256 * kKiB, on).reset();
  kept[0] = f.take(kMiB);
  f.source->set_capacity(2 * kMiB);  // another program uses the rest
  CHECK(f.refusal(15 * kMiB) != "");
  CHECK(f.refusal(12 * kMiB) != "");
  CHECK(f.audit() == "");
  f.source->set_capacity(16 * kMiB);
  CHECK(f.take(12 * kMiB)->bytes() == 12 * kMiB);
}

TEST_CASE("growth during a flush leaves the rest of the flush alone") {
  SmallAllocator f(16 * kMiB, {.garbage_collection_threshold = 0.625}, true, kMiB);
  // A page of hole, 3 free, 2 of hole, 1 used, 5 free, and the end: 9 MiB of at most 10.
  StoragePtr first = f.take(kMiB), low = f.take(3 * kMiB), second = f.take(2 * kMiB);
  const StoragePtr kept = f.take(kMiB);
  first.reset();
  second.reset();
  CHECK(f.allocator->release_cached() == 3 * kMiB);
  StoragePtr high = f.take(5 * kMiB);
  low.reset();
  high.reset();
  REQUIRE(f.source->mapped_bytes() == 9 * kMiB);
  REQUIRE(f.stats().holes == 2);
  f.source->set_capacity(5 * kMiB);  // another program uses the rest
  // 1 MiB would do at the end. When the low pages are gone, the low hole needs 6 MiB: 2 above the threshold.
  CHECK(f.refusal(6 * kMiB) != "");
  CHECK(f.source->mapped_bytes() == kMiB);
  CHECK(f.audit() == "");
  f.source->set_capacity(16 * kMiB);
  CHECK(f.take(6 * kMiB)->bytes() == 6 * kMiB);
  CHECK(f.audit() == "");
}

TEST_CASE("callbacks are asked in order, until one has freed enough") {
  SmallAllocator f(8 * kMiB);
  StoragePtr a = f.take(2 * kMiB), b = f.take(2 * kMiB), c = f.take(4 * kMiB);
  std::string order;
  const auto frees = [&](char name, StoragePtr& storage) {
    f.allocator->on_out_of_memory([&, name] {
      order += name;
      const bool had = storage != nullptr;
      storage.reset();
      return had;
    });
  };
  frees('a', a), frees('b', b), frees('c', c);
  const StoragePtr used = f.take(4 * kMiB);
  CHECK(order == "ab");
  CHECK(c != nullptr);
  CHECK(f.stats().retries == 1);
  CHECK(f.audit() == "");
  CHECK(f.refusal(16 * kMiB) != "");  // more than the capacity: no callback is called
  CHECK(order == "ab");
}

TEST_CASE("a callback may allocate, free and add callbacks") {
  SmallAllocator f(8 * kMiB);
  StoragePtr spare = f.take(6 * kMiB);
  int calls = 0;
  std::string inner;
  f.allocator->on_out_of_memory([&] {
    if (++calls == 1) f.allocator->on_out_of_memory([] { return false; });
    inner = f.refusal(7 * kMiB, "inner");
    const StoragePtr small = f.take(kMiB, 1);
    const bool had = spare != nullptr;
    spare.reset();
    f.allocator->release_cached();
    return had;
  });
  const StoragePtr used = f.take(6 * kMiB);
  CHECK(calls == 1);
  CHECK(inner.find("[allocate inner]") == 0);
  CHECK(f.audit() == "");
  CHECK(f.refusal(4 * kMiB) != "");
  CHECK(calls == 2);
  // Another thread's shortage is its own.
  std::thread([&] { CHECK(f.refusal(4 * kMiB) != ""); }).join();
  CHECK(calls == 3);
}

TEST_CASE("an exception of a callback reaches the caller") {
  SmallAllocator f(4 * kMiB);
  StoragePtr held = f.take(3 * kMiB);
  int calls = 0;
  f.allocator->on_out_of_memory([&]() -> bool {
    if (++calls == 1) throw std::logic_error("no");
    held.reset();
    return true;
  });
  CHECK_THROWS_AS(f.take(2 * kMiB), std::logic_error);
  CHECK(f.stats().live_allocations == 1);
  CHECK(f.audit() == "");
  CHECK(f.take(2 * kMiB) != nullptr);  // asked again, it frees
  CHECK(calls == 2);
}

}  // namespace
}  // namespace meshgrad
