// SPDX-License-Identifier: Apache-2.0
// The caching allocator: memory mapped from a MemorySource, cut into blocks, kept for reuse, counted. Usable
// alone: it needs nothing of the engine but a source and a Stream. docs/allocator.md explains the policy.
#pragma once
#include <meshgrad/engine/memory/detail/pool_allocator.h>
#include <meshgrad/engine/memory/history.h>
#include <meshgrad/engine/memory/options.h>
#include <meshgrad/engine/memory/source.h>
#include <meshgrad/engine/memory/stats.h>
#include <meshgrad/engine/memory/storage.h>

#include <mutex>
#include <optional>
#include <thread>

#pragma GCC visibility push(default)
namespace meshgrad {

class StepPlan;
struct Growth;
enum class Placement : uint8_t;
struct Mapping;

/// Thread-safe. Blocks are aligned to 512 bytes or more, and their sizes are multiples of 512.
///
/// Every stream has a heap of its own (a range of addresses that grows, where the source can). A stream
/// reuses the blocks of its heap, in the order of its queue and without waiting. Memory that another stream
/// used as well (record_use) is reused after a wait on the device for what was queued there when it was
/// freed. The host never waits for the device but to give memory back, so the same calls give the same
/// addresses in every run.
class CachingAllocator : public std::enable_shared_from_this<CachingAllocator> {
 public:
  static std::shared_ptr<CachingAllocator> create(std::shared_ptr<MemorySource> source,
                                                  const AllocatorOptions& options = {});
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  Device device() const { return source_->device(); }
  const AllocatorOptions& options() const { return options_; }

  /// `bytes` >= 0 of uninitialised memory for use on `stream`, which stays alive as long as the allocator.
  /// `alignment`: a power of two up to 4096. The name is what reports show, behind the open MemoryScopes'.
  /// When memory is short, in this order: a free block; growth; another stream's free block, after a wait on
  /// the device; unused mappings given back, largest first; the callbacks; then OutOfMemory, with a report,
  /// after which the allocator is as before the call.
  StoragePtr allocate(int64_t bytes, int64_t alignment, const Stream& stream, Tag tag,
                      std::string_view name = {});
  /// The same without an owner count, for another library in the process that wants a pointer; freed by
  /// free_raw.
  void* allocate_raw(int64_t bytes, int64_t alignment, const Stream& stream, Tag tag,
                     std::string_view name = {});
  /// Throws InvalidArgument for a pointer that allocate_raw did not give, or that was freed.
  void free_raw(void* pointer);

  /// Says that work queued on `stream` uses the storage: its memory is not written by a later owner before
  /// that work is done.
  void record_use(const StoragePtr& storage, const Stream& stream);

  /// Gives every mapping that nothing uses back to the source, after waiting for the device; returns the
  /// bytes.
  int64_t release_cached();

  /// Until end_step(), allocations on `stream` follow the plan: the first time they are recorded, later each
  /// gets its planned place, as long as the step asks for what it asked for then and the place is free; all
  /// else is allocated as ever. PlannedStep calls them.
  void begin_step(StepPlan& plan, const Stream& stream);
  /// `complete`: what was recorded is the whole step, of which the plan is now made; what the recording left
  /// unused is given back.
  void end_step(bool complete);
  MemoryStats stats() const;
  /// Statistics and blocks of one instant.
  MemorySnapshot snapshot() const;
  /// The last AllocatorOptions::history events.
  MemoryHistory history() const;
  /// Both, of one instant: now, or, if memory ran out since the last call, of the moment when it did.
  MemoryRecord record();
  /// Peaks start anew from what is current.
  void reset_peak();
  /// Called (with the allocator unlocked) when memory runs out; returns true when it freed something. It may
  /// use the allocator; what it allocates itself calls no callbacks. What it throws leaves allocate().
  void on_out_of_memory(std::function<bool()> callback);
  /// What OutOfMemory tells the user to change, in this order; without any, to raise the limit, where there
  /// is one.
  void advise(std::vector<std::string> advice);
  /// Names of the open MemoryScopes, joined by '/'; empty outside of all.
  std::string scope() const;
  /// Memory of the host for what goes with the allocations, such as their owner counts.
  const Recycling<std::byte>& recycling() const { return recycling_; }
  /// What is where: totals, each tag's share, the largest live owners, fragmentation; lines of text.
  std::string report() const;

 private:
  friend class MemoryScope;
  friend class Storage;
  struct Heap;
  struct Live;
  struct Request;
  struct Step;
  CachingAllocator(std::shared_ptr<MemorySource> source, const AllocatorOptions& options);

  struct Found;

  // allocator.cpp
  Block* acquire(Request& request, std::string_view name, bool raw);
  Found ask_callbacks(Heap& heap, const Request& request, std::unique_lock<std::mutex>& lock);
  [[noreturn]] void give_up(const Request& request);
  void claim(Heap& heap, Block* block, const Request& request);
  void wait_for(Heap& heap, const Block& block, const Stream& stream);
  void give_back(Block* block);
  void give_back_locked(Block* block);
  bool add_fence(const Block& block, const Live& live);
  const Stream& know(const Stream& stream);
  Heap& heap_of(const Stream& stream);

  // allocator_growth.cpp
  Found find(Heap& heap, const Request& request);
  static Block* take(Heap& heap, const Request& request, Placement placement);
  static Block* take_anywhere(Heap& heap, const Request& request);
  Found flush_and_take(Heap& heap, const Request& request);
  bool grow(Heap& heap, const Request& request);
  bool grow_range(Heap& heap, const Request& request);
  bool map_growth(Heap& heap, const Growth& growth);
  bool grow_segment(Heap& heap, const Request& request);
  bool reserve_range(Heap& heap, int64_t least);
  int64_t add_range(Heap& heap, int64_t bytes);
  void remove_range(Heap& heap, int64_t address);
  bool map(const Mapping& piece);
  void unmap(const Mapping& piece);
  void enter(Heap& heap, const Mapping& mapping);
  void leave(Heap& heap, const Mapping& mapping);
  int64_t release_unused(const std::function<bool()>& enough);
  int64_t collect_garbage(int64_t growth);
  bool has_room(int64_t bytes) const { return bytes <= limit_ - stats_.reserved.current; }
  void synchronize();

  // allocator_count.cpp, memory_report.cpp
  std::array<MemoryCounters*, 4> counters_of(Heap& heap, Tag tag, bool small);
  void count_live(const Block& block, const Live& live, int64_t sign);
  void note_tags_at_peak();
  void count_active(Heap& heap, Tag tag, bool small, int64_t bytes);
  void count_free(Heap& heap);
  void note(MemoryEvent::Kind kind, const Block& block, const Live& live);
  void note(MemoryEvent::Kind kind, const Heap& heap, int64_t address, int64_t bytes);
  MemoryStats stats_locked() const;
  MemorySnapshot snapshot_locked() const;
  MemoryHistory history_locked() const;
  void append_segments(MemorySnapshot& snapshot, const Heap& heap) const;
  MemorySnapshot::Block describe(const Heap& heap, const Block& block) const;
  std::string report_locked() const;
  std::string shortage(const Request& request) const;

  const std::shared_ptr<MemorySource> source_;
  const AllocatorOptions options_;
  const int64_t limit_;
  const bool expandable_;
  const Recycling<std::byte> recycling_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Heap>> heaps_;
  std::deque<Stream> streams_;  // every stream that may still use something
  std::unordered_map<const void*, Block*> raw_;
  std::deque<Live> lives_;
  std::vector<Live*> spare_lives_;
  NameTable names_;
  std::vector<uint32_t> scopes_;
  MemoryRecorder recorder_;
  std::optional<MemoryRecord> shortage_;  // when memory last ran out, for record()
  std::vector<std::function<bool()>> callbacks_;
  std::vector<std::string> advice_;
  std::shared_ptr<Step> step_;
  int64_t steps_ = 0;                     // begun so far
  std::vector<std::thread::id> calling_;  // threads that are inside a callback
  bool releasing_ = false;                // inside release_unused()
  MemoryStats stats_;
};

/// Names the allocations made while it lives: `MemoryScope scope(allocator, "processor.3");`. Scopes nest and
/// are joined by '/'. They belong to the thread that drives the engine.
class MemoryScope {
 public:
  MemoryScope(CachingAllocator& allocator, std::string_view name);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  CachingAllocator& allocator_;
};

/// A step that follows a plan, or makes it: `PlannedStep step(allocator, plan, stream); ... step.done();`.
class PlannedStep {
 public:
  PlannedStep(CachingAllocator& allocator, StepPlan& plan, const Stream& stream) : allocator_(allocator) {
    allocator_.begin_step(plan, stream);
  }
  /// A recording without done() is dropped.
  ~PlannedStep() {
    if (!done_) allocator_.end_step(false);
  }
  PlannedStep(const PlannedStep&) = delete;
  PlannedStep& operator=(const PlannedStep&) = delete;
  void done() {
    done_ = true;
    allocator_.end_step(true);
  }

 private:
  CachingAllocator& allocator_;
  bool done_ = false;
};

/// One block whose pieces keep their addresses until the Pool is released: for captured or planned steps.
class Pool {
 public:
  Pool(CachingAllocator& allocator, int64_t bytes, const Stream& stream, Tag tag, std::string_view name);
  /// The next `bytes` of the pool, 64-byte aligned; throws OutOfMemory when the pool is used up.
  StoragePtr allocate(int64_t bytes);
  /// Starts over at the pool's first byte; the caller no longer uses what it got before.
  void rewind() { used_ = 0; }
  int64_t used() const { return used_; }
  int64_t capacity() const { return block_->bytes(); }

 private:
  StoragePtr block_;
  int64_t used_ = 0;
};

}  // namespace meshgrad
#pragma GCC visibility pop
