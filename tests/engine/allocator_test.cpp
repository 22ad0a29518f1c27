// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/memory/source_host.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "support.h"

namespace meshgrad {
namespace {

using test::contains;

struct Fixture {
  explicit Fixture(int64_t limit)
      : source(std::make_shared<HostMemorySource>(limit)), allocator(CachingAllocator::create(source)) {}
  StoragePtr take(int64_t bytes, Tag tag = Tag::data, std::string_view name = {}, int64_t alignment = 1) {
    return allocator->allocate(bytes, alignment, stream, tag, name);
  }
  std::string out_of_memory_text(int64_t bytes) {
    try {
      take(bytes, Tag::workspace, "scratch");
    } catch (const OutOfMemory& error) {
      return error.what();
    }
    return {};
  }
  ThreadPool pool{1};
  Stream stream{Device{}, pool};
  std::shared_ptr<HostMemorySource> source;
  std::shared_ptr<CachingAllocator> allocator;
};

TEST_CASE("a freed block is reused without another call of the source") {
  Fixture f(64 * kMiB);
  void* const first = f.take(1000)->data();
  const int64_t calls = f.allocator->stats().source_calls;
  for (int i = 0; i < 100; ++i) CHECK(f.take(1000)->data() == first);
  CHECK(f.allocator->stats().source_calls == calls);
  CHECK(f.allocator->stats().allocations == 101);
}

TEST_CASE("neighbours that are free become one block") {
  Fixture f(16 * kMiB);
  StoragePtr a = f.take(4 * kMiB), b = f.take(4 * kMiB), c = f.take(4 * kMiB), d = f.take(4 * kMiB);
  for (StoragePtr* order : {&b, &d, &a, &c}) order->reset();
  CHECK(f.allocator->stats().largest_free == 16 * kMiB);
  CHECK(f.allocator->stats().external_fragmentation() == 0.0);
  a = f.take(4 * kMiB);
  b = f.take(4 * kMiB);
  c = f.take(4 * kMiB);
  b.reset();
  // Two holes of 4 MiB: half of what is free is not in the largest.
  CHECK(f.allocator->stats().external_fragmentation() == doctest::Approx(0.5));
}

TEST_CASE("an allocator goes on after out of memory") {
  Fixture f(8 * kMiB);
  const StoragePtr held = f.take(6 * kMiB, Tag::activations, "processor.3");
  const std::string text = f.out_of_memory_text(4 * kMiB);
  CHECK_MESSAGE(contains(text, "scratch"), text);
  CHECK_MESSAGE(contains(text, "needed 4194304 bytes for workspace"), text);
  CHECK_MESSAGE(contains(text, "cpu has no room"), text);
  CHECK_MESSAGE(contains(text, "capacity 8.0 MiB"), text);
  CHECK_MESSAGE(contains(text, "processor.3 (activations)"), text);
  CHECK_MESSAGE(contains(text, "fix: "), text);
  CHECK(f.allocator->stats().out_of_memory == 1);
  CHECK(f.allocator->stats().live_allocations == 1);
  CHECK(f.take(kMiB) != nullptr);
  CHECK(contains(f.out_of_memory_text(int64_t{1} << 62), "needed 4611686018427387904 bytes"));
  CHECK(f.take(kMiB) != nullptr);
}

TEST_CASE("cached memory is unmapped before OutOfMemory is thrown") {
  Fixture f(8 * kMiB);
  StoragePtr unused = f.take(4 * kMiB);
  const StoragePtr held = f.take(kMiB);
  unused.reset();
  const StoragePtr large = f.take(5 * kMiB);
  CHECK(large->bytes() == 5 * kMiB);
  CHECK(f.source->mapped_bytes() <= 8 * kMiB);
  CHECK(f.allocator->stats().flushes == 1);
  CHECK(f.allocator->stats().retries == 1);
  CHECK(f.allocator->stats().out_of_memory == 0);
}

TEST_CASE("callbacks are asked in order until memory is enough") {
  Fixture f(8 * kMiB);
  StoragePtr spare = f.take(6 * kMiB);
  std::string calls;
  f.allocator->on_out_of_memory([&] {
    calls += "a";
    return false;
  });
  f.allocator->on_out_of_memory([&] {
    calls += "b";
    const bool had = spare != nullptr;
    spare.reset();
    return had;
  });
  const StoragePtr storage = f.take(5 * kMiB);
  CHECK(storage->bytes() == 5 * kMiB);
  CHECK(calls == "ab");
  CHECK(f.allocator->stats().out_of_memory == 0);
  CHECK(f.out_of_memory_text(5 * kMiB) != "");
  CHECK(calls == "abab");
}

TEST_CASE("release_cached keeps what is in use") {
  Fixture f(64 * kMiB);
  const StoragePtr small = f.take(100);
  std::memset(small->data(), 7, 100);
  f.take(20 * kMiB).reset();
  const int64_t before = f.source->mapped_bytes();
  const int64_t released = f.allocator->release_cached();
  CHECK(released >= 20 * kMiB);
  CHECK(f.source->mapped_bytes() == before - released);
  CHECK(f.allocator->stats().reserved.current == f.source->mapped_bytes());
  CHECK(static_cast<char*>(small->data())[99] == 7);
  CHECK(f.allocator->release_cached() == 0);
}

TEST_CASE("peaks start anew after reset_peak") {
  Fixture f(64 * kMiB);
  f.take(10 * kMiB, Tag::workspace).reset();
  const StoragePtr small = f.take(1000, Tag::workspace);
  CHECK(f.allocator->stats().requested.peak == 10 * kMiB);
  f.allocator->reset_peak();
  const MemoryStats stats = f.allocator->stats();
  CHECK(stats.requested.peak == 1000);
  CHECK(stats.allocated.peak == stats.allocated.current);
  CHECK(stats.reserved.peak == stats.reserved.current);
  CHECK(stats.by_tag[static_cast<size_t>(Tag::workspace)].allocated.peak == stats.allocated.current);
  CHECK(stats.requested.total == 10 * kMiB + 1000);
}

TEST_CASE("scopes name allocations and nest") {
  Fixture f(64 * kMiB);
  std::vector<StoragePtr> held;
  {
    const MemoryScope outer(*f.allocator, "processor.3");
    const MemoryScope inner(*f.allocator, "edge_mlp");
    held.push_back(f.take(3 * kMiB, Tag::activations));
    held.push_back(f.take(2 * kMiB, Tag::activations, "out"));
  }
  held.push_back(f.take(kMiB, Tag::parameters));
  const std::string report = f.allocator->report();
  CHECK_MESSAGE(contains(report, "largest owner 1: 3.0 MiB in processor.3/edge_mlp (activations)"), report);
  CHECK_MESSAGE(contains(report, "largest owner 2: 2.0 MiB in processor.3/edge_mlp/out (activations)"),
                report);
  CHECK_MESSAGE(contains(report, "largest owner 3: 1.0 MiB in unnamed (parameters)"), report);
  CHECK_MESSAGE(contains(report, "allocated 6.0 MiB"), report);
}

TEST_CASE("a bad request is refused and changes nothing") {
  Fixture f(64 * kMiB);
  CHECK_THROWS_AS(f.take(-1), InvalidArgument);
  CHECK_THROWS_AS(f.take(1, Tag::data, {}, 3), InvalidArgument);
  CHECK_THROWS_AS(f.take(1, Tag::data, {}, 0), InvalidArgument);
  CHECK_THROWS_AS(f.take(1, Tag::data, {}, 8192), InvalidArgument);
  const Stream elsewhere(Device{DeviceKind::cuda, 0}, f.pool);
  CHECK_THROWS_AS(f.allocator->allocate(1, 1, elsewhere, Tag::data), InvalidArgument);
  CHECK(f.allocator->stats().allocations == 0);
  const StoragePtr nothing = f.take(0), nothing_else = f.take(0);
  CHECK(nothing->data() != nullptr);
  CHECK(nothing->data() != nothing_else->data());
  CHECK_NOTHROW(f.allocator->record_use(nothing, f.stream));
}

TEST_CASE("a storage outlives its allocator's other holders") {
  auto source = std::make_shared<HostMemorySource>(64 * kMiB);
  StoragePtr storage;
  {
    RuntimeOptions options;
    options.threads = 1;
    options.memory = source;
    Runtime runtime(options);
    storage = runtime.allocator().allocate(1000, 1, runtime.stream(), Tag::data);
  }
  std::memset(storage->data(), 1, 1000);
  CHECK(source->mapped_bytes() > 0);
  storage.reset();
  CHECK(source->mapped_bytes() == 0);
}

TEST_CASE("every tag has a name of its own") {
  std::vector<std::string> names;
  for (int tag = 0; tag < kTagCount; ++tag) names.emplace_back(name_of(static_cast<Tag>(tag)));
  CHECK(names[static_cast<size_t>(Tag::host)] == "host");
  std::sort(names.begin(), names.end());
  CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
}

TEST_CASE("a small block may lie in another stream's slab") {
  Fixture f(8 * kMiB);
  const Stream second{Device{}, 7};
  const StoragePtr large = f.take(6 * kMiB);
  const StoragePtr small = f.take(64 << 10);
  REQUIRE(f.source->mapped_bytes() == 8 * kMiB);
  const StoragePtr lent = f.allocator->allocate(64 << 10, 1, second, Tag::data);
  CHECK(lent->bytes() == 64 << 10);
  CHECK(f.allocator->stats().borrows == 1);
  CHECK(f.allocator->stats().out_of_memory == 0);
}

TEST_CASE("two streams with one id are refused") {
  Fixture f(8 * kMiB);
  int first = 0, second = 0;
  const StoragePtr block = f.allocator->allocate(1, 1, Stream(Device{}, 3, &first), Tag::data);
  CHECK_THROWS_AS(f.allocator->allocate(1, 1, Stream(Device{}, 3, &second), Tag::data), InvalidArgument);
  CHECK_THROWS_AS(f.allocator->record_use(block, Stream(Device{}, 3, &second)), InvalidArgument);
}

TEST_CASE("the record of an out-of-memory error is of its moment") {
  const auto allocator =
      CachingAllocator::create(std::make_shared<HostMemorySource>(8 * kMiB), {.history = 100});
  const Stream stream{Device{}};
  StoragePtr held = allocator->allocate(6 * kMiB, 1, stream, Tag::activations, "held");
  CHECK_THROWS_AS(allocator->allocate(4 * kMiB, 1, stream, Tag::data), OutOfMemory);
  held.reset();
  const MemoryRecord then = allocator->record();
  CHECK(then.history.events.back().kind == MemoryEvent::Kind::out_of_memory);
  CHECK(then.snapshot.stats.live_allocations == 1);
  CHECK(allocator->record().snapshot.stats.live_allocations == 0);
}

}  // namespace
}  // namespace meshgrad
