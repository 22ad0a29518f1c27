// SPDX-License-Identifier: Apache-2.0
// Training for a long time on meshes of changing size: nothing creeps.
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/memory/source_counted.h>

#include <doctest/doctest.h>

#include <algorithm>

#include "allocator_recount.h"

namespace meshgrad {
namespace {

using test::Draws;

constexpr int kBlocks = 5;

/// The memory of one training step: what a block of the model saves is freed in reverse by the backward.
class Training {
 public:
  explicit Training(CachingAllocator& allocator) : allocator_(allocator) {
    for (int i = 0; i < kBlocks; ++i) {
      const MemoryScope scope(allocator_, "block." + std::to_string(i));
      parameters_.push_back(take(128 * 1024, Tag::parameters, "weight"));
      parameters_.push_back(take(256 * 1024, Tag::optimizer, "moments"));
    }
  }

  void step(int64_t nodes) {
    const MemoryScope scope(allocator_, "step");
    const StoragePtr batch = take(nodes * 48, Tag::data, "batch");
    std::vector<StoragePtr> saved;
    for (int i = 0; i < kBlocks; ++i) {
      const MemoryScope block(allocator_, "block");
      saved.push_back(take(nodes * 128 * 2, Tag::activations, "nodes"));
      const StoragePtr workspace = take(nodes * 100, Tag::workspace);
      saved.push_back(take(nodes * 6 * 128 * 2, Tag::activations, "edges"));
    }
    StoragePtr gradient = take(nodes * 6 * 128 * 2, Tag::gradients, "edges");
    while (!saved.empty()) {
      gradient = take(saved.back()->bytes(), Tag::gradients);
      saved.pop_back();
    }
  }

 private:
  StoragePtr take(int64_t bytes, Tag tag, std::string_view name = {}) {
    return allocator_.allocate(bytes, 64, stream_, tag, name);
  }
  CachingAllocator& allocator_;
  Stream stream_{Device{}, 0};
  std::vector<StoragePtr> parameters_;
};

TEST_CASE("100,000 training steps keep reserved memory flat") {
  constexpr int64_t kWarmUp = 2'000;
  for (const bool expandable : {true, false}) {
    CAPTURE(expandable);
    const auto source = std::make_shared<SimulatedMemorySource>(64 * 1024 * kMiB, expandable);
    const auto allocator = CachingAllocator::create(source);
    Training training(*allocator);
    const MemoryStats begin = allocator->stats();
    Draws draws(8);
    int64_t reserved = 0, most_requested = 0, changes = 0, growths = 0;
    for (int64_t i = 0; i < test::scaled(expandable ? 100'000 : 10'000); ++i) {
      training.step(1'500 + static_cast<int64_t>(draws.below(3'500)));
      if (i == kWarmUp) {
        const MemoryStats warm = allocator->stats();
        reserved = warm.reserved.current;
        growths = warm.growths;
        most_requested = warm.requested.peak;
        allocator->reset_peak();
      }
      if (i % 50 != 0) continue;
      const MemoryStats stats = allocator->stats();
      REQUIRE(stats.live_allocations == begin.live_allocations);
      REQUIRE(stats.requested.current == begin.requested.current);
      REQUIRE(stats.active.current == begin.active.current);
      if (i > kWarmUp && stats.reserved.current != reserved) {
        ++changes;
        reserved = stats.reserved.current;
      }
      REQUIRE(stats.reserved.current == source->mapped_bytes());
      if (i % 5'000 == 0) REQUIRE(test::recount(allocator->snapshot()) == "");
    }
    const MemoryStats end = allocator->stats();
    CAPTURE(most_requested);
    // A mesh larger than any before may still come; nothing else grows.
    CHECK(changes <= 2);
    CHECK(end.growths - growths <= 4);
    CHECK(end.flushes == 0);
    CHECK(end.out_of_memory == 0);
    if (expandable) CHECK(end.reserved.current < most_requested + most_requested / 5);
  }
}

}  // namespace
}  // namespace meshgrad
