// SPDX-License-Identifier: Apache-2.0
// 100,000 random operations, and after each of them an audit: every counter equals a recount, no two live
// blocks overlap, and every block still holds what was written to it. Under a sanitizer fewer of them.
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/memory/detail/block_heap.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "allocator_recount.h"

namespace meshgrad {
namespace {

using test::Draws;
using test::stream;
using test::TestMemorySource;

constexpr int kStreams = 4;

/// A live allocation, filled with its number.
struct Allocation {
  StoragePtr storage;
  uint64_t number = 0;
  Tag tag = Tag::host;
  int stream = 0;

  unsigned char* bytes() const { return static_cast<unsigned char*>(storage->data()); }
  size_t size() const { return static_cast<size_t>(storage->bytes()); }
  const char* name() const { return number % 3 == 0 ? "third" : ""; }
  void fill() const {
    std::memset(bytes(), static_cast<int>(number % 251), size());
    if (size() >= 16) {
      std::memcpy(bytes(), &number, 8);
      std::memcpy(bytes() + size() - 8, &number, 8);
    }
  }
  /// Its first and last eight bytes.
  bool ends_kept() const {
    return size() < 16 ||
           (std::memcmp(bytes(), &number, 8) == 0 && std::memcmp(bytes() + size() - 8, &number, 8) == 0);
  }
  bool kept() const {
    const size_t edge = size() >= 16 ? 8 : 0;
    const unsigned char byte = static_cast<unsigned char>(number % 251);
    return ends_kept() && std::all_of(bytes() + edge, bytes() + size() - edge,
                                      [byte](unsigned char found) { return found == byte; });
  }
};

struct FuzzSetting {
  const char* name;
  bool expandable;
  int64_t capacity;
  double garbage = 0.0;
};
constexpr FuzzSetting kFuzzSettings[] = {{"one range a stream", true, 10 * kMiB},
                                         {"one range a stream, garbage collected", true, 10 * kMiB, 0.8},
                                         {"segments", false, 10 * kMiB},
                                         {"segments, garbage collected", false, 10 * kMiB, 0.9}};

std::shared_ptr<TestMemorySource> make_source(const FuzzSetting& setting) {
  return std::make_shared<TestMemorySource>(TestMemorySource::Options{
      .capacity = setting.capacity, .granularity = 64 * kKiB, .expandable = setting.expandable});
}

/// What a counter's peak and total must be, from the values after every operation.
struct Track {
  int64_t peak = 0, total = 0;
};

/// One thread's random operations.
class Worker {
 public:
  Worker(CachingAllocator& allocator, TestMemorySource& source, uint64_t seed, size_t most)
      : allocator_(allocator), source_(source), draws_(seed), most_(most) {}

  void step() {
    allocated = nullptr;
    reset = false;
    short_ = short_ && allocations.size() > most_ / 2;  // then only free, until there is room again
    // Many live allocations, few, training, few.
    const uint64_t phase = ++steps_ / 700 % 4;
    if (phase == 2) return train();
    const size_t most = phase == 0 ? most_ : most_ / 4;
    const double choice = draws_.unit();
    if (choice < 0.5 && allocations.size() < most && !short_) {
      allocate();
    } else if (choice < 0.93 || allocations.size() > most) {
      if (!allocations.empty()) free(draws_.below(allocations.size()));
    } else if (choice < 0.985) {
      if (!allocations.empty())
        allocator_.record_use(allocations[draws_.below(allocations.size())].storage,
                              stream(draws_.below(kStreams)));
    } else if (choice < 0.988) {
      allocator_.release_cached();
    } else if (choice < 0.992) {
      allocator_.reset_peak();
      reset = true;
    } else {
      source_.fail_at(static_cast<int64_t>(1 + draws_.below(3)));
    }
  }
  void free(size_t number) {
    if (!allocations[number].kept()) broken = true;
    allocations[number] = std::move(allocations.back());
    allocations.pop_back();
  }

  std::vector<Allocation> allocations;
  const Allocation* allocated = nullptr;  // by the last step
  bool reset = false;                     // the last step was a reset_peak()
  bool broken = false;                    // an allocation did not hold its pattern
  int64_t refused = 0;

 private:
  /// A repeated pattern, which the placement policy can predict.
  void train() {
    constexpr int64_t kBytes[] = {600 * kKiB, 400 * kKiB, 300 * kKiB};
    constexpr struct {
      bool allocates;
      size_t which;
    } kStep[] = {{true, 0}, {true, 1}, {false, 0}, {true, 2}, {false, 1}, {false, 2}};
    const auto [allocates, which] = kStep[steps_ % std::size(kStep)];
    if (allocates) {
      trained_[which] = allocate(kBytes[which], 1, Tag::activations, 0);
      return;
    }
    for (size_t i = 0; i < allocations.size(); ++i)
      if (allocations[i].number == trained_[which]) return free(i);
  }
  void allocate() {
    const auto tag = static_cast<Tag>(draws_.below(kTagCount));
    const int64_t bytes = draws_.size(kMiB), alignment = int64_t{1} << draws_.below(13);
    allocate(bytes, alignment, tag, static_cast<int>(draws_.below(kStreams)));
  }
  /// The new allocation's number.
  uint64_t allocate(int64_t bytes, int64_t alignment, Tag tag, int on) {
    Allocation allocation;
    allocation.number = draws_.seed() << 32 | ++count_;
    allocation.tag = tag;
    allocation.stream = on;
    try {
      allocation.storage =
          allocator_.allocate(bytes, alignment, stream(static_cast<size_t>(allocation.stream)),
                              allocation.tag, allocation.name());
    } catch (const OutOfMemory&) {
      ++refused;
      short_ = true;
      return allocation.number;
    }
    if (allocation.storage->bytes() != bytes ||
        reinterpret_cast<intptr_t>(allocation.bytes()) % alignment != 0)
      broken = true;
    allocation.fill();
    allocations.push_back(std::move(allocation));
    allocated = &allocations.back();
    return allocated->number;
  }

  CachingAllocator& allocator_;
  TestMemorySource& source_;
  Draws draws_;
  size_t most_;
  uint64_t count_ = 0;
  uint64_t steps_ = 0;
  std::array<uint64_t, 3> trained_{};  // numbers of the allocations that train() made last
  bool short_ = false;
};

/// Peaks and totals of the single thread's run, kept beside the allocator.
class Tracks {
 public:
  /// After an operation. `history` holds its events and older ones.
  std::string check(const MemorySnapshot& snapshot, const Worker& worker, const MemoryHistory& history) {
    text_.clear();
    if (worker.allocated != nullptr) count_allocation(snapshot, *worker.allocated);
    const MemoryStats& stats = snapshot.stats;
    see_reserved(history);
    for_each_part(stats, [&](size_t part, const MemoryCounters& counters) {
      const MemoryCounter* all[] = {&counters.requested, &counters.allocated, &counters.active};
      constexpr const char* kNames[] = {"requested", "allocated", "active"};
      for (size_t i = 0; i < std::size(all); ++i) see(kNames[i], parts_[part][i], *all[i], worker.reset);
    });
    pinned_.total += std::max<int64_t>(stats.pinned.current - pinned_before_, 0);
    pinned_before_ = stats.pinned.current;
    see("pinned", pinned_, stats.pinned, worker.reset);
    see("reserved", reserved_, stats.reserved, worker.reset);
    // Growth makes it rise and fall within one operation: only bounds are known.
    split_peak_ = worker.reset ? 0 : split_peak_;
    split_peak_ = std::max(split_peak_, stats.inactive_split.current);
    if (stats.inactive_split.peak < split_peak_ || stats.inactive_split.peak > stats.reserved.peak)
      text_ += "peak of inactive_split\n";
    return text_;
  }

 private:
  template <class Body>
  static void for_each_part(const MemoryStats& stats, const Body& body) {
    body(0, stats);
    body(1, stats.small);
    body(2, stats.large);
    for (size_t tag = 0; tag < kTagCount; ++tag) body(3 + tag, stats.by_tag[tag]);
    for (const MemoryStats::OfStream& of : stats.by_stream)
      body(3 + kTagCount + static_cast<size_t>(of.stream), of.counters);
  }
  void count_allocation(const MemorySnapshot& snapshot, const Allocation& allocation) {
    const auto address = reinterpret_cast<int64_t>(allocation.storage->data());
    for (const MemorySnapshot::Segment& segment : snapshot.segments) {
      if (address < segment.address || address >= segment.address + segment.bytes) continue;
      for (const MemorySnapshot::Block& block : segment.blocks) {
        if (block.address != address) continue;
        const size_t parts[] = {0, size_t{block.small ? 1u : 2u}, 3 + static_cast<size_t>(block.tag),
                                3 + kTagCount + static_cast<size_t>(segment.stream)};
        const int64_t bytes[] = {block.requested, block.bytes, block.bytes};
        for (const size_t part : parts)
          for (size_t i = 0; i < 3; ++i) parts_[part][i].total += bytes[i];
      }
    }
  }
  /// Mappings come and go within one operation, but each is an event.
  void see_reserved(const MemoryHistory& history) {
    const int64_t end = history.dropped + static_cast<int64_t>(history.events.size());
    if (history.dropped > events_) text_ += "too many events\n";
    for (int64_t i = events_; i < end; ++i) {
      const MemoryEvent& event = history.events[static_cast<size_t>(i - history.dropped)];
      if (event.kind == MemoryEvent::Kind::segment_map) {
        mapped_ += event.bytes;
        reserved_.total += event.bytes;
        reserved_.peak = std::max(reserved_.peak, mapped_);
      } else if (event.kind == MemoryEvent::Kind::segment_unmap) {
        mapped_ -= event.bytes;
      }
    }
    events_ = end;
  }
  void see(const char* name, Track& track, const MemoryCounter& counter, bool reset) {
    track.peak = reset ? counter.current : std::max(track.peak, counter.current);
    if (counter.peak != track.peak) text_ += std::string("peak of ") + name + "\n";
    if (counter.total != track.total) text_ += std::string("total of ") + name + "\n";
  }

  std::array<std::array<Track, 3>, 3 + kTagCount + kStreams> parts_;
  Track pinned_, reserved_;
  int64_t pinned_before_ = 0, split_peak_ = 0, mapped_ = 0, events_ = 0;
  std::string text_;
};

/// The used blocks of the snapshot are the worker's allocations, and those hold what was written.
bool same_blocks(const MemorySnapshot& snapshot, const std::vector<Allocation>& allocations) {
  std::vector<const Allocation*> expected;
  for (const Allocation& allocation : allocations) {
    if (!allocation.ends_kept()) return false;
    expected.push_back(&allocation);
  }
  std::sort(expected.begin(), expected.end(),
            [](const Allocation* a, const Allocation* b) { return a->bytes() < b->bytes(); });
  std::vector<const MemorySnapshot::Block*> used;
  for (const MemorySnapshot::Segment& segment : snapshot.segments)
    for (const MemorySnapshot::Block& block : segment.blocks)
      if (block.state == MemorySnapshot::State::used) used.push_back(&block);
  std::sort(used.begin(), used.end(), [](const auto* a, const auto* b) { return a->address < b->address; });
  return std::equal(used.begin(), used.end(), expected.begin(), expected.end(),
                    [](const MemorySnapshot::Block* block, const Allocation* allocation) {
                      return block->address == reinterpret_cast<int64_t>(allocation->bytes()) &&
                             block->requested == allocation->storage->bytes() &&
                             block->tag == allocation->tag && block->stream == allocation->stream &&
                             block->name == allocation->name();
                    });
}

/// In a slab; or above free memory that could have held it; or else low. Of segments that cannot grow, whose
/// order is not that of their addresses, only the allocation's own counts.
Placement placement_of(const MemorySnapshot& snapshot, const Allocation& allocation, bool expandable) {
  const auto address = reinterpret_cast<int64_t>(allocation.storage->data());
  bool room_below = false;
  for (const MemorySnapshot::Segment& segment : snapshot.segments) {
    const bool around = segment.address <= address && address < segment.address + segment.bytes;
    if (!expandable && !around) continue;
    for (const MemorySnapshot::Block& block : segment.blocks) {
      if (block.address == address && block.small) return Placement::slab;
      room_below = room_below || (segment.stream == allocation.stream && block.address < address &&
                                  block.state == MemorySnapshot::State::free && !block.small &&
                                  block.bytes >= allocation.storage->bytes() + 5'000);
    }
  }
  return room_below ? Placement::high : Placement::low;
}

/// With nothing alive everything goes back, and nothing is left of it.
void check_end(std::shared_ptr<CachingAllocator> allocator, TestMemorySource& source) {
  source.fail_at(0);
  allocator->release_cached();
  const MemoryStats stats = allocator->stats();
  CHECK(stats.live_allocations == 0);
  CHECK(stats.active.current == 0);
  CHECK(stats.reserved.current == 0);
  CHECK(source.mapped_bytes() == 0);
  CHECK(source.live_events() == 0);
  allocator.reset();
  CHECK(source.reservations().empty());
  CHECK(source.violations().empty());
}

TEST_CASE("100,000 random operations keep peaks and totals") {
  for (const FuzzSetting& setting : kFuzzSettings) {
    CAPTURE(std::string(setting.name));
    const auto source = make_source(setting);
    auto allocator =
        CachingAllocator::create(source, {.garbage_collection_threshold = setting.garbage, .history = 300});
    Worker worker(*allocator, *source, 11, 200);
    Tracks tracks;
    std::array<int64_t, 3> placed{};
    for (int64_t i = 0; i < test::scaled_for_one_thread(25'000); ++i) {
      CAPTURE(i);
      worker.step();
      const MemorySnapshot snapshot = allocator->snapshot();
      REQUIRE(test::recount(snapshot, *source) == "");
      REQUIRE(tracks.check(snapshot, worker, allocator->history()) == "");
      REQUIRE(same_blocks(snapshot, worker.allocations));
      REQUIRE_FALSE(worker.broken);
      if (worker.allocated != nullptr)
        ++placed[static_cast<size_t>(placement_of(snapshot, *worker.allocated, setting.expandable))];
    }
    CHECK(placed[static_cast<size_t>(Placement::low)] > 50);
    CHECK(placed[static_cast<size_t>(Placement::slab)] > 50);
    const int64_t high = placed[static_cast<size_t>(Placement::high)];
    if (!setting.expandable) CHECK(high == 0);
    if (setting.expandable && !test::kSanitizer) CHECK(high > 0);  // it takes time to learn
    const MemoryStats stats = allocator->stats();
    if constexpr (!test::kThreadSanitizer) {  // whose fewer operations do not fill the memory
      CHECK(worker.refused > 0);
      if (setting.expandable && setting.garbage == 0.0) CHECK(stats.flushes > 0);
    }
    CHECK(stats.out_of_memory == worker.refused);
    CHECK(stats.borrows > 0);
    CHECK(stats.stream_waits > 20);
    while (!worker.allocations.empty()) worker.free(0);
    CHECK_FALSE(worker.broken);
    check_end(std::move(allocator), *source);
  }
}

TEST_CASE("100,000 random operations of eight threads on four streams") {
  constexpr size_t kThreads = 8;
  for (const FuzzSetting& setting : kFuzzSettings) {
    CAPTURE(std::string(setting.name));
    const auto source = make_source(setting);
    auto allocator =
        CachingAllocator::create(source, {.garbage_collection_threshold = setting.garbage, .history = 50});
    std::mutex mutex;
    std::string first_error;
    std::array<Allocation, 16> exchange;  // a thread leaves an allocation here that another frees
    const auto run = [&](uint64_t seed) {
      Worker worker(*allocator, *source, seed, 25);
      Draws draws(seed + 100);
      for (int64_t i = 0; i < test::scaled(25'000) / int64_t{kThreads}; ++i) {
        worker.step();
        if (!worker.allocations.empty() && draws.unit() < 0.1) {
          const std::lock_guard lock(mutex);
          std::swap(worker.allocations.back(), exchange[draws.below(exchange.size())]);
          if (worker.allocations.back().storage == nullptr) worker.allocations.pop_back();
        }
        const std::string error = test::recount(allocator->snapshot());
        const bool kept = std::all_of(worker.allocations.begin(), worker.allocations.end(),
                                      [](const Allocation& allocation) { return allocation.ends_kept(); });
        if (error.empty() && kept && !worker.broken) continue;
        const std::lock_guard lock(mutex);
        if (first_error.empty()) first_error = "operation " + std::to_string(i) + ": " + error;
        break;
      }
      while (!worker.allocations.empty()) worker.free(0);
      const std::lock_guard lock(mutex);
      if (worker.broken && first_error.empty()) first_error = "a pattern was lost";
    };
    std::vector<std::thread> threads;
    for (uint64_t seed = 1; seed <= kThreads; ++seed) threads.emplace_back(run, seed);
    for (std::thread& thread : threads) thread.join();
    for (Allocation& allocation : exchange) {
      if (allocation.storage != nullptr && !allocation.kept()) first_error = "a pattern was lost";
      allocation = {};
    }
    CHECK(first_error == "");
    CHECK(test::recount(allocator->snapshot(), *source) == "");
    CHECK(allocator->stats().stream_waits > 20);
    check_end(std::move(allocator), *source);
  }
}

}  // namespace
}  // namespace meshgrad
