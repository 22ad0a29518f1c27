// SPDX-License-Identifier: Apache-2.0
// Allocators over virtual memory: one range of addresses per pool and stream, mapped page by page.
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/tools/extras/replay/simulated_blocks.h>
#include <meshgrad/train/tools/extras/replay/simulated_policies.h>

#include <algorithm>
#include <map>

namespace meshgrad {
namespace {

constexpr int64_t kPageRounding = 512;
constexpr int64_t kRange = int64_t{1} << 56;  // bytes of addresses in a range: more than any trace needs

struct PagedRules {
  Fit fit = Fit::first;
  int64_t border = 0;  ///< blocks of up to this many bytes have separate ranges
  int64_t small_page = 2 * kMiB;
  int64_t page = 2 * kMiB;
  bool call_per_page = false;  ///< otherwise one call per run of pages
  bool prefer_inner = false;   ///< order by what a block could grow to: blocks between used ones come first
};

/// The address range of one pool and stream.
class Range {
 public:
  Range(Fit fit, int64_t page, bool prefer_inner)
      : free_blocks_(fit), page_(page), prefer_inner_(prefer_inner) {
    SimulatedBlock* const all = blocks_.make(0, kRange, 0);
    all->state = SimulatedBlock::State::unmapped;
    unmapped_[0] = all;
  }

  int64_t page() const { return page_; }

  /// Null when nothing mapped fits.
  SimulatedBlock* allocate(int64_t bytes) {
    SimulatedBlock* const block = free_blocks_.find(bytes);
    if (block == nullptr) return nullptr;
    free_blocks_.erase(block);
    if (block->bytes > bytes) insert_free(blocks_.split(block, bytes));
    block->state = SimulatedBlock::State::used;
    return block;
  }

  void free(SimulatedBlock* block) {
    if (is(block->next, SimulatedBlock::State::free)) {
      free_blocks_.erase(block->next);
      blocks_.merge_next(block);
    }
    if (is(block->previous, SimulatedBlock::State::free)) {
      block = block->previous;
      free_blocks_.erase(block);
      blocks_.merge_next(block);
    }
    insert_free(block);
  }

  /// The lowest hole that fits the request together with the free block before it, and the bytes to map
  /// there.
  struct Growth {
    SimulatedBlock* hole;
    int64_t bytes;
  };
  Growth plan_growth(int64_t bytes) const {
    for (const auto& [address, hole] : unmapped_) {
      const bool joins = is(hole->previous, SimulatedBlock::State::free);
      const int64_t missing = bytes - (joins ? hole->previous->bytes : 0);
      if (missing <= hole->bytes) return {hole, round_up(missing, page_)};
    }
    throw internal_error("a simulated range of addresses is full");
  }

  void map(const Growth& growth) {
    SimulatedBlock* const block = growth.hole;
    unmapped_.erase(block->address);
    if (block->bytes > growth.bytes) {
      SimulatedBlock* const rest = blocks_.split(block, growth.bytes);
      unmapped_[rest->address] = rest;
    }
    free(block);
  }

  /// Unmaps every unused page.
  struct Unmapped {
    int64_t bytes = 0;
    int64_t runs = 0;
  };
  Unmapped release_unused() {
    Unmapped sum;
    for (SimulatedBlock* block : free_blocks_.all()) {
      const int64_t first = round_up(block->address, page_);
      const int64_t bytes = block->end() / page_ * page_ - first;
      if (bytes <= 0) continue;
      unmap(block, first, bytes);
      sum.bytes += bytes;
      ++sum.runs;
    }
    return sum;
  }

  void add_free(ReplayedAllocator::FreeMemory& sum) const {
    for (const SimulatedBlock* block : free_blocks_.all()) {
      sum.total += block->bytes;
      sum.largest = std::max(sum.largest, block->bytes);
    }
  }

 private:
  void insert_free(SimulatedBlock* block) {
    const bool grows = prefer_inner_ && is(block->next, SimulatedBlock::State::unmapped);
    free_blocks_.insert(block, block->bytes + (grows ? block->next->bytes : 0));
  }

  /// Turns a part of a free block into a hole.
  void unmap(SimulatedBlock* block, int64_t address, int64_t bytes) {
    free_blocks_.erase(block);
    SimulatedBlock* const head = address > block->address ? block : nullptr;
    SimulatedBlock* hole = head == nullptr ? block : blocks_.split(block, address - block->address);
    SimulatedBlock* const tail = hole->bytes > bytes ? blocks_.split(hole, bytes) : nullptr;
    hole->state = SimulatedBlock::State::unmapped;
    if (is(hole->next, SimulatedBlock::State::unmapped)) {
      unmapped_.erase(hole->next->address);
      blocks_.merge_next(hole);
    }
    if (is(hole->previous, SimulatedBlock::State::unmapped)) {
      hole = hole->previous;
      blocks_.merge_next(hole);
    }
    unmapped_[hole->address] = hole;
    if (head != nullptr) {
      insert_free(head);
    } else if (is(hole->previous, SimulatedBlock::State::free)) {
      free_blocks_.erase(hole->previous);
      insert_free(hole->previous);  // it can grow further now
    }
    if (tail != nullptr) insert_free(tail);
  }

  SimulatedBlocks blocks_;
  FreeBlocks free_blocks_;
  std::map<int64_t, SimulatedBlock*> unmapped_;
  int64_t page_;
  bool prefer_inner_;
};

class PagedPolicy : public ReplayedAllocator {
 public:
  PagedPolicy(int64_t capacity, const PagedRules& rules) : capacity_(capacity), rules_(rules) {}

  void* allocate(const MemoryTrace::Event& request) override {
    const int64_t bytes = round_up(request.bytes, kPageRounding);
    const size_t index = 2 * size_t{request.stream} + (bytes <= rules_.border ? 0 : 1);
    Range& range = range_at(index);
    SimulatedBlock* block = range.allocate(bytes);
    if (block == nullptr) {
      if (!grow(range, bytes)) return nullptr;
      block = range.allocate(bytes);
    }
    block->pool = static_cast<int>(index);
    return block;
  }
  void free(void* pointer) override {
    auto* const block = static_cast<SimulatedBlock*>(pointer);
    ranges_[static_cast<size_t>(block->pool)]->free(block);
  }
  int64_t reserved() const override { return reserved_; }
  int64_t driver_calls() const override { return driver_calls_; }
  int64_t flushes() const override { return flushes_; }
  FreeMemory free_memory() const override {
    FreeMemory sum;
    for (const auto& range : ranges_)
      if (range) range->add_free(sum);
    return sum;
  }

 private:
  Range& range_at(size_t index) {
    if (ranges_.size() <= index) ranges_.resize(index + 1);
    if (!ranges_[index]) {
      const int64_t page = index % 2 == 0 ? rules_.small_page : rules_.page;
      ranges_[index] = std::make_unique<Range>(rules_.fit, page, rules_.prefer_inner);
      ++driver_calls_;  // reserves the addresses
    }
    return *ranges_[index];
  }

  bool grow(Range& range, int64_t bytes) {
    Range::Growth growth = range.plan_growth(bytes);
    if (growth.bytes > capacity_ - reserved_) {
      ++flushes_;
      for (const auto& other : ranges_) {
        if (!other) continue;
        const Range::Unmapped unmapped = other->release_unused();
        reserved_ -= unmapped.bytes;
        driver_calls_ += rules_.call_per_page ? unmapped.bytes / other->page() : unmapped.runs;
      }
      growth = range.plan_growth(bytes);
      if (growth.bytes > capacity_ - reserved_) return false;
    }
    range.map(growth);
    reserved_ += growth.bytes;
    driver_calls_ += rules_.call_per_page ? growth.bytes / range.page() : 1;
    return true;
  }

  std::vector<std::unique_ptr<Range>> ranges_;  // two per stream: small blocks, large blocks
  int64_t capacity_;
  PagedRules rules_;
  int64_t reserved_ = 0;
  int64_t driver_calls_ = 0;
  int64_t flushes_ = 0;
};

}  // namespace

std::unique_ptr<ReplayedAllocator> simulate_pytorch_expandable(int64_t capacity) {
  return std::make_unique<PagedPolicy>(
      capacity,
      PagedRules{
          .fit = Fit::best, .border = kMiB, .page = 20 * kMiB, .call_per_page = true, .prefer_inner = true});
}

std::unique_ptr<ReplayedAllocator> simulate_first_fit(int64_t capacity) {
  return std::make_unique<PagedPolicy>(capacity, PagedRules{.fit = Fit::first});
}

std::unique_ptr<ReplayedAllocator> simulate_best_fit(int64_t capacity) {
  return std::make_unique<PagedPolicy>(capacity, PagedRules{.fit = Fit::best});
}

std::unique_ptr<ReplayedAllocator> simulate_first_fit_256k(int64_t capacity) {
  return std::make_unique<PagedPolicy>(capacity, PagedRules{.fit = Fit::first, .border = 256 * kKiB});
}

}  // namespace meshgrad
