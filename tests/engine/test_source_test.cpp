// SPDX-License-Identifier: Apache-2.0
// The tests' own memory source: it sees what it is there to see, and its queues order work as queues do.
#include <doctest/doctest.h>

#include <cstring>
#include <thread>

#include "support.h"
#include "test_memory_source.h"

namespace meshgrad {
namespace {

using test::stream;
using test::TestMemorySource;

constexpr int64_t kSourcePage = 65536;

TestMemorySource::Options small(int64_t pages, bool expandable = true) {
  return {.capacity = pages * kSourcePage, .granularity = kSourcePage, .expandable = expandable};
}

/// The one violation since the last call; empty when there is none or more than one.
class Violations {
 public:
  explicit Violations(const TestMemorySource& source) : source_(source) {}
  std::string next() {
    const std::vector<std::string> all = source_.violations();
    const bool one = all.size() == seen_ + 1;
    seen_ = all.size();
    return one ? all.back() : std::string();
  }

 private:
  const TestMemorySource& source_;
  size_t seen_ = 0;
};

TEST_CASE("two views of one mapping show the same memory") {
  TestMemorySource source(small(8));
  char* range = source.reserve(4 * kSourcePage);
  REQUIRE(source.map(range, 2 * kSourcePage));
  REQUIRE(source.map(range + 2 * kSourcePage, kSourcePage));
  char* low = source.alias(range + kSourcePage + 5);
  char* high = source.alias(range + 2 * kSourcePage);
  REQUIRE(low != nullptr);
  REQUIRE(high != nullptr);
  CHECK(source.alias(range + 3 * kSourcePage) == nullptr);
  range[kSourcePage + 5] = 'a';
  CHECK(*low == 'a');
  *high = 'b';
  CHECK(range[2 * kSourcePage] == 'b');
  source.unmap(range, 2 * kSourcePage);
  CHECK(*low == 0);  // the pages are back with the system
  CHECK(*high == 'b');
  REQUIRE(source.map(range, 2 * kSourcePage));
  range[kSourcePage + 5] = 'c';
  CHECK(*low == 0);  // other pages stand there now
  CHECK(source.reservations() == std::vector<std::pair<char*, int64_t>>{{range, 4 * kSourcePage}});
  CHECK(source.mappings() == std::vector<std::pair<char*, int64_t>>{{range, 2 * kSourcePage},
                                                                    {range + 2 * kSourcePage, kSourcePage}});
  CHECK(source.violations().empty());
}

TEST_CASE("each breach of the contract is seen, and changes nothing") {
  TestMemorySource source(small(8));
  Violations violations(source);
  using test::contains;
  CHECK(source.reserve(kSourcePage + 4096) == nullptr);
  CHECK(contains(violations.next(), "reserve of"));
  CHECK(source.reserve(0) == nullptr);
  CHECK(contains(violations.next(), "reserve of 0"));
  char* range = source.reserve(4 * kSourcePage);
  REQUIRE(source.map(range, 2 * kSourcePage));
  std::memset(range, 'x', 2 * kSourcePage);

  for (const auto& [address, bytes] : {std::pair{range + 2 * kSourcePage, kSourcePage / 2},
                                       {range + 2 * kSourcePage + 4096, kSourcePage},
                                       {range + 2 * kSourcePage, int64_t{0}},
                                       {range + 2 * kSourcePage, 3 * kSourcePage},
                                       {range + 4 * kSourcePage, kSourcePage},
                                       {range - kSourcePage, kSourcePage}}) {
    CHECK_FALSE(source.map(address, bytes));
    CHECK(contains(violations.next(), "not pages of a reservation"));
  }
  for (const auto& [first, pages] : {std::pair{0, 2}, {1, 1}, {1, 2}, {0, 4}}) {
    CHECK_FALSE(source.map(range + first * kSourcePage, pages * kSourcePage));
    CHECK(contains(violations.next(), "over what is mapped"));
  }
  for (const auto& [first, pages] : {std::pair{0, 1}, {1, 1}, {0, 4}, {2, 1}}) {
    source.unmap(range + first * kSourcePage, pages * kSourcePage);
    CHECK(contains(violations.next(), "no map() gave that"));
  }
  source.release(range, 4 * kSourcePage);
  CHECK(contains(violations.next(), "something is mapped"));
  source.release(range, 2 * kSourcePage);
  CHECK(contains(violations.next(), "no reserve() gave that"));
  source.release(range + kSourcePage, 3 * kSourcePage);
  CHECK(contains(violations.next(), "no reserve() gave that"));
  CHECK(source.mapped_bytes() == 2 * kSourcePage);
  CHECK(range[2 * kSourcePage - 1] == 'x');

  source.unmap(range, 2 * kSourcePage);
  source.unmap(range, 2 * kSourcePage);
  CHECK(contains(violations.next(), "no map() gave that"));
  source.release(range, 4 * kSourcePage);
  source.release(range, 4 * kSourcePage);
  CHECK(contains(violations.next(), "no reserve() gave that"));
  CHECK(source.mapped_bytes() == 0);
}

TEST_CASE("a reservation that does not expand is mapped whole") {
  TestMemorySource source(small(8, false));
  Violations violations(source);
  char* range = source.reserve(4 * kSourcePage);
  CHECK_FALSE(source.map(range, 2 * kSourcePage));
  CHECK(test::contains(violations.next(), "does not expand"));
  CHECK(source.map(range, 4 * kSourcePage));
  source.unmap(range, 4 * kSourcePage);
  source.release(range, 4 * kSourcePage);
  CHECK(violations.next().empty());
}

TEST_CASE("the n-th call is refused, once, and a capacity may shrink") {
  TestMemorySource source(small(4));
  source.fail_at(1);
  CHECK(source.reserve(kSourcePage) == nullptr);
  source.fail_at(3);
  char* range = source.reserve(4 * kSourcePage);
  REQUIRE(range != nullptr);
  CHECK(source.map(range, kSourcePage));
  CHECK_FALSE(source.map(range + kSourcePage, kSourcePage));
  CHECK(source.map(range + kSourcePage, kSourcePage));
  source.set_capacity(2 * kSourcePage);
  CHECK(source.capacity() == 2 * kSourcePage);
  CHECK_FALSE(source.map(range + 2 * kSourcePage, kSourcePage));
  source.unmap(range + kSourcePage, kSourcePage);
  CHECK(source.map(range + 2 * kSourcePage, kSourcePage));
  const TestMemorySource::Calls calls = source.calls();
  CHECK(calls.reserve == 2);
  CHECK(calls.map == 5);
  CHECK(calls.unmap == 1);
  CHECK(calls.refused == 3);
  CHECK(source.violations().empty());
}

TEST_CASE("calls take the time that was set") {
  TestMemorySource source(small(4));
  source.set_latency(std::chrono::milliseconds(10));
  const auto start = std::chrono::steady_clock::now();
  char* range = source.reserve(kSourcePage);
  source.map(range, kSourcePage);
  source.unmap(range, kSourcePage);
  source.release(range, kSourcePage);
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(40));
}

TEST_CASE("work follows only its stream and what that waits for") {
  TestMemorySource source;
  const uint64_t work = source.queue_work(stream(1));
  CHECK(source.ordered_after(stream(1), work));
  CHECK_FALSE(source.ordered_after(stream(2), work));
  const uint64_t event = source.record(stream(1));
  const uint64_t later = source.queue_work(stream(1));
  source.wait(stream(2), event);
  CHECK(source.ordered_after(stream(2), work));
  CHECK_FALSE(source.ordered_after(stream(2), later));
  CHECK_FALSE(source.ordered_after(stream(3), work));
  // Through another stream, but only by an event that was recorded after it waited.
  const uint64_t relay = source.record(stream(2));
  source.wait(stream(3), relay);
  CHECK(source.ordered_after(stream(3), work));
  const uint64_t early = source.record(stream(4));
  source.wait(stream(4), relay);
  source.wait(stream(5), early);
  CHECK_FALSE(source.ordered_after(stream(5), work));
  CHECK(source.ordered_after(stream(4), work));
  source.wait(stream(6), 0);  // no event: nothing to wait for
  CHECK_FALSE(source.ordered_after(stream(6), work));
  CHECK(source.violations().empty());
}

TEST_CASE("what the host knows to be done precedes everything") {
  TestMemorySource source;
  const uint64_t a = source.queue_work(stream(1));
  const uint64_t first = source.record(stream(1));
  source.wait(stream(2), first);
  const uint64_t b = source.queue_work(stream(2));
  const uint64_t second = source.record(stream(2));
  const uint64_t c = source.queue_work(stream(2));
  CHECK_FALSE(source.completed(first));
  source.complete(second);  // and with it the first, which it waited for
  CHECK(source.completed(first));
  CHECK(source.completed(second));
  CHECK(source.ordered_after(stream(3), a));
  CHECK(source.ordered_after(stream(3), b));
  CHECK_FALSE(source.ordered_after(stream(3), c));
  const uint64_t third = source.record(stream(2));
  CHECK_FALSE(source.completed(third));
  source.synchronize(stream(2));
  CHECK(source.completed(third));
  CHECK(source.ordered_after(stream(3), c));
  CHECK(source.calls().synchronize == 1);
  CHECK(source.calls().record == 3);
  CHECK(source.calls().wait == 1);
}

TEST_CASE("every event is forgotten exactly once") {
  TestMemorySource source;
  Violations violations(source);
  const uint64_t a = source.record(stream(1));
  const uint64_t b = source.record(stream(1));
  CHECK(a != b);
  CHECK(source.live_events() == 2);
  source.forget(a);
  CHECK(source.live_events() == 1);
  source.forget(a);
  CHECK(test::contains(violations.next(), "forgotten already"));
  source.wait(stream(2), a);
  CHECK(test::contains(violations.next(), "forgotten already"));
  source.forget(99);
  CHECK(test::contains(violations.next(), "none"));
  CHECK(source.live_events() == 1);
  source.complete(a);  // forget() does not remove it from the queue
  CHECK(source.completed(a));
  CHECK_FALSE(source.completed(b));
  source.forget(b);
  CHECK(source.live_events() == 0);
  CHECK(violations.next().empty());
}

TEST_CASE("questions may come from other threads") {
  TestMemorySource source(small(64));
  std::thread asker([&source] {
    for (int i = 0; i < 2000; ++i) {
      const uint64_t work = source.queue_work(stream(i % 3));
      static_cast<void>(source.ordered_after(stream(0), work));
      source.set_latency(std::chrono::nanoseconds(i % 2));
    }
  });
  for (int i = 0; i < 500; ++i) {
    char* range = source.reserve(kSourcePage);
    source.map(range, kSourcePage);
    *range = 'x';
    const uint64_t event = source.record(stream(1));
    source.wait(stream(2), event);
    source.forget(event);
    source.unmap(range, kSourcePage);
    source.release(range, kSourcePage);
  }
  asker.join();
  CHECK(source.violations().empty());
  CHECK(source.mapped_bytes() == 0);
}

}  // namespace
}  // namespace meshgrad
