// SPDX-License-Identifier: Apache-2.0
// The allocators: what a hit costs, and what the source's own calls cost.
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/memory/detail/placement_policy.h>
#include <meshgrad/engine/memory/source_counted.h>
#include <meshgrad/engine/memory/source_cuda.h>
#include <meshgrad/engine/memory/source_host.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/train/tools/extras/replay/replay.h>

#include <fmt/format.h>

#include <cmath>

#include "benchmark.h"

namespace meshgrad::bench {
namespace {

constexpr size_t kLive = 10000;
constexpr size_t kPairs = 1000;
constexpr int64_t kRoom = int64_t{1} << 50;
constexpr uint64_t kBlockSeed = 11;

/// 512 B to 4 MiB, every octave as likely.
int64_t block_size(uint64_t i) {
  return static_cast<int64_t>(std::exp2(9.0 + 13.0 * uniform(kBlockSeed, 0, i)));
}

/// Batches of blocks that find room between live ones: asked for, then let go of in another order.
template <class Allocate, class Free>
Workload hit_path(Allocate allocate, Free free) {
  using Handle = decltype(allocate(int64_t{1}));
  struct State {
    std::vector<Handle> live;
    std::vector<int64_t> sizes;
    std::vector<Handle> batch;
    std::vector<size_t> order;  // in which a batch is let go of
  };
  auto state = std::make_shared<State>();
  for (size_t i = 0; i < kLive + kPairs; ++i) state->live.push_back(allocate(block_size(i)));
  // Every eleventh goes: the room that the batches find.
  for (size_t i = 0; i < kPairs; ++i) {
    const size_t at = i * (kLive + kPairs) / kPairs;
    state->sizes.push_back(block_size(at));
    free(state->live[at]);
    state->live[at] = Handle{};
  }
  state->batch.resize(kPairs);
  for (size_t i = 0; i < kPairs; ++i) state->order.push_back(shuffled(kBlockSeed, 1, i, kPairs));
  Workload work;
  work.run = [=] {
    for (size_t i = 0; i < kPairs; ++i) state->batch[i] = allocate(state->sizes[i]);
    for (const size_t i : state->order) free(state->batch[i]);
  };
  work.description =
      fmt::format("batches of {} allocated and freed beside {} live blocks: ms are us a pair", kPairs, kLive);
  return work;
}

Workload engine_hit_path(int64_t history) {
  const auto allocator = CachingAllocator::create(std::make_shared<SimulatedMemorySource>(kRoom),
                                                  AllocatorOptions{.history = history});
  const Stream stream{Device{}};
  return hit_path(
      [=](int64_t bytes) { return allocator->allocate(bytes, 64, stream, Tag::activations, "benchmark"); },
      [](StoragePtr& storage) { storage.reset(); });
}

/// Where a block goes, without what the allocator adds: the lock, names, counters and the owner count.
Workload placement_hit_path() {
  struct Placer {
    BlockHeap heap;
    PlacementPolicy policy;
    struct Handle {
      Block* block = nullptr;
      PlacementPolicy::Ticket ticket;
    };
    Handle allocate(int64_t bytes) {
      Handle handle;
      bytes = (bytes + BlockHeap::kRounding - 1) / BlockHeap::kRounding * BlockHeap::kRounding;
      const Placement placement = policy.place(bytes, 0, handle.ticket);
      while ((handle.block = heap.allocate(bytes, BlockHeap::kRounding, placement)) == nullptr) {
        const Growth growth = heap.plan_growth(bytes, BlockHeap::kRounding, placement, BlockHeap::kSlab);
        heap.map(growth.address, growth.bytes);
      }
      policy.allocated(bytes, handle.ticket);
      return handle;
    }
    void free(const Handle& handle) {
      policy.freed(handle.block->bytes, handle.ticket);
      heap.free(handle.block);
    }
  };
  const auto placer = std::make_shared<Placer>();
  placer->heap.add_range(0, kRoom);
  return hit_path([=](int64_t bytes) { return placer->allocate(bytes); },
                  [=](const Placer::Handle& handle) { placer->free(handle); });
}

Workload simulated_hit_path(std::string_view policy) {
  const auto trace = std::make_shared<MemoryTrace>();
  trace->streams = 1;
  const std::shared_ptr<ReplayedAllocator> allocator = find_replay_policy(policy).make(*trace, kRoom);
  return hit_path([=](int64_t bytes) { return allocator->allocate({.bytes = bytes}); },
                  [allocator, trace](void* block) { allocator->free(block); });
}

/// One mapping made and taken back.
Workload mapping(const std::shared_ptr<MemorySource>& source, int64_t bytes) {
  const std::shared_ptr<char> range(source->reserve(bytes),
                                    [=](char* address) { source->release(address, bytes); });
  Workload work;
  work.run = [=] {
    check_internal(source->map(range.get(), bytes), "the source has no memory for the benchmark");
    source->unmap(range.get(), bytes);
  };
  work.bytes = static_cast<double>(bytes);
  work.description = fmt::format("map and unmap {} MiB", bytes >> 20);
  return work;
}

}  // namespace

std::vector<Benchmark> memory_benchmarks(const Selection&) {
  std::vector<Benchmark> all = {
      {"memory/hit_path/engine", [](Runtime&) { return engine_hit_path(0); }},
      {"memory/hit_path/engine/placement_alone", [](Runtime&) { return placement_hit_path(); }},
      {"memory/hit_path/engine/with_history", [](Runtime&) { return engine_hit_path(1 << 20); }},
  };
  for (const char* policy : {"pytorch-native", "pytorch-expandable", "rmm-pool"}) {
    all.push_back({fmt::format("memory/hit_path/simulated/{}", policy),
                   [policy](Runtime&) { return simulated_hit_path(policy); }});
  }
  for (const int64_t mib : {2, 20, 200}) {
    all.push_back({fmt::format("memory/map/host/{}MiB", mib),
                   [mib](Runtime&) { return mapping(std::make_shared<HostMemorySource>(), mib << 20); }});
    if (cuda_devices().empty()) continue;
    all.push_back({fmt::format("memory/map/cuda/{}MiB", mib),
                   [mib](Runtime&) { return mapping(make_cuda_virtual_memory(0), mib << 20); }});
  }
  for (Benchmark& benchmark : all) benchmark.on_host = true;
  return all;
}

}  // namespace meshgrad::bench
