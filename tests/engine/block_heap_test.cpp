// SPDX-License-Identifier: Apache-2.0
// Layouts worked out by hand, then random operations beside a model that keeps a byte for every 512.
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/detail/block_heap.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "allocator_recount.h"

namespace meshgrad {
namespace {

constexpr int64_t kBase = int64_t{1} << 40;

struct Free {
  int64_t total, slab, split, pinned;
  bool operator==(const Free&) const = default;
};
Free free_of(const BlockHeap& heap) {
  const FreeBytes& free = heap.free_bytes();
  return {free.total, free.slab, free.split, free.pinned};
}

TEST_CASE("a run of three mappings, block by block") {
  BlockHeap heap;
  heap.add_range(kBase, 16 * kMiB);
  CHECK(heap.allocate(512, 512, Placement::low) == nullptr);
  for (int i = 0; i < 3; ++i) heap.map(kBase + i * kMiB, kMiB);
  CHECK(heap.mapped_bytes() == 3 * kMiB);
  CHECK(free_of(heap) == Free{3 * kMiB, 0, 0, 0});  // nothing used: nothing is split or pinned
  CHECK(heap.largest_free() == 3 * kMiB);
  Block* const a = heap.allocate(512 * kKiB, 512, Placement::low);
  CHECK(a->address == kBase);
  CHECK(free_of(heap) == Free{2560 * kKiB, 0, 2560 * kKiB, 512 * kKiB});
  Block* const b = heap.allocate(kMiB, 512, Placement::low);  // across the border of two mappings
  CHECK(b->address == kBase + 512 * kKiB);
  CHECK(free_of(heap) == Free{1536 * kKiB, 0, 1536 * kKiB, 512 * kKiB});
  Block* const c = heap.allocate(512, 512, Placement::high);
  CHECK(c->address == kBase + 3 * kMiB - 512);
  const int64_t rest = 1536 * kKiB - 512;
  CHECK(free_of(heap) == Free{rest, 0, rest, rest});
  CHECK(heap.largest_free() == rest);
  heap.free(a);
  // The first mapping holds half of b, the second the other half, the third c.
  CHECK(free_of(heap) == Free{rest + 512 * kKiB, 0, rest + 512 * kKiB, rest + 512 * kKiB});
  heap.free(b);
  CHECK(heap.largest_free() == 3 * kMiB - 512);
  CHECK(free_of(heap) == Free{3 * kMiB - 512, 0, 3 * kMiB - 512, kMiB - 512});
  heap.free(c);
  CHECK(free_of(heap) == Free{3 * kMiB, 0, 0, 0});
}

TEST_CASE("mapping beside free memory leaves split blocks as they are") {
  BlockHeap heap;
  heap.add_range(kBase, 8 * kMiB);
  heap.map(kBase + 2 * kMiB, kMiB);
  heap.map(kBase + 3 * kMiB, kMiB);  // above
  CHECK(free_of(heap) == Free{2 * kMiB, 0, 0, 0});
  heap.map(kBase + kMiB, kMiB);  // below
  CHECK(free_of(heap) == Free{3 * kMiB, 0, 0, 0});
  heap.map(kBase + 5 * kMiB, kMiB);
  heap.map(kBase + 4 * kMiB, kMiB);  // between
  CHECK(free_of(heap) == Free{5 * kMiB, 0, 0, 0});
  Block* const block = heap.allocate(5 * kMiB, 512, Placement::low);
  CHECK(free_of(heap) == Free{0, 0, 0, 0});
  heap.map(kBase, kMiB);  // the run has something in use
  CHECK(free_of(heap) == Free{kMiB, 0, kMiB, 0});
  heap.free(block);
  CHECK(free_of(heap) == Free{6 * kMiB, 0, 0, 0});
}

TEST_CASE("holes: those below what is mapped count") {
  BlockHeap heap;
  heap.add_range(kBase, 8 * kMiB);
  heap.add_range(kBase + 8 * kMiB, 8 * kMiB);  // a neighbour, with which nothing merges
  CHECK(heap.holes() == 0);
  for (int i = 0; i < 6; ++i) heap.map(kBase + i * kMiB, kMiB);
  heap.map(kBase + 6 * kMiB, 2 * kMiB);
  heap.map(kBase + 8 * kMiB, kMiB);
  CHECK(heap.holes() == 0);
  CHECK(heap.largest_free() == 8 * kMiB);
  heap.unmap(kBase);
  heap.unmap(kBase + 2 * kMiB);
  CHECK(heap.holes() == 2);
  CHECK(free_of(heap) == Free{7 * kMiB, 0, 0, 0});
  heap.unmap(kBase + kMiB);  // two holes become one
  CHECK(heap.holes() == 1);
  heap.unmap(kBase + 6 * kMiB);  // at the end of the range: none
  CHECK(heap.holes() == 1);
  CHECK(heap.mapped_bytes() == 4 * kMiB);
  CHECK(heap.largest_free() == 3 * kMiB);
  CHECK_THROWS_AS(heap.unmap(kBase), InternalError);
  CHECK_THROWS_AS(heap.remove_range(kBase), InternalError);
  CHECK_THROWS_AS(heap.map(kBase + 3 * kMiB, kMiB), InternalError);
  for (const int64_t at : {3, 4, 5}) heap.unmap(kBase + at * kMiB);
  heap.remove_range(kBase);
  CHECK(heap.ranges().size() == 1);
  CHECK(heap.mapped_bytes() == kMiB);
}

TEST_CASE("memory comes from the oldest range that has room") {
  BlockHeap heap;
  for (const int64_t at : {kBase + 8 * kMiB, kBase}) {  // the second one lies lower
    heap.add_range(at, 4 * kMiB);
    heap.map(at, 4 * kMiB);
  }
  Block* const first = heap.allocate(3 * kMiB, 512, Placement::low);
  CHECK(first->address == kBase + 8 * kMiB);
  CHECK(heap.allocate(2 * kMiB, 512, Placement::low)->address == kBase);
  CHECK(heap.allocate(kMiB, 512, Placement::low)->address == kBase + 11 * kMiB);
  CHECK(heap.allocate_at(kBase + kMiB, kMiB) == nullptr);
  CHECK(heap.allocate_at(kBase + 5 * kMiB, kMiB) == nullptr);  // in no range
  Block* const third = heap.allocate_at(kBase + 3 * kMiB, kMiB);
  REQUIRE(third != nullptr);
  heap.free(first);
  heap.free(third);
  CHECK(heap.allocate(2 * kMiB, 512, Placement::high)->address == kBase + 2 * kMiB);
  CHECK(heap.unused_mappings().empty());
  heap.add_range(kBase + 16 * kMiB, 4 * kMiB);
  CHECK(heap.plan_growth(4 * kMiB, 512, Placement::low, kMiB).address == kBase + 16 * kMiB);
  CHECK_THROWS_AS(heap.map(kBase + 6 * kMiB, kMiB), InternalError);
}

TEST_CASE("a slab is set apart while something in it is used") {
  BlockHeap heap;
  heap.add_range(kBase, 16 * kMiB);
  heap.map(kBase, 4 * kMiB);
  Block* const large = heap.allocate(kMiB, 512, Placement::low);
  Block* const small = heap.allocate(1024, 512, Placement::slab);
  CHECK(small->address == kBase + kMiB);
  CHECK(small->slab == kBase + kMiB);
  CHECK(heap.slab_bytes() == 2 * kMiB);
  CHECK(free_of(heap) == Free{3 * kMiB - 1024, 2 * kMiB - 1024, 3 * kMiB - 1024, 3 * kMiB - 1024});
  CHECK(heap.allocate(2 * kMiB - 1024, 512, Placement::low) == nullptr);  // not out of the slab
  Block* const second = heap.allocate(2 * kMiB - 1024, 512, Placement::slab);
  REQUIRE(second != nullptr);
  CHECK(second->slab == small->slab);
  CHECK(heap.allocate(512, 512, Placement::slab) == nullptr);  // 1 MiB is left, less than a slab
  heap.free(small);
  CHECK(heap.slab_bytes() == 2 * kMiB);
  heap.free(second);
  CHECK(heap.slab_bytes() == 0);
  CHECK(free_of(heap) == Free{3 * kMiB, 0, 3 * kMiB, 3 * kMiB});
  CHECK(heap.largest_free() == 3 * kMiB);  // merged with what follows it
  heap.free(large);
  CHECK(heap.allocate(2 * kMiB + 512, 512, Placement::slab) == nullptr);  // larger than a slab
  CHECK(heap.allocate(2 * kMiB, 4096, Placement::slab) == nullptr);       // it might not fit when aligned
}

TEST_CASE("growth takes the lowest hole that is large enough") {
  BlockHeap heap;
  CHECK(heap.plan_growth(512, 512, Placement::low, 2 * kMiB).bytes == 0);
  heap.add_range(kBase, 64 * kMiB);
  auto growth = heap.plan_growth(5 * kMiB, 512, Placement::low, 2 * kMiB);
  CHECK(growth.address == kBase);
  CHECK(growth.bytes == 6 * kMiB);
  heap.map(kBase, 6 * kMiB);
  Block* const block = heap.allocate(5 * kMiB, 512, Placement::low);
  growth = heap.plan_growth(4 * kMiB, 512, Placement::low, 2 * kMiB);
  CHECK(growth.address == kBase + 6 * kMiB);
  CHECK(growth.bytes == 4 * kMiB);  // 1 MiB is there, 3 MiB are missing
  growth = heap.plan_growth(3 * kMiB, 4096, Placement::low, 2 * kMiB);
  CHECK(growth.bytes == 4 * kMiB);  // 2 MiB and the worst that alignment can cost
  CHECK(heap.plan_growth(512, 512, Placement::slab, 2 * kMiB).bytes == 2 * kMiB);
  heap.map(kBase + 6 * kMiB, 2 * kMiB);
  heap.map(kBase + 8 * kMiB, 2 * kMiB);
  heap.allocate(2 * kMiB, 512, Placement::high);
  heap.unmap(kBase + 6 * kMiB);
  // A hole of 2 MiB after 1 MiB that is free: 3 MiB fit there, more only at the end.
  CHECK(heap.plan_growth(3 * kMiB, 512, Placement::low, 2 * kMiB).address == kBase + 6 * kMiB);
  CHECK(heap.plan_growth(3 * kMiB + 512, 512, Placement::low, 2 * kMiB).address == kBase + 10 * kMiB);
  heap.free(block);
  CHECK(heap.plan_growth(8 * kMiB, 512, Placement::low, 2 * kMiB).address == kBase + 6 * kMiB);
  CHECK(heap.plan_growth(65 * kMiB, 512, Placement::low, 2 * kMiB).bytes == 0);
}

TEST_CASE("unused mappings come by address, without those of slabs") {
  BlockHeap heap;
  heap.add_range(kBase, 64 * kMiB);
  heap.map(kBase, kMiB);
  heap.map(kBase + kMiB, 4 * kMiB);
  heap.map(kBase + 5 * kMiB, 2 * kMiB);
  const auto sizes = [&] {
    std::vector<int64_t> all;
    for (const Mapping& mapping : heap.unused_mappings()) all.push_back(mapping.bytes);
    return all;
  };
  CHECK(sizes() == std::vector<int64_t>{kMiB, 4 * kMiB, 2 * kMiB});
  Block* const block = heap.allocate(512, 512, Placement::slab);  // the slab: 1 MiB of each of two mappings
  CHECK(sizes() == std::vector<int64_t>{2 * kMiB});
  heap.free(block);
  CHECK(sizes().size() == 3);
}

/// REQUIRE, for conditions that are asked millions of times.
void need(bool condition, int line = __builtin_LINE()) {
  if (!condition) FAIL("in line ", line);
}

/// One byte for every 512 of the range.
class ByteMap {
 public:
  enum : char { hole, free, used };
  explicit ByteMap(int64_t bytes) : cells(static_cast<size_t>(bytes / 512), hole) {}
  void set(int64_t address, int64_t bytes, char what) {
    for (int64_t at = address; at < address + bytes; at += 512) cells[index(at)] = what;
  }
  bool all(int64_t address, int64_t bytes, char what) const {
    for (int64_t at = address; at < address + bytes; at += 512)
      if (cells[index(at)] != what) return false;
    return true;
  }
  static size_t index(int64_t address) { return static_cast<size_t>((address - kBase) / 512); }
  std::vector<char> cells;
};

constexpr int64_t kRange = 12 * kMiB, kPage = 64 * kKiB;

/// Random operations on a heap of one range, each checked against the bytes.
class HeapFuzz {
 public:
  explicit HeapFuzz(uint64_t seed) : draws_(seed), bytes_(kRange) { heap_.add_range(kBase, kRange); }

  void step() {
    const double choice = draws_.unit();
    if (choice < 0.55) {
      take();
    } else if (choice < 0.95) {
      if (!live_.empty()) free_block(draws_.below(live_.size()));
    } else if (choice < 0.98) {
      map_anywhere();
    } else {
      unmap();
    }
  }
  void check();
  BlockHeap& heap() { return heap_; }
  size_t live() const { return live_.size(); }
  void free_block(size_t number) {
    bytes_.set(live_[number]->address, live_[number]->bytes, ByteMap::free);
    heap_.free(live_[number]);
    live_[number] = live_.back();
    live_.pop_back();
  }
  int64_t grown = 0, slabs_seen = 0;

 private:
  void take() {
    const int64_t bytes = (draws_.size(kMiB) / 512 + 1) * 512;
    const int64_t alignment = int64_t{512} << draws_.below(4);
    const auto placement = static_cast<Placement>(draws_.below(3));
    const int64_t worst = bytes + alignment - 512;
    Block* block = heap_.allocate(bytes, alignment, placement);
    if (block == nullptr) {
      if (placement != Placement::slab) need(largest_plain_free() < worst);
      const auto growth = heap_.plan_growth(bytes, alignment, placement, kPage);
      if (growth.bytes == 0) return;
      ++grown;
      need(growth.bytes % kPage == 0);
      map(growth.address, growth.bytes);
      block = heap_.allocate(bytes, alignment, placement);
      need(block != nullptr);
    } else if (placement == Placement::low) {
      check_lowest(*block, worst);
    }
    need(block->bytes == bytes);
    need(block->address % alignment == 0);
    need(bytes_.all(block->address, bytes, ByteMap::free));
    need((block->slab != Block::kNoSlab) == (placement == Placement::slab));
    bytes_.set(block->address, bytes, ByteMap::used);
    live_.push_back(block);
  }
  void map(int64_t address, int64_t bytes) {
    need(bytes_.all(address, bytes, ByteMap::hole));
    bytes_.set(address, bytes, ByteMap::free);
    heap_.map(address, bytes);
  }
  void map_anywhere() {
    const int64_t address = kBase + static_cast<int64_t>(draws_.below(kRange / kPage - 4)) * kPage;
    const int64_t bytes = static_cast<int64_t>(1 + draws_.below(4)) * kPage;
    if (bytes_.all(address, bytes, ByteMap::hole)) map(address, bytes);
  }
  void unmap() {
    const std::vector<Mapping> unused = heap_.unused_mappings();
    if (unused.empty()) return;
    const Mapping mapping = unused[draws_.below(unused.size())];
    need(bytes_.all(mapping.address, mapping.bytes, ByteMap::free));
    bytes_.set(mapping.address, mapping.bytes, ByteMap::hole);
    heap_.unmap(mapping.address);
  }
  int64_t largest_plain_free() const;
  void check_lowest(const Block& block, int64_t worst) const;

  test::Draws draws_;
  BlockHeap heap_;
  ByteMap bytes_;
  std::vector<Block*> live_;
};

int64_t HeapFuzz::largest_plain_free() const {
  int64_t largest = 0;
  for (const Block* block = heap_.ranges()[0]; block != nullptr; block = block->next)
    if (block->state == Block::State::free && block->slab == Block::kNoSlab)
      largest = std::max(largest, block->bytes);
  return largest;
}

/// No free run below the block could have held it.
void HeapFuzz::check_lowest(const Block& block, int64_t worst) const {
  for (const Block* at = heap_.ranges()[0]; at->end() <= block.address; at = at->next) {
    // What alignment left over before the block was a part of the free block that it came from.
    const bool head = at->next == &block;
    if (at->state == Block::State::free && at->slab == Block::kNoSlab && !head) need(at->bytes < worst);
  }
}

void HeapFuzz::check() {
  Free expected{0, 0, 0, 0};
  int64_t mapped = 0, holes = 0, largest = 0, slab_bytes = 0, end = kBase;
  std::set<int64_t> slabs;
  const Block* before = nullptr;
  for (const Block* block = heap_.ranges()[0]; block != nullptr; before = block, block = block->next) {
    need(block->address == end);
    need(block->previous == before);
    end = block->end();
    const char what = block->state == Block::State::hole   ? ByteMap::hole
                      : block->state == Block::State::free ? ByteMap::free
                                                           : ByteMap::used;
    need(bytes_.all(block->address, block->bytes, what));
    // Equal neighbours are one block.
    if (before != nullptr && before->state == block->state && what != ByteMap::used)
      need(before->slab != block->slab);
    if (block->slab != Block::kNoSlab) {
      slabs.insert(block->slab);
      slab_bytes += block->bytes;
      need(block->address >= block->slab);
      need(block->end() <= block->slab + BlockHeap::kSlab);
    }
    if (what == ByteMap::hole && block->next != nullptr) ++holes;
    if (what == ByteMap::hole) continue;
    mapped += block->bytes;
    if (what != ByteMap::free) continue;
    expected.total += block->bytes;
    largest = std::max(largest, block->bytes);
    if (block->slab != Block::kNoSlab) expected.slab += block->bytes;
    bool in_use = false;
    for (const Block* at = block; at != nullptr && at->state != Block::State::hole; at = at->next)
      in_use = in_use || at->state == Block::State::used;
    for (const Block* at = block; at != nullptr && at->state != Block::State::hole; at = at->previous)
      in_use = in_use || at->state == Block::State::used;
    if (in_use) expected.split += block->bytes;
  }
  for (const auto& [address, mapping] : heap_.mappings()) {
    int64_t used = 0;
    for (int64_t at = address; at < address + mapping.bytes; at += 512)
      used += bytes_.all(at, 512, ByteMap::used) ? 512 : 0;
    need(mapping.used == used);
    if (used > 0) expected.pinned += mapping.bytes - used;
  }
  need(end == kBase + kRange);
  need(free_of(heap_) == expected);
  need(heap_.mapped_bytes() == mapped);
  need(heap_.holes() == holes);
  need(heap_.largest_free() == largest);
  need(heap_.slab_bytes() == slab_bytes);
  need(slab_bytes == static_cast<int64_t>(slabs.size()) * BlockHeap::kSlab);
  slabs_seen = std::max(slabs_seen, static_cast<int64_t>(slabs.size()));
}

TEST_CASE("random operations match a byte-map model") {
  for (const uint64_t seed : {1, 2, 3}) {
    CAPTURE(seed);
    HeapFuzz fuzz(seed);
    for (int64_t i = 0; i < test::scaled(3'000); ++i) {
      CAPTURE(i);
      fuzz.step();
      fuzz.check();
    }
    CHECK(fuzz.grown > 5);
    CHECK(fuzz.slabs_seen >= 1);
    while (fuzz.live() > 0) fuzz.free_block(0);
    fuzz.check();
    // With nothing in use everything can be unmapped, and the range is one hole.
    for (const Mapping& mapping : fuzz.heap().unused_mappings()) fuzz.heap().unmap(mapping.address);
    CHECK(fuzz.heap().mapped_bytes() == 0);
    CHECK(free_of(fuzz.heap()) == Free{0, 0, 0, 0});
    fuzz.heap().remove_range(kBase);
  }
}

}  // namespace
}  // namespace meshgrad
