// SPDX-License-Identifier: Apache-2.0
// The allocator as others use it: raw pointers, owners that outlive it, two of them, memory of a host
// application.
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/memory/source_callback.h>

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <set>

#include "allocator_recount.h"

namespace meshgrad {
namespace {

using test::stream;
using test::TestMemorySource;

std::shared_ptr<TestMemorySource> make_source(int64_t capacity = 16 * kMiB) {
  return std::make_shared<TestMemorySource>(
      TestMemorySource::Options{.capacity = capacity, .granularity = 64 * kKiB});
}

TEST_CASE("raw pointers are counted like all others, and freed once") {
  const auto source = make_source();
  const auto allocator = CachingAllocator::create(source);
  void* const pointer = allocator->allocate_raw(1000, 4096, stream(0), Tag::communication, "buffer");
  CHECK(reinterpret_cast<uintptr_t>(pointer) % 4096 == 0);
  std::memset(pointer, 1, 1000);
  const MemorySnapshot snapshot = allocator->snapshot();
  CHECK(test::recount(snapshot, *source) == "");
  CHECK(snapshot.stats.by_tag[static_cast<size_t>(Tag::communication)].requested.current == 1000);
  CHECK(snapshot.segments[0].blocks[0].name == "buffer");
  CHECK_THROWS_AS(allocator->free_raw(static_cast<char*>(pointer) + 512), InvalidArgument);
  CHECK_THROWS_AS(allocator->free_raw(nullptr), InvalidArgument);
  const StoragePtr storage = allocator->allocate(1000, 1, stream(0), Tag::data);
  CHECK_THROWS_AS(allocator->free_raw(storage->data()), InvalidArgument);
  CHECK(allocator->stats().live_allocations == 2);
  allocator->free_raw(pointer);
  CHECK_THROWS_AS(allocator->free_raw(pointer), InvalidArgument);
  CHECK(allocator->stats().live_allocations == 1);
  CHECK(allocator->allocate_raw(1000, 1, stream(0), Tag::host) == pointer);  // reused, and known again
  allocator->free_raw(pointer);
  CHECK(test::recount(allocator->snapshot(), *source) == "");
}

TEST_CASE("a front of a storage is a block of its own") {
  for (const int64_t bytes : {int64_t{3000}, 5 * kMiB}) {  // in a slab, and outside
    const auto source = make_source();
    const auto allocator = CachingAllocator::create(source);
    StoragePtr storage = allocator->allocate(bytes, 64, stream(0), Tag::parameters, "arena",
                                             {.bytes = 1024, .tag = Tag::embed, .name = "tables"});
    CHECK(storage->bytes() == bytes);
    std::memset(storage->data(), 1, static_cast<size_t>(bytes));
    allocator->record_use(storage, stream(1));
    const MemorySnapshot snapshot = allocator->snapshot();
    CHECK(test::recount(snapshot, *source) == "");
    const auto of = [&](Tag tag) {
      return snapshot.stats.by_tag[static_cast<size_t>(tag)].requested.current;
    };
    CHECK(of(Tag::embed) == 1024);
    CHECK(of(Tag::parameters) == bytes - 1024);
    const auto& blocks = snapshot.segments[0].blocks;
    CHECK(blocks[0].name == "tables");
    CHECK(blocks[1].name == "arena");
    CHECK(blocks[1].address == blocks[0].address + 1024);
    storage.reset();
    CHECK(test::recount(allocator->snapshot(), *source) == "");
    CHECK(allocator->stats().live_allocations == 0);
    const auto refused = [&](int64_t front) {
      CHECK_THROWS_AS(
          allocator->allocate(bytes, 64, stream(0), Tag::parameters, {}, {.bytes = front, .tag = Tag::embed}),
          InvalidArgument);
    };
    refused(1000);
    refused(-512);
    refused(round_up(bytes, 512));
  }
}

TEST_CASE("an allocator that goes takes what was never freed with it") {
  const auto source = make_source();
  auto allocator = CachingAllocator::create(source);
  allocator->allocate_raw(kMiB, 1, stream(0), Tag::data);
  StoragePtr storage = allocator->allocate(kMiB, 1, stream(1), Tag::data);
  allocator->record_use(storage, stream(2));
  const uint64_t work = source->queue_work(stream(2));
  allocator.reset();
  std::memset(storage->data(), 1, kMiB);  // it lives as long as its storages
  CHECK(source->mapped_bytes() == 2 * kMiB);
  storage.reset();
  CHECK(source->mapped_bytes() == 0);
  CHECK(source->reservations().empty());
  CHECK(source->live_events() == 0);
  CHECK(source->ordered_after(stream(99), work));  // after waiting for the device
  CHECK(source->violations().empty());
}

TEST_CASE("two allocators know nothing of each other") {
  const auto source = make_source(), other_source = make_source();
  const auto allocator = CachingAllocator::create(source), other = CachingAllocator::create(other_source);
  const StoragePtr mine = allocator->allocate(kMiB, 1, stream(0), Tag::data);
  const StoragePtr theirs = other->allocate(2 * kMiB, 1, stream(0), Tag::data);
  CHECK_THROWS_AS(allocator->record_use(theirs, stream(1)), InvalidArgument);
  CHECK_THROWS_AS(allocator->record_use(nullptr, stream(1)), InvalidArgument);
  CHECK_THROWS_AS(allocator->record_use(mine, Stream(Device{DeviceKind::cuda, 0}, 1)), InvalidArgument);
  char buffer[64];
  const StoragePtr lent = std::make_shared<Storage>(buffer, 64, Device{}, std::function<void()>());
  CHECK_THROWS_AS(allocator->record_use(lent, stream(1)), InvalidArgument);
  void* const raw = other->allocate_raw(512, 1, stream(0), Tag::data);
  CHECK_THROWS_AS(allocator->free_raw(raw), InvalidArgument);
  other->free_raw(raw);
  other->release_cached();
  other->reset_peak();
  CHECK(allocator->stats().reserved.current == kMiB);
  CHECK(other->stats().allocated.current == 2 * kMiB);
  CHECK(test::recount(allocator->snapshot(), *source) == "");
  CHECK(test::recount(other->snapshot(), *other_source) == "");
}

TEST_CASE("two allocators may share a source, each with a limit") {
  const auto source = make_source(8 * kMiB);
  const auto allocator = CachingAllocator::create(source, {.memory_limit = 3 * kMiB}),
             other = CachingAllocator::create(source);
  const StoragePtr mine = allocator->allocate(3 * kMiB, 1, stream(0), Tag::data);
  const StoragePtr theirs = other->allocate(5 * kMiB, 1, stream(0), Tag::data);
  CHECK_THROWS_AS(allocator->allocate(512, 1, stream(0), Tag::data), OutOfMemory);
  CHECK_THROWS_AS(other->allocate(512, 1, stream(0), Tag::data), OutOfMemory);
  CHECK(allocator->stats().reserved.current + other->stats().reserved.current == source->mapped_bytes());
}

TEST_CASE("a borrowed storage is released once, with its last owner") {
  int released = 0;
  char buffer[8];
  StoragePtr storage = std::make_shared<Storage>(buffer, 8, Device{}, [&] { ++released; });
  StoragePtr second = storage;
  storage.reset();
  CHECK(released == 0);
  CHECK(second->data() == buffer);
  second.reset();
  CHECK(released == 1);
}

TEST_CASE("an application's memory is used to the last byte, and freed") {
  std::multiset<int64_t> lent;
  MemoryCallbacks callbacks;
  callbacks.allocate = [&](int64_t bytes) {
    lent.insert(bytes);
    return std::malloc(static_cast<size_t>(bytes));
  };
  callbacks.free = [&](void* memory, int64_t bytes) {
    lent.erase(lent.find(bytes));
    std::free(memory);
  };
  {
    const auto source = std::make_shared<CallbackMemorySource>(callbacks, Device{}, 8 * kMiB, 64 * kKiB);
    const auto allocator = CachingAllocator::create(source);
    StoragePtr first = allocator->allocate(100, 4096, stream(0), Tag::data);
    CHECK(lent.size() == 1);
    CHECK(allocator->stats().reserved.current == 2 * kMiB);
    StoragePtr second = allocator->allocate(5 * kMiB, 1, stream(0), Tag::data);  // 20 MiB are too many
    CHECK(allocator->stats().reserved.current == 7 * kMiB);
    std::memset(first->data(), 1, 100);
    std::memset(second->data(), 2, 5 * kMiB);
    CHECK_THROWS_AS(allocator->allocate(2 * kMiB, 1, stream(0), Tag::data), OutOfMemory);
    CHECK(static_cast<char*>(first->data())[99] == 1);
    second.reset();
    CHECK(allocator->release_cached() == 5 * kMiB);
    CHECK(lent.size() == 1);
    CHECK(test::recount(allocator->snapshot()) == "");
    CHECK(allocator->stats().reserved.current == source->mapped_bytes());
  }
  CHECK(lent.empty());
}

TEST_CASE("snapshots name a block by address, tag, stream and name") {
  const auto source = make_source();
  const auto allocator = CachingAllocator::create(source);
  const MemoryScope outer(*allocator, "outer");
  const StoragePtr storage = allocator->allocate(700, 1, stream(3), Tag::recompute, "inner");
  const MemorySnapshot snapshot = allocator->snapshot();
  REQUIRE(snapshot.segments.size() == 1);
  const MemorySnapshot::Segment& segment = snapshot.segments[0];
  CHECK(segment.stream == 3);
  CHECK(segment.bytes == 64 * kKiB);
  CHECK(segment.range == segment.address);
  CHECK(segment.mappings == std::vector<int64_t>{segment.address});
  REQUIRE(segment.blocks.size() == 2);
  const MemorySnapshot::Block& block = segment.blocks[0];
  CHECK(block.address == reinterpret_cast<int64_t>(storage->data()));
  CHECK(block.bytes == 1024);
  CHECK(block.requested == 700);
  CHECK(block.stream == 3);
  CHECK(block.tag == Tag::recompute);
  CHECK(block.name == "outer/inner");
  CHECK(segment.blocks[1].state == MemorySnapshot::State::free);
}

TEST_CASE("the history has every event with stream, tag and name") {
  const auto source = make_source();
  const auto allocator = CachingAllocator::create(source, {.history = 10});
  StoragePtr storage = allocator->allocate(700, 1, stream(3), Tag::recompute, "it");
  const auto address = reinterpret_cast<int64_t>(storage->data());
  storage.reset();
  allocator->release_cached();
  const MemoryHistory history = allocator->history();
  using Kind = MemoryEvent::Kind;
  const Kind kinds[] = {Kind::segment_map, Kind::alloc, Kind::free_requested, Kind::free_completed,
                        Kind::segment_unmap};
  REQUIRE(history.events.size() == 5);
  for (size_t i = 0; i < 5; ++i) {
    const MemoryEvent& event = history.events[i];
    const bool of_segment = i == 0 || i == 4;
    CHECK(event.kind == kinds[i]);
    CHECK(event.stream == 3);
    CHECK(event.address == address);
    CHECK(event.bytes == (of_segment ? 64 * kKiB : 700));
    CHECK(history.names[event.name] == (of_segment ? "" : "it"));
    if (!of_segment) CHECK(event.tag == Tag::recompute);
    if (i > 0) CHECK(event.nanoseconds >= history.events[i - 1].nanoseconds);
  }
}

}  // namespace
}  // namespace meshgrad
