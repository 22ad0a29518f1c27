// SPDX-License-Identifier: Apache-2.0
// How the caching allocator finds a block: in its heaps, by growing them, and by unmapping cached memory.
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/memory/detail/caching_allocator_heap.h>

#include <algorithm>
#include <chrono>

namespace meshgrad {
namespace {

constexpr int64_t kMaxMappingShare = 256;  // a mapping is at most 1 / kMaxMappingShare of the limit

/// Segment size for a source that cannot grow, large enough that calls of the source stay rare.
int64_t segment_bytes(int64_t bytes) {
  if (bytes <= kMiB) return 2 * kMiB;
  if (bytes < 10 * kMiB) return 20 * kMiB;
  return bytes;
}

/// Adds `calls` and its own lifetime to the statistics of source calls.
class SourceCall {
 public:
  explicit SourceCall(MemoryStats& stats, int64_t calls = 1)
      : stats_(stats), begin_(std::chrono::steady_clock::now()) {
    stats_.source_calls += calls;
  }
  ~SourceCall() {
    const auto spent = std::chrono::steady_clock::now() - begin_;
    stats_.source_nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count();
  }
  SourceCall(const SourceCall&) = delete;
  SourceCall& operator=(const SourceCall&) = delete;

 private:
  MemoryStats& stats_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace

/// Returns a block from the stream's own heap or, when memory is short, from any heap.
CachingAllocator::Found CachingAllocator::find_block(Heap& heap, const Request& request) {
  if (request.address >= 0 && request.address % request.alignment == 0) {
    if (Block* const block = heap.blocks.allocate_at(request.address, request.bytes)) return {&heap, block};
  }
  if (Block* const block = reuse(heap, request, request.placement)) return {&heap, block};
  if (grow(heap, request)) return {&heap, reuse(heap, request, request.placement)};
  // Memory is short: use any free block, also in a slab or of another stream, which is then waited for.
  if (Block* const block = reuse_any(heap, request)) return {&heap, block};
  for (const auto& other : heaps_) {
    if (other.get() == &heap) continue;
    if (Block* const block = reuse_any(*other, request)) {
      ++stats_.borrows;
      return {other.get(), block};
    }
  }
  if (request.placement != Placement::slab) return flush_and_grow(heap, request);
  Request plain = request;  // a whole slab may not fit, but the block alone
  plain.placement = Placement::low;
  if (grow(heap, plain)) return {&heap, reuse(heap, plain, plain.placement)};
  return flush_and_grow(heap, plain);
}

Block* CachingAllocator::reuse(Heap& heap, const Request& request, Placement placement) {
  return heap.blocks.allocate(request.bytes, request.alignment, placement);
}

Block* CachingAllocator::reuse_any(Heap& heap, const Request& request) {
  Block* const block = reuse(heap, request, Placement::low);
  return block != nullptr ? block : reuse(heap, request, Placement::slab);
}

/// Unmaps cached memory until the heap can grow.
CachingAllocator::Found CachingAllocator::flush_and_grow(Heap& heap, const Request& request) {
  bool grown = false;
  if (release_unused([&] { return grown = grow(heap, request); }) > 0) ++stats_.flushes;
  return grown ? Found{&heap, reuse(heap, request, request.placement)} : Found{};
}

bool CachingAllocator::grow(Heap& heap, const Request& request) {
  return expandable_ ? grow_range(heap, request) : grow_segment(heap, request);
}

bool CachingAllocator::grow_range(Heap& heap, const Request& request) {
  const auto plan = [&] {
    return heap.blocks.plan_growth(request.bytes, request.alignment, request.placement,
                                   source_->granularity());
  };
  Growth growth = plan();
  if (growth.bytes == 0) {
    const int64_t least = request.bytes + request.alignment + BlockHeap::kSlab;
    if (!has_room(request.bytes) || !reserve_range(heap, least)) return false;
    growth = plan();
  }
  if (collect_garbage(growth.bytes) > 0) growth = plan();
  return has_room(growth.bytes) && map_growth(heap, growth);
}

/// Maps the growth in pieces of limited size, since a mapping can only be unmapped whole. Heap and counters
/// are updated when all pieces are mapped, so that a growth refused halfway changes nothing.
bool CachingAllocator::map_growth(Heap& heap, const Growth& growth) {
  const int64_t granularity = source_->granularity();
  const int64_t most = std::max(limit_ / kMaxMappingShare / granularity, int64_t{1}) * granularity;
  std::vector<Mapping> pieces;
  for (int64_t done = 0; done < growth.bytes; done += most)
    pieces.push_back({growth.address + done, std::min(most, growth.bytes - done)});
  for (size_t mapped = 0; mapped < pieces.size(); ++mapped) {
    if (map(pieces[mapped])) continue;
    while (mapped > 0) unmap(pieces[--mapped]);
    return false;
  }
  for (const Mapping& piece : pieces) add_mapping(heap, piece);
  return true;
}

bool CachingAllocator::grow_segment(Heap& heap, const Request& request) {
  const bool slab = request.placement == Placement::slab;
  const int64_t least = slab ? BlockHeap::kSlab : request.bytes + request.alignment - BlockHeap::kRounding;
  const int64_t exact = round_up(least, source_->granularity());
  const int64_t ample = round_up(segment_bytes(least), source_->granularity());
  collect_garbage(ample);
  for (const int64_t bytes : {ample, exact}) {
    if (!has_room(bytes)) continue;
    const int64_t address = add_range(heap, bytes);
    if (address == 0) continue;
    if (map({address, bytes})) {
      add_mapping(heap, {address, bytes});
      return true;
    }
    remove_range(heap, address);
    if (ample == exact) break;
  }
  return false;
}

/// Reserves addresses for the heap to grow in: enough for the whole limit, or as many as the source has.
bool CachingAllocator::reserve_range(Heap& heap, int64_t least) {
  const int64_t granularity = source_->granularity();
  least = round_up(least, granularity);
  // An eighth more than the memory, so that holes do not use up the addresses.
  for (int64_t bytes = round_up(limit_ + limit_ / 8, granularity); bytes > least;
       bytes = round_up(bytes / 2, granularity))
    if (add_range(heap, bytes) != 0) return true;
  return add_range(heap, least) != 0;
}

/// Reserves a range and returns its address; 0 if the source has none.
int64_t CachingAllocator::add_range(Heap& heap, int64_t bytes) {
  char* address = nullptr;
  {
    const SourceCall call(stats_);
    address = source_->reserve(bytes);
  }
  if (address == nullptr) return 0;
  const auto number = reinterpret_cast<int64_t>(address);
  heap.blocks.add_range(number, bytes);
  heap.ranges[number] = bytes;
  return number;
}

void CachingAllocator::remove_range(Heap& heap, int64_t address) {
  const auto range = heap.ranges.find(address);
  heap.blocks.remove_range(address);
  {
    const SourceCall call(stats_);
    source_->release(pointer_of(address), range->second);
  }
  heap.ranges.erase(range);
}

bool CachingAllocator::map(const Mapping& piece) {
  const SourceCall call(stats_);
  return source_->map(pointer_of(piece.address), piece.bytes);
}

void CachingAllocator::unmap(const Mapping& piece) {
  const SourceCall call(stats_);
  source_->unmap(pointer_of(piece.address), piece.bytes);
}

/// Enters memory that the source has mapped into the heap and the statistics.
void CachingAllocator::add_mapping(Heap& heap, const Mapping& mapping) {
  ++stats_.growths;
  heap.blocks.map(mapping.address, mapping.bytes);
  count_free(heap);
  record_event(MemoryEvent::Kind::segment_map, heap, mapping.address, mapping.bytes);
}

/// Unmaps an unused mapping.
void CachingAllocator::remove_mapping(Heap& heap, const Mapping& mapping) {
  const int64_t address = mapping.address, bytes = mapping.bytes;
  heap.blocks.unmap(address);
  heap.fences.remove(address, address + bytes, [&](int64_t fenced, const StreamFences::Fence& fence) {
    count_active(heap, fence.tag, fence.small, -fenced);
  });
  unmap(mapping);
  if (!expandable_) remove_range(heap, address);
  count_free(heap);
  record_event(MemoryEvent::Kind::segment_unmap, heap, address, bytes);
}

/// Unmaps unused mappings of all heaps, largest first, until `enough()` returns true; returns the bytes.
int64_t CachingAllocator::release_unused(const std::function<bool()>& enough) {
  std::vector<std::pair<Heap*, Mapping>> unused;
  for (const auto& heap : heaps_)
    for (const Mapping& mapping : heap->blocks.unused_mappings()) unused.emplace_back(heap.get(), mapping);
  std::stable_sort(unused.begin(), unused.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  if (!unused.empty()) synchronize();
  int64_t released = 0;
  // `enough` may grow a heap, and collect_garbage() must not then unmap what is on this list.
  releasing_ = true;
  const std::unique_ptr<bool, void (*)(bool*)> end(&releasing_, [](bool* releasing) { *releasing = false; });
  for (const auto& [heap, mapping] : unused) {
    remove_mapping(*heap, mapping);
    released += mapping.bytes;
    if (enough()) break;
  }
  return released;
}

/// Unmaps cached memory so that after mapping `growth` bytes the garbage_collection_threshold holds; returns
/// the bytes unmapped.
int64_t CachingAllocator::collect_garbage(int64_t growth) {
  if (options_.garbage_collection_threshold <= 0.0 || releasing_) return 0;
  const auto most = static_cast<int64_t>(options_.garbage_collection_threshold * static_cast<double>(limit_));
  const auto below = [&] { return stats_.reserved.current + growth <= most; };
  return below() ? 0 : release_unused(below);
}

int64_t CachingAllocator::release_cached() {
  const std::lock_guard lock(mutex_);
  return release_unused([] { return false; });
}

/// Waits until no queued work uses memory of this allocator.
void CachingAllocator::synchronize() {
  const SourceCall call(stats_, 0);
  for (const Stream& stream : streams_) source_->synchronize(stream);
}

}  // namespace meshgrad
