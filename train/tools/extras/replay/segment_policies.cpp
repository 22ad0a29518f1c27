// SPDX-License-Identifier: Apache-2.0
// Allocators over whole segments, as cudaMalloc returns them: PyTorch's native one and RMM's pool.
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/train/tools/extras/replay/simulated_blocks.h>
#include <meshgrad/train/tools/extras/replay/simulated_policies.h>

#include <algorithm>

namespace meshgrad {
namespace {

/// Segments, split on demand and merged on free; a segment belongs to one pool.
class Segments {
 public:
  explicit Segments(int64_t capacity) : capacity_(capacity) {}

  FreeBlocks& pool(int index) {
    while (pools_.size() <= static_cast<size_t>(index)) pools_.emplace_back(Fit::best);
    return pools_[static_cast<size_t>(index)];
  }
  int64_t room() const { return capacity_ - reserved_; }
  int64_t reserved() const { return reserved_; }
  int64_t driver_calls() const { return driver_calls_; }

  /// A new segment; `bytes` must be at most room().
  SimulatedBlock* map(int64_t bytes, int pool) {
    SimulatedBlock* const block = blocks_.make(next_address_, bytes, pool);
    next_address_ += bytes;
    reserved_ += bytes;
    ++driver_calls_;
    return block;
  }
  /// Marks a block that is in no free list as used; with `split` only its first `bytes`, and the rest is
  /// free.
  void use(SimulatedBlock* block, int64_t bytes, bool split) {
    if (split) {
      SimulatedBlock* const rest = blocks_.split(block, bytes);
      pool(rest->pool).insert(rest, rest->bytes);
    }
    block->state = SimulatedBlock::State::used;
  }
  void free(SimulatedBlock* block) {
    FreeBlocks& list = pool(block->pool);
    if (is(block->next, SimulatedBlock::State::free)) {
      list.erase(block->next);
      blocks_.merge_next(block);
    }
    if (is(block->previous, SimulatedBlock::State::free)) {
      block = block->previous;
      list.erase(block);
      blocks_.merge_next(block);
    }
    list.insert(block, block->bytes);
  }
  void release_unused() {
    for (FreeBlocks& list : pools_) {
      for (SimulatedBlock* block : list.all()) {
        if (block->previous != nullptr || block->next != nullptr) continue;
        list.erase(block);
        reserved_ -= block->bytes;
        ++driver_calls_;
        blocks_.remove(block);
      }
    }
  }
  ReplayedAllocator::FreeMemory free_memory() const {
    ReplayedAllocator::FreeMemory free;
    for (const FreeBlocks& list : pools_) {
      for (const SimulatedBlock* block : list.all()) {
        free.total += block->bytes;
        free.largest = std::max(free.largest, block->bytes);
      }
    }
    return free;
  }

 private:
  SimulatedBlocks blocks_;
  std::vector<FreeBlocks> pools_;
  int64_t capacity_;
  int64_t reserved_ = 0;
  int64_t driver_calls_ = 0;
  int64_t next_address_ = 0;
};

/// The common part of the policies over segments.
class SegmentPolicy : public ReplayedAllocator {
 public:
  explicit SegmentPolicy(int64_t capacity) : segments_(capacity) {}
  void free(void* block) override { segments_.free(static_cast<SimulatedBlock*>(block)); }
  int64_t reserved() const override { return segments_.reserved(); }
  int64_t driver_calls() const override { return segments_.driver_calls(); }
  int64_t flushes() const override { return flushes_; }
  FreeMemory free_memory() const override { return segments_.free_memory(); }

 protected:
  Segments segments_;
  int64_t flushes_ = 0;
};

class PytorchNative : public SegmentPolicy {
 public:
  using SegmentPolicy::SegmentPolicy;

  void* allocate(const MemoryTrace::Event& request) override {
    constexpr int64_t kRounding = 512;
    const int64_t bytes = round_up(request.bytes, kRounding);
    const bool small = bytes <= kMiB;
    const int pool = 2 * request.stream + (small ? 0 : 1);
    SimulatedBlock* block = segments_.pool(pool).find(bytes);
    if (block != nullptr) {
      segments_.pool(pool).erase(block);
    } else {
      const int64_t segment = segment_for(bytes);
      if (segment > segments_.room()) {
        ++flushes_;
        segments_.release_unused();
      }
      if (segment > segments_.room()) return nullptr;
      block = segments_.map(segment, pool);
    }
    const int64_t rest = block->bytes - bytes;
    segments_.use(block, bytes, small ? rest >= kRounding : rest > kMiB);
    return block;
  }

 private:
  static int64_t segment_for(int64_t bytes) {
    if (bytes <= kMiB) return 2 * kMiB;
    if (bytes < 10 * kMiB) return 20 * kMiB;
    return round_up(bytes, 2 * kMiB);
  }
};

class RmmPool : public SegmentPolicy {
 public:
  explicit RmmPool(int64_t capacity) : SegmentPolicy(capacity) {
    constexpr int64_t kInitial = 256 * kMiB;
    SimulatedBlock* const block = segments_.map(std::min(kInitial, capacity / kRounding * kRounding), 0);
    segments_.pool(0).insert(block, block->bytes);
  }

  void* allocate(const MemoryTrace::Event& request) override {
    const int64_t bytes = round_up(request.bytes, kRounding);
    SimulatedBlock* block = segments_.pool(0).find(bytes);
    if (block != nullptr) {
      segments_.pool(0).erase(block);
    } else {
      int64_t growth = std::max(bytes, segments_.reserved());
      while (growth > segments_.room() && growth > bytes)
        growth = std::max(bytes, round_up(growth / 2, kRounding));
      if (growth > segments_.room()) return nullptr;
      block = segments_.map(growth, 0);
    }
    segments_.use(block, bytes, block->bytes > bytes);
    return block;
  }

 private:
  static constexpr int64_t kRounding = 256;
};

}  // namespace

std::unique_ptr<ReplayedAllocator> simulate_pytorch_native(int64_t capacity) {
  return std::make_unique<PytorchNative>(capacity);
}

std::unique_ptr<ReplayedAllocator> simulate_rmm_pool(int64_t capacity) {
  return std::make_unique<RmmPool>(capacity);
}

}  // namespace meshgrad
