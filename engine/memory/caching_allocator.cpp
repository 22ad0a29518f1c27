// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/detail/caching_allocator_heap.h>

#include <fmt/format.h>

#include <algorithm>

namespace meshgrad {
namespace {

/// Sums of sizes up to it do not overflow, even when a source's capacity is INT64_MAX.
constexpr int64_t kMaxLimit = int64_t{1} << 60;

int64_t limit_of(const MemorySource& source, const AllocatorOptions& options) {
  const int64_t capacity = std::min(source.capacity(), kMaxLimit);
  return options.memory_limit > 0 ? std::min(options.memory_limit, capacity) : capacity;
}

}  // namespace

Storage::Storage(void* data, int64_t bytes, std::shared_ptr<CachingAllocator> allocator,
                 std::array<Block*, 2> blocks)
    : data_(data),
      bytes_(bytes),
      device_(allocator->device()),
      blocks_(blocks),
      allocator_(std::move(allocator)) {}

Storage::~Storage() {
  for (Block* const block : blocks_)
    if (block != nullptr) allocator_->free_block(block);
  if (release_) release_();
}

std::shared_ptr<CachingAllocator> CachingAllocator::create(std::shared_ptr<MemorySource> source,
                                                           const AllocatorOptions& options) {
  return std::shared_ptr<CachingAllocator>(new CachingAllocator(std::move(source), options));
}

CachingAllocator::CachingAllocator(std::shared_ptr<MemorySource> source, const AllocatorOptions& options)
    : source_(std::move(source)),
      options_(options),
      limit_(limit_of(*source_, options)),
      expandable_(options.expandable_segments && source_->expandable()),
      names_(std::make_unique<NameTable>()),
      recorder_(std::make_unique<MemoryRecorder>(options.history)) {}

CachingAllocator::~CachingAllocator() {
  synchronize();
  for (const auto& heap : heaps_) {
    for (const auto& [address, mapping] : heap->blocks.mappings())
      source_->unmap(pointer_of(address), mapping.bytes);
    for (const auto& [address, bytes] : heap->ranges) source_->release(pointer_of(address), bytes);
  }
}

StoragePtr CachingAllocator::allocate(int64_t bytes, int64_t alignment, const Stream& stream, Tag tag,
                                      std::string_view name, const StorageFront& front) {
  Request request{.stream = &stream, .requested = bytes, .alignment = alignment, .tag = tag};
  const std::array<Block*, 2> blocks = allocate_blocks(request, name, false, front);
  return std::make_shared<Storage>(pointer_of(blocks[0]->address), bytes, shared_from_this(), blocks);
}

void* CachingAllocator::allocate_raw(int64_t bytes, int64_t alignment, const Stream& stream, Tag tag,
                                     std::string_view name) {
  Request request{.stream = &stream, .requested = bytes, .alignment = alignment, .tag = tag};
  return pointer_of(allocate_blocks(request, name, true)[0]->address);
}

void CachingAllocator::free_raw(void* pointer) {
  const std::lock_guard lock(mutex_);
  const auto found = raw_.find(pointer);
  if (found == raw_.end()) {
    throw invalid_argument("free_raw", "a pointer of allocate_raw that was not freed yet",
                           fmt::format("{}", pointer));
  }
  Block* const block = found->second;
  raw_.erase(found);
  free_block_locked(block);
}

std::array<Block*, 2> CachingAllocator::allocate_blocks(Request& request, std::string_view name, bool raw,
                                                        const StorageFront& front) {
  const int64_t bytes = request.requested, alignment = request.alignment;
  if (front.bytes != 0 &&
      (front.bytes < 0 || front.bytes >= bytes || front.bytes % BlockHeap::kRounding != 0)) {
    throw invalid_argument("allocate: front",
                           fmt::format("a multiple of {} bytes below {}", BlockHeap::kRounding, bytes),
                           fmt::format("{}", front.bytes));
  }
  if (bytes < 0 || alignment <= 0 || (alignment & (alignment - 1)) != 0 || alignment > 4096) {
    throw invalid_argument("allocate", "bytes >= 0 and an alignment that is a power of two up to 4096",
                           fmt::format("{} bytes aligned to {}", bytes, alignment));
  }
  if (request.stream->device() != device()) {
    throw invalid_argument("allocate", "a stream of " + name_of(device()),
                           "a stream of " + name_of(request.stream->device()));
  }
  std::unique_lock lock(mutex_);
  Heap& heap = heap_of(*request.stream);
  request.home = &heap;
  request.bytes = round_up(std::clamp<int64_t>(bytes, 1, limit_), BlockHeap::kRounding);
  request.alignment = std::max(alignment, BlockHeap::kRounding);
  request.name = names_->inside(scopes_.empty() ? 0 : scopes_.back(), name);
  // 0: no name, and the policy predicts only from sizes.
  const uint64_t owner =
      request.name == 0 ? 0 : uint64_t{request.name} * kTagCount + static_cast<uint64_t>(request.tag);
  request.placement = heap.policy.place(request.bytes, owner, request.ticket);
  // A source that cannot grow has many segments without a common upper end.
  if (!expandable_ && request.placement == Placement::high) request.placement = Placement::low;
  // Planned steps place temporaries themselves; the remaining blocks live long and are packed at the lower
  // end.
  if (options_.plan_steps) request.placement = Placement::low;

  if (step_ != nullptr && &step_->heap == &heap) step_->place(request);
  const int64_t flushes = stats_.flushes;
  const bool possible = bytes <= limit_;
  Found found = possible ? find_block(heap, request) : Found{};
  const bool after_callbacks = possible && found.block == nullptr;
  if (after_callbacks) found = run_callbacks(heap, request, lock);
  if (found.block == nullptr) throw_out_of_memory(request, lock);
  if (after_callbacks || stats_.flushes > flushes) ++stats_.retries;
  if (raw) raw_[pointer_of(found.block->address)] = found.block;
  if (front.bytes == 0) {
    start_use(*found.heap, found.block, request);
    return {found.block};
  }
  Block* const rest = found.heap->blocks.split_used(found.block, front.bytes);
  Request first = request;
  first.requested = first.bytes = front.bytes;
  first.tag = front.tag;
  first.name = names_->inside(scopes_.empty() ? 0 : scopes_.back(), front.name);
  first.entry = -1;  // a planned step knows the block as one: the rest's
  start_use(*found.heap, found.block, first);
  request.requested -= front.bytes;
  request.bytes -= front.bytes;
  start_use(*found.heap, rest, request);
  return {found.block, rest};
}

bool CachingAllocator::in_callback() const {
  return std::find(in_callback_.begin(), in_callback_.end(), std::this_thread::get_id()) !=
         in_callback_.end();
}

/// Calls a function of the application with the allocator unlocked.
template <class Function>
auto CachingAllocator::call_unlocked(std::unique_lock<std::mutex>& lock, const Function& function) {
  struct Relock {
    CachingAllocator& allocator;
    std::unique_lock<std::mutex>& lock;
    ~Relock() {
      lock.lock();
      std::erase(allocator.in_callback_, std::this_thread::get_id());
    }
  };
  in_callback_.push_back(std::this_thread::get_id());
  lock.unlock();
  const Relock relock{*this, lock};
  return function();
}

/// Calls the callbacks in order, until a block is found after one of them.
CachingAllocator::Found CachingAllocator::run_callbacks(Heap& heap, const Request& request,
                                                        std::unique_lock<std::mutex>& lock) {
  if (in_callback()) return {};  // or callbacks that allocate would recurse without end
  for (size_t i = 0; i < callbacks_.size(); ++i) {
    const std::function<bool()> callback = callbacks_[i];
    const bool freed = call_unlocked(lock, callback);
    const Found found = freed ? find_block(heap, request) : Found{};
    if (found.block != nullptr) return found;
  }
  return {};
}

/// The report is of the moment when memory ran out; the advice may take seconds, in which others allocate and
/// free.
void CachingAllocator::throw_out_of_memory(const Request& request, std::unique_lock<std::mutex>& lock) {
  ++stats_.out_of_memory;
  if (recorder_->records()) {
    recorder_->record({MemoryEvent::Kind::out_of_memory, request.tag, request.stream->id(), request.name,
                       limit_ - stats_.allocated.current, request.requested, MemoryRecorder::now()});
    record_at_shortage_ = {snapshot_locked(), history_locked()};
  }
  const std::string text = out_of_memory_text(request);
  std::vector<std::string> advice;
  if (const auto advise = advice_; advise && !in_callback()) advice = call_unlocked(lock, advise);
  throw OutOfMemory(text + fix_text(std::move(advice)));
}

/// Makes `stream`, which will write the block, wait for work of other streams that may still use it.
void CachingAllocator::wait_for_streams(Heap& heap, const Block& block, const Stream& stream) {
  if (heap.stream.id() != stream.id()) {
    const SourceEvent event(*source_, heap.stream);
    if (event.id() != 0) {
      source_->wait(stream, event.id());
      ++stats_.stream_waits;
    }
  }
  heap.fences.remove(block.address, block.end(), [&](int64_t bytes, const StreamFences::Fence& fence) {
    count_active(heap, fence.tag, fence.small, -bytes);
    for (const SourceEventPtr& event : fence.events) {
      if (event->stream() == stream.id()) continue;
      source_->wait(stream, event->id());
      ++stats_.stream_waits;
    }
  });
}

void CachingAllocator::start_use(Heap& heap, Block* block, const Request& request) {
  if (&heap != request.home || !heap.fences.empty()) wait_for_streams(heap, *block, *request.stream);
  if (unused_live_blocks_.empty()) {
    live_blocks_.emplace_back();
    unused_live_blocks_.push_back(&live_blocks_.back());
  }
  LiveBlock* const live = unused_live_blocks_.back();
  unused_live_blocks_.pop_back();
  live->heap = &heap;
  live->home = request.home;
  live->requested = request.requested;
  live->tag = request.tag;
  live->name = request.name;
  live->ticket = request.ticket;
  live->step = steps_;
  live->entry = request.entry;
  block->owner = live;
  request.home->policy.allocated(request.bytes, request.ticket);
  ++stats_.allocations;
  count_live(*block, *live, +1);
  count_active(heap, live->tag, is_small(*block), block->bytes);
  count_free(heap);
  record_event(MemoryEvent::Kind::alloc, *block, *live);
}

void CachingAllocator::free_block(Block* block) {
  const std::lock_guard lock(mutex_);
  free_block_locked(block);
}

void CachingAllocator::free_block_locked(Block* block) {
  auto* const live = static_cast<LiveBlock*>(block->owner);
  Heap& heap = *live->heap;
  record_event(MemoryEvent::Kind::free_requested, *block, *live);
  count_live(*block, *live, -1);
  const bool shared = live->home != live->heap || !live->uses.empty();
  if (!shared || !add_fence(*block, *live)) count_active(heap, live->tag, is_small(*block), -block->bytes);
  record_event(MemoryEvent::Kind::free_completed, *block, *live);
  live->home->policy.freed(block->bytes, live->ticket);
  if (live->entry >= 0 && step_ != nullptr && live->step == step_->number) step_->plan.freed(live->entry);
  live->uses.clear();
  unused_live_blocks_.push_back(live);
  heap.blocks.free(block);
  count_free(heap);
}

/// Adds a fence for streams other than the heap's that may still use a block being freed; false if there are
/// none.
bool CachingAllocator::add_fence(const Block& block, const LiveBlock& live) {
  StreamFences::Fence fence{block.end(), live.tag, is_small(block), {}};
  const auto add = [&](const Stream& stream) {
    if (stream.id() == live.heap->stream.id()) return;
    auto event = std::make_shared<const SourceEvent>(*source_, stream);
    if (event->id() != 0) fence.events.push_back(std::move(event));
  };
  add(live.home->stream);
  for (const Stream* stream : live.uses)
    if (stream->id() != live.home->stream.id()) add(*stream);
  if (fence.events.empty()) return false;
  live.heap->fences.add(block.address, std::move(fence));
  return true;
}

void CachingAllocator::record_use(const StoragePtr& storage, const Stream& stream) {
  if (storage == nullptr || storage->allocator_.get() != this) {
    throw invalid_argument("record_use", "a storage of this allocator",
                           storage == nullptr ? std::string("a null pointer")
                           : storage->allocator_ == nullptr
                               ? std::string("borrowed memory")
                               : "memory of the allocator on " + name_of(storage->device()));
  }
  if (stream.device() != device()) {
    throw invalid_argument("record_use", "a stream of " + name_of(device()),
                           "a stream of " + name_of(stream.device()));
  }
  const std::lock_guard lock(mutex_);
  const Stream* const known = &known_stream(stream);
  for (const Block* const block : storage->blocks_) {
    if (block == nullptr) continue;
    auto& uses = static_cast<LiveBlock*>(block->owner)->uses;
    if (std::find(uses.begin(), uses.end(), known) == uses.end()) uses.push_back(known);
  }
}

/// The allocator's own copy of a stream, added at its first use. Throws InvalidArgument for two streams of
/// one id.
const Stream& CachingAllocator::known_stream(const Stream& stream) {
  for (const Stream& known : streams_) {
    if (known.id() != stream.id()) continue;
    if (known.native() == stream.native()) return known;
    throw invalid_argument("allocate", "an id of its own for every stream",
                           fmt::format("two streams with id {}", stream.id()),
                           "number them when making them");
  }
  return streams_.emplace_back(stream);
}

CachingAllocator::Heap& CachingAllocator::heap_of(const Stream& stream) {
  for (const auto& heap : heaps_)
    if (heap->stream.id() == stream.id() && heap->stream.native() == stream.native()) return *heap;
  heaps_.push_back(std::make_unique<Heap>(known_stream(stream)));
  return *heaps_.back();
}

void CachingAllocator::on_out_of_memory(std::function<bool()> callback) {
  const std::lock_guard lock(mutex_);
  callbacks_.push_back(std::move(callback));
}

void CachingAllocator::advise(std::function<std::vector<std::string>()> advice) {
  const std::lock_guard lock(mutex_);
  advice_ = std::move(advice);
}

std::string CachingAllocator::scope() const {
  const std::lock_guard lock(mutex_);
  return scopes_.empty() ? std::string() : (*names_)[scopes_.back()];
}

MemoryScope::MemoryScope(CachingAllocator& allocator, std::string_view name) : allocator_(allocator) {
  const std::lock_guard lock(allocator_.mutex_);
  auto& scopes = allocator_.scopes_;
  scopes.push_back(allocator_.names_->inside(scopes.empty() ? 0 : scopes.back(), name));
}

MemoryScope::~MemoryScope() {
  const std::lock_guard lock(allocator_.mutex_);
  allocator_.scopes_.pop_back();
}

}  // namespace meshgrad
