// SPDX-License-Identifier: Apache-2.0
// Memory that several streams use: nothing is handed out before the work that may still use it, and what is
// handed out does not depend on how fast that work is.
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/caching_allocator.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "allocator_recount.h"

namespace meshgrad {
namespace {

using test::Draws;
using test::stream;
using test::TestMemorySource;

struct StreamAllocator {
  explicit StreamAllocator(int64_t capacity, bool expandable = true)
      : source(std::make_shared<TestMemorySource>(TestMemorySource::Options{
            .capacity = capacity, .granularity = 64 * kKiB, .expandable = expandable})),
        allocator(CachingAllocator::create(source)) {}
  StoragePtr take(int64_t bytes, int on) { return allocator->allocate(bytes, 1, stream(on), Tag::data); }
  int64_t waits() const { return source->calls().wait; }
  std::shared_ptr<TestMemorySource> source;
  std::shared_ptr<CachingAllocator> allocator;
};

TEST_CASE("a stream reuses its own memory without an event or a wait") {
  StreamAllocator f(8 * kMiB);
  StoragePtr block = f.take(kMiB, 1);
  f.allocator->record_use(block, stream(1));
  void* const address = block->data();
  block.reset();
  CHECK(f.take(kMiB, 1)->data() == address);
  CHECK(f.source->calls().record == 0);
  CHECK(f.waits() == 0);
  CHECK(f.allocator->stats().stream_waits == 0);
}

TEST_CASE("memory of other streams is reused after a wait for each") {
  StreamAllocator f(8 * kMiB);
  StoragePtr block = f.take(kMiB, 1);
  void* const address = block->data();
  for (const int user : {2, 3, 2, 1}) f.allocator->record_use(block, stream(user));
  const uint64_t on_2 = f.source->queue_work(stream(2)), on_3 = f.source->queue_work(stream(3));
  CHECK(f.source->calls().record == 0);
  block.reset();
  CHECK(f.source->calls().record == 2);
  CHECK(f.waits() == 0);
  MemorySnapshot snapshot = f.allocator->snapshot();
  CHECK(snapshot.pending.size() == 1);
  CHECK(snapshot.stats.active.current == kMiB);
  CHECK(snapshot.stats.allocated.current == 0);
  CHECK(test::recount(snapshot, *f.source) == "");
  const uint64_t late = f.source->queue_work(stream(2));
  block = f.take(kMiB, 1);
  CHECK(block->data() == address);
  CHECK(f.waits() == 2);
  CHECK(f.allocator->stats().stream_waits == 2);
  CHECK(f.source->ordered_after(stream(1), on_2));
  CHECK(f.source->ordered_after(stream(1), on_3));
  CHECK_FALSE(f.source->ordered_after(stream(1), late));  // queued after it was freed
  CHECK(f.source->live_events() == 0);
  CHECK(f.source->calls().synchronize == 0);
  CHECK(f.allocator->snapshot().pending.empty());
  block.reset();  // only one stream used it: no other is waited for
  CHECK(f.source->calls().record == 2);
  CHECK(f.allocator->stats().active.current == 0);
}

TEST_CASE("each part of fenced memory waits when it is reused") {
  StreamAllocator f(8 * kMiB);
  StoragePtr block = f.take(kMiB, 1);
  f.allocator->record_use(block, stream(2));
  const uint64_t work = f.source->queue_work(stream(2));
  block.reset();
  const StoragePtr first = f.take(256 * kKiB, 1);
  CHECK(f.waits() == 1);
  CHECK(f.source->live_events() == 1);
  CHECK(f.allocator->snapshot().stats.active.current == kMiB);  // 256 KiB in use, the rest pending
  CHECK(test::recount(f.allocator->snapshot(), *f.source) == "");
  const StoragePtr rest = f.take(768 * kKiB, 1);
  CHECK(f.waits() == 2);
  CHECK(f.source->live_events() == 0);
  CHECK(f.source->ordered_after(stream(1), work));
}

TEST_CASE("a stream short of memory borrows from another") {
  StreamAllocator f(2 * kMiB);
  StoragePtr block = f.take(2 * kMiB, 1);
  void* const address = block->data();
  const uint64_t by_1 = f.source->queue_work(stream(1));
  block.reset();
  StoragePtr borrowed = f.take(kMiB, 2);
  CHECK(borrowed->data() == address);
  CHECK(f.allocator->stats().borrows == 1);
  CHECK(f.allocator->stats().flushes == 0);
  CHECK(f.source->ordered_after(stream(2), by_1));
  CHECK(test::recount(f.allocator->snapshot(), *f.source) == "");
  f.allocator->record_use(borrowed, stream(2));  // its own stream: one event all the same
  f.allocator->record_use(borrowed, stream(3));
  const uint64_t by_2 = f.source->queue_work(stream(2)), by_3 = f.source->queue_work(stream(3));
  const int64_t recorded = f.source->calls().record;
  borrowed.reset();
  CHECK(f.source->calls().record == recorded + 2);
  CHECK_FALSE(f.source->ordered_after(stream(1), by_2));
  block = f.take(2 * kMiB, 1);
  CHECK(block->data() == address);
  CHECK(f.source->ordered_after(stream(1), by_2));
  CHECK(f.source->ordered_after(stream(1), by_3));
  CHECK(f.source->live_events() == 0);
  CHECK(test::recount(f.allocator->snapshot(), *f.source) == "");
}

TEST_CASE("the host waits before its memory is unmapped") {
  StreamAllocator f(8 * kMiB);
  StoragePtr block = f.take(kMiB, 1);
  f.allocator->record_use(block, stream(2));
  const uint64_t by_1 = f.source->queue_work(stream(1)), by_2 = f.source->queue_work(stream(2));
  const StoragePtr kept = f.take(kMiB, 1);
  CHECK(f.allocator->release_cached() == 0);
  CHECK(f.source->calls().synchronize == 0);
  block.reset();
  CHECK(f.allocator->release_cached() == kMiB);
  CHECK(f.source->ordered_after(stream(99), by_1));  // a stream that waits for nothing: the host knows
  CHECK(f.source->ordered_after(stream(99), by_2));
  CHECK(f.source->live_events() == 0);
  CHECK(f.allocator->stats().active.current == kMiB);
  CHECK(test::recount(f.allocator->snapshot(), *f.source) == "");
}

/// What a caller can see of reuses after six events, each address relative to the first.
struct Answer {
  std::vector<int64_t> seen;
  bool early = false;
  bool operator==(const Answer&) const = default;
};

/// Six blocks, used on six other streams and freed; of their events `completed_before` complete, in the
/// order given, before memory is asked for again, and the rest between the requests.
Answer ask(const std::array<uint64_t, 6>& order, size_t completed_before) {
  StreamAllocator f(3 * kMiB);
  std::vector<StoragePtr> blocks;
  std::vector<uint64_t> work;
  for (int i = 0; i < 6; ++i) blocks.push_back(f.take(512 * kKiB, 0));
  const auto* const base = static_cast<char*>(blocks[0]->data());
  for (int i = 0; i < 6; ++i) {
    f.allocator->record_use(blocks[static_cast<size_t>(i)], stream(1 + i));
    work.push_back(f.source->queue_work(stream(1 + i)));
  }
  blocks.clear();
  size_t next = 0;
  while (next < completed_before) f.source->complete(order[next++]);
  Answer answer;
  // Parts of one, parts of two, on their own stream, on one that used it, and borrowed.
  const std::pair<int64_t, int> requests[] = {{384 * kKiB, 0}, {512 * kKiB, 0}, {128 * kKiB, 9},
                                              {512 * kKiB, 3}, {768 * kKiB, 0}, {256 * kKiB, 9}};
  for (const auto& [bytes, on] : requests) {
    blocks.push_back(f.take(bytes, on));
    const int64_t begin = static_cast<char*>(blocks.back()->data()) - base;
    for (int64_t i = begin / (512 * kKiB); i * 512 * kKiB < begin + bytes; ++i)
      answer.early = answer.early || !f.source->ordered_after(stream(on), work[static_cast<size_t>(i)]);
    const MemoryStats stats = f.allocator->stats();
    answer.seen.insert(answer.seen.end(), {begin, f.waits(), f.source->mapped_bytes(), stats.stream_waits,
                                           stats.active.current, f.source->live_events()});
    if (next < order.size()) f.source->complete(order[next++]);
  }
  if (test::recount(f.allocator->snapshot(), *f.source) != "") answer.early = true;
  return answer;
}

TEST_CASE("all 720 orders of six events give the same answer") {
  std::array<uint64_t, 6> order{};
  std::iota(order.begin(), order.end(), 1);
  const Answer expected = ask(order, 0);
  CHECK_FALSE(expected.early);
  CHECK(expected.seen[1] == 1);  // the first request waited
  constexpr int kStride = test::kThreadSanitizer ? 6 : test::kSanitizer ? 3 : 1;
  int runs = 0;
  do {
    for (size_t before = 0; before <= order.size(); before += kStride, ++runs)
      if (const Answer answer = ask(order, before); !(answer == expected)) FAIL("another answer");
  } while (std::next_permutation(order.begin(), order.end()));
  CHECK(runs == 720 * (1 + 6 / kStride));
}

/// Knows what work may still use which addresses; each unmap is checked when it happens.
class Watched final : public MemorySource {
 public:
  explicit Watched(std::shared_ptr<TestMemorySource> source) : source_(std::move(source)) {}
  Device device() const override { return source_->device(); }
  int64_t capacity() const override { return source_->capacity(); }
  int64_t mapped_bytes() const override { return source_->mapped_bytes(); }
  int64_t granularity() const override { return source_->granularity(); }
  bool expandable() const override { return source_->expandable(); }
  char* reserve(int64_t bytes) override { return source_->reserve(bytes); }
  bool map(char* address, int64_t bytes) override { return source_->map(address, bytes); }
  void unmap(char* address, int64_t bytes) override {
    // A stream that never waited for anything: what precedes it, the host knows to be done.
    if (!free_for(address, bytes, stream(99))) early_unmaps++;
    forget_work(address, bytes);
    source_->unmap(address, bytes);
  }
  void release(char* address, int64_t bytes) override { source_->release(address, bytes); }
  uint64_t record(const Stream& on) override { return source_->record(on); }
  void wait(const Stream& on, uint64_t event) override { source_->wait(on, event); }
  void forget(uint64_t event) override { source_->forget(event); }
  void synchronize(const Stream& on) override { source_->synchronize(on); }

  /// Work on the streams used [address, address + bytes).
  void used(const char* address, int64_t bytes, const std::vector<uint64_t>& work) {
    if (bytes > 0) uses_.push_back({address, address + bytes, work});
  }
  bool free_for(const char* address, int64_t bytes, const Stream& on) {
    return std::all_of(uses_.begin(), uses_.end(), [&](const Use& use) {
      return use.end <= address || use.begin >= address + bytes ||
             std::all_of(use.work.begin(), use.work.end(),
                         [&](uint64_t work) { return source_->ordered_after(on, work); });
    });
  }
  void forget_work(const char* address, int64_t bytes) {
    std::vector<Use> rest;
    for (const Use& use : uses_) {
      if (use.begin < address) rest.push_back({use.begin, std::min(use.end, address), use.work});
      if (use.end > address + bytes)
        rest.push_back({std::max(use.begin, address + bytes), use.end, use.work});
    }
    uses_ = std::move(rest);
  }
  int64_t early_unmaps = 0;

 private:
  struct Use {
    const char* begin;
    const char* end;
    std::vector<uint64_t> work;
  };
  std::shared_ptr<TestMemorySource> source_;
  std::vector<Use> uses_;  // of memory that is free
};

struct Held {
  StoragePtr storage;
  std::vector<int> users;  // the stream it was allocated for, and those recorded
  std::vector<uint64_t> work;
};

/// Queues random work, moves random memory between streams; false when something came too early.
std::string run_random(uint64_t seed, bool expandable, MemoryStats& stats) {
  const auto source = std::make_shared<TestMemorySource>(TestMemorySource::Options{
      .capacity = (expandable ? 2 : 24) * kMiB, .granularity = 64 * kKiB, .expandable = expandable});
  const auto watched = std::make_shared<Watched>(source);
  auto allocator = CachingAllocator::create(watched);
  Draws draws(seed);
  std::vector<Held> held;
  const auto free = [&](size_t number) {
    Held& one = held[number];
    watched->used(static_cast<char*>(one.storage->data()), std::max<int64_t>(one.storage->bytes(), 1),
                  one.work);
    std::swap(one, held.back());
    held.pop_back();
  };
  for (int64_t i = 0; i < 10'000; ++i) {
    const double choice = draws.unit();
    const int on = static_cast<int>(draws.below(4));
    if (choice < 0.35 && held.size() < (i / 300 % 2 == 0 ? 60 : 10)) {
      Held one;
      try {
        one.storage =
            allocator->allocate(draws.size((expandable ? 400 : 4000) * kKiB), 1, stream(on), Tag::data);
      } catch (const OutOfMemory&) {
        while (held.size() > 20) free(draws.below(held.size()));
        continue;
      }
      auto* const address = static_cast<char*>(one.storage->data());
      const int64_t bytes = std::max<int64_t>(one.storage->bytes(), 1);
      if (!watched->free_for(address, bytes, stream(on))) return "reused early: " + std::to_string(i);
      watched->forget_work(address, bytes);
      one.users.push_back(on);
      one.work.push_back(source->queue_work(stream(on)));  // follows all that was there before
      held.push_back(std::move(one));
    } else if (choice < 0.6 && !held.empty()) {
      Held& one = held[draws.below(held.size())];
      one.work.push_back(source->queue_work(stream(one.users[draws.below(one.users.size())])));
    } else if (choice < 0.7 && !held.empty()) {
      Held& one = held[draws.below(held.size())];
      allocator->record_use(one.storage, stream(on));
      one.users.push_back(on);
    } else if (choice < 0.995) {
      if (!held.empty()) free(draws.below(held.size()));
    } else {
      allocator->release_cached();
    }
    if (watched->early_unmaps != 0) return "unmapped early: " + std::to_string(i);
    if (i % 16 == 0) {
      const std::string error = test::recount(allocator->snapshot(), *source);
      if (!error.empty()) return error;
    }
  }
  while (!held.empty()) free(0);
  stats = allocator->stats();
  allocator.reset();
  if (watched->early_unmaps != 0) return "unmapped early at the end";
  return source->live_events() == 0 && source->mapped_bytes() == 0 ? "" : "something was left";
}

TEST_CASE("four streams reuse and unmap no memory too early") {
  for (const bool expandable : {true, false}) {
    for (const uint64_t seed : {1, 2, 3}) {
      CAPTURE(expandable);
      CAPTURE(seed);
      MemoryStats stats;
      CHECK(run_random(seed, expandable, stats) == "");
      CHECK(stats.borrows > 0);
      if (expandable) CHECK(stats.flushes >= 1);
      CHECK(stats.stream_waits > 100);
    }
  }
}

TEST_CASE("a source whose streams need no events makes none") {
  // A CPU's streams run at once: record() says 0, and nothing is pending.
  class Immediate final : public MemorySource {
   public:
    Device device() const override { return source.device(); }
    int64_t capacity() const override { return source.capacity(); }
    int64_t mapped_bytes() const override { return source.mapped_bytes(); }
    int64_t granularity() const override { return source.granularity(); }
    bool expandable() const override { return true; }
    char* reserve(int64_t bytes) override { return source.reserve(bytes); }
    bool map(char* address, int64_t bytes) override { return source.map(address, bytes); }
    void unmap(char* address, int64_t bytes) override { source.unmap(address, bytes); }
    void release(char* address, int64_t bytes) override { source.release(address, bytes); }
    TestMemorySource source{{.capacity = 2 * kMiB, .granularity = 64 * kKiB}};
  };
  const auto source = std::make_shared<Immediate>();
  const auto allocator = CachingAllocator::create(source);
  StoragePtr block = allocator->allocate(2 * kMiB, 1, stream(1), Tag::data);
  allocator->record_use(block, stream(2));
  block.reset();
  CHECK(allocator->snapshot().pending.empty());
  CHECK(allocator->stats().active.current == 0);
  block = allocator->allocate(kMiB, 1, stream(2), Tag::data);
  CHECK(allocator->stats().borrows == 1);
  block.reset();
  CHECK(allocator->stats().stream_waits == 0);
  CHECK(test::recount(allocator->snapshot(), source->source) == "");
}

}  // namespace
}  // namespace meshgrad
