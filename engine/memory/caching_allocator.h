// SPDX-License-Identifier: Apache-2.0
// CachingAllocator: maps memory from a MemorySource, splits it into blocks, reuses freed ones and counts
// everything. It needs only a source and Streams, so it can be used without the rest of meshgrad.
// docs/allocator.md explains the policy.
#pragma once
#include <meshgrad/engine/memory/options.h>
#include <meshgrad/engine/memory/source.h>
#include <meshgrad/engine/memory/stats.h>
#include <meshgrad/engine/memory/storage.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#pragma GCC visibility push(default)
namespace meshgrad {

class MemoryRecorder;
class NameTable;
class StepPlan;
struct Growth;
enum class Placement : uint8_t;
struct Mapping;

/// The first bytes of a storage, with a tag and a name of their own; none by default.
struct StorageFront {
  int64_t bytes = 0;  ///< a multiple of 512
  Tag tag = Tag::host;
  std::string_view name = {};
};

/// Thread-safe. Blocks are aligned to 512 bytes or more, and their sizes are multiples of 512.
///
/// Every stream has its own heap (an address range that grows, if the source can). A stream reuses blocks of
/// its heap in queue order, without waiting. Memory that another stream used too (record_use) is reused after
/// a wait on the device for the work that was queued there when it was freed. The host waits for the device
/// only to unmap memory, so the same calls give the same addresses in every run.
class CachingAllocator : public std::enable_shared_from_this<CachingAllocator> {
 public:
  static std::shared_ptr<CachingAllocator> create(std::shared_ptr<MemorySource> source,
                                                  const AllocatorOptions& options = {});
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  Device device() const { return source_->device(); }
  const AllocatorOptions& options() const { return options_; }

  /// `bytes` >= 0 of uninitialised memory for use on `stream`, which must live as long as the allocator.
  /// `alignment` is a power of two up to 4096. Reports show `name` after the open MemoryScopes. A `front` of
  /// fewer bytes is a block of its own in front of the rest, and counted as such. Throws InvalidArgument.
  /// When memory is short, tries in this order: a free block; growth; a free block of another stream, after a
  /// wait on the device; unmapping cached memory, largest first; the callbacks. Then throws OutOfMemory with
  /// a report; the allocator is as before the call.
  StoragePtr allocate(int64_t bytes, int64_t alignment, const Stream& stream, Tag tag,
                      std::string_view name = {}, const StorageFront& front = {});

  /// Unmaps all cached memory that can be unmapped, after waiting for the device. Returns the bytes.
  int64_t release_cached();

  // Statistics and reports; consistent even while other threads allocate.
  MemoryStats stats() const;
  MemorySnapshot snapshot() const;
  MemoryHistory history() const;
  /// Starts a history of the last `events` events, without what was before; 0: none.
  /// AllocatorOptions::history starts the first.
  void restart_history(int64_t events);
  /// Snapshot and history of one instant: now, or the moment when memory ran out, if it did since the last
  /// call.
  MemoryRecord record();
  /// Sets peaks to current values.
  void reset_peak();
  /// The text of OutOfMemory's report: totals, each tag's share, the largest live owners, fragmentation.
  std::string report() const;
  /// What OutOfMemory advises the user to change, in this order. Default: to raise the limit, if one is set.
  /// Called with the allocator unlocked, so it may take time and use the allocator; when an allocation of its
  /// own fails, it is not called again. Exceptions propagate out of allocate().
  void advise(std::function<std::vector<std::string>()> advice);
  /// Names of the open MemoryScopes, joined by '/'.
  std::string scope() const;

  // Embedding API: for host applications and libraries that share memory with meshgrad. Nothing in meshgrad
  // itself needs it. See also CallbackMemorySource, and AllocatorOptions::garbage_collection_threshold.
  /// As allocate(), but returns a pointer without an owner; free it with free_raw().
  void* allocate_raw(int64_t bytes, int64_t alignment, const Stream& stream, Tag tag,
                     std::string_view name = {});
  /// Throws InvalidArgument for a pointer that allocate_raw() did not return or that was freed before.
  void free_raw(void* pointer);
  /// Declares that work queued on `stream` uses the storage. Later owners do not write the memory before that
  /// work is done. Needed when a storage is used on another stream than the one it was allocated for.
  void record_use(const StoragePtr& storage, const Stream& stream);
  /// Adds a callback for when memory runs out; it returns true when it has freed something. It is called with
  /// the allocator unlocked and may use the allocator; its own allocations call no callbacks. Exceptions
  /// propagate out of allocate().
  void on_out_of_memory(std::function<bool()> callback);

  // For PlannedStep:
  /// Until end_step(), allocations on `stream` follow the plan. The first time they are recorded. Later each
  /// is placed at its planned offset, as long as sizes and order are those of the recording and the place is
  /// free; otherwise placement is as usual.
  void begin_step(StepPlan& plan, const Stream& stream);
  /// `complete`: the recording holds the whole step; computes the plan and unmaps unused memory. Otherwise
  /// the recording is dropped.
  void end_step(bool complete);

 private:
  friend class MemoryScope;
  friend class Storage;
  struct Heap;
  struct LiveBlock;
  struct Request;
  struct Step;
  struct Found;
  CachingAllocator(std::shared_ptr<MemorySource> source, const AllocatorOptions& options);

  // caching_allocator.cpp
  std::array<Block*, 2> allocate_blocks(Request& request, std::string_view name, bool raw,
                                        const StorageFront& front = {});
  Found run_callbacks(Heap& heap, const Request& request, std::unique_lock<std::mutex>& lock);
  bool in_callback() const;
  template <class Function>
  auto call_unlocked(std::unique_lock<std::mutex>& lock, const Function& function);
  [[noreturn]] void throw_out_of_memory(const Request& request, std::unique_lock<std::mutex>& lock);
  void start_use(Heap& heap, Block* block, const Request& request);
  void wait_for_streams(Heap& heap, const Block& block, const Stream& stream);
  void free_block(Block* block);
  void free_block_locked(Block* block);
  bool add_fence(const Block& block, const LiveBlock& live);
  const Stream& known_stream(const Stream& stream);
  Heap& heap_of(const Stream& stream);

  // caching_allocator_growth.cpp
  Found find_block(Heap& heap, const Request& request);
  static Block* reuse(Heap& heap, const Request& request, Placement placement);
  static Block* reuse_any(Heap& heap, const Request& request);
  Found flush_and_grow(Heap& heap, const Request& request);
  bool grow(Heap& heap, const Request& request);
  bool grow_range(Heap& heap, const Request& request);
  bool map_growth(Heap& heap, const Growth& growth);
  bool grow_segment(Heap& heap, const Request& request);
  bool reserve_range(Heap& heap, int64_t least);
  int64_t add_range(Heap& heap, int64_t bytes);
  void remove_range(Heap& heap, int64_t address);
  bool map(const Mapping& piece);
  void unmap(const Mapping& piece);
  void add_mapping(Heap& heap, const Mapping& mapping);
  void remove_mapping(Heap& heap, const Mapping& mapping);
  int64_t release_unused(const std::function<bool()>& enough);
  int64_t collect_garbage(int64_t growth);
  bool has_room(int64_t bytes) const { return bytes <= limit_ - stats_.reserved.current; }
  void synchronize();

  // stats.cpp
  std::array<MemoryCounters*, 4> counters_of(Heap& heap, Tag tag, bool small);
  void count_live(const Block& block, const LiveBlock& live, int64_t sign);
  void save_tags_at_peak();
  void count_active(Heap& heap, Tag tag, bool small, int64_t bytes);
  void count_free(Heap& heap);
  void record_event(MemoryEvent::Kind kind, const Block& block, const LiveBlock& live);
  void record_event(MemoryEvent::Kind kind, const Heap& heap, int64_t address, int64_t bytes);
  MemoryStats stats_locked() const;
  MemorySnapshot snapshot_locked() const;
  MemoryHistory history_locked() const;
  void append_segments(MemorySnapshot& snapshot, const Heap& heap) const;
  MemorySnapshot::Block describe(const Heap& heap, const Block& block) const;
  std::string report_locked() const;
  std::string out_of_memory_text(const Request& request) const;
  std::string fix_text(std::vector<std::string> advice) const;

  const std::shared_ptr<MemorySource> source_;
  const AllocatorOptions options_;
  const int64_t limit_;
  const bool expandable_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Heap>> heaps_;
  std::deque<Stream> streams_;  // every stream that may still use memory of this allocator
  std::unordered_map<const void*, Block*> raw_;
  std::deque<LiveBlock> live_blocks_;
  std::vector<LiveBlock*> unused_live_blocks_;
  const std::unique_ptr<NameTable> names_;
  std::vector<uint32_t> scopes_;
  std::unique_ptr<MemoryRecorder> recorder_;
  std::optional<MemoryRecord> record_at_shortage_;  // when memory last ran out, for record()
  std::vector<std::function<bool()>> callbacks_;
  std::function<std::vector<std::string>()> advice_;
  std::shared_ptr<Step> step_;
  int64_t steps_ = 0;                         // begun so far
  std::vector<std::thread::id> in_callback_;  // threads that run a callback, or the advice
  bool releasing_ = false;                    // inside release_unused()
  MemoryStats stats_;
};

/// Names the allocations made while it lives: `MemoryScope scope(allocator, "processor.3");`. Scopes nest,
/// and their names are joined by '/'. They belong to the allocator, not to a thread: open them only on the
/// thread that drives the engine.
class MemoryScope {
 public:
  MemoryScope(CachingAllocator& allocator, std::string_view name);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  CachingAllocator& allocator_;
};

/// A step that records a plan, or follows it: `PlannedStep step(allocator, plan, stream); ... step.done();`.
/// One at a time per allocator.
class PlannedStep {
 public:
  PlannedStep(CachingAllocator& allocator, StepPlan& plan, const Stream& stream) : allocator_(allocator) {
    allocator_.begin_step(plan, stream);
  }
  /// Drops a recording that is not done().
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

}  // namespace meshgrad
#pragma GCC visibility pop
