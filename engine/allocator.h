// SPDX-License-Identifier: Apache-2.0
// The caching allocator: segments from a MemorySource, cut into blocks, kept for reuse, counted by tag.
#pragma once
#include <meshgrad/engine/memory_source.h>
#include <meshgrad/engine/stream.h>

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// What a piece of memory is for; every allocation carries one.
enum class Tag : uint8_t {
  parameters,
  gradients,
  optimizer,
  activations,
  recompute,
  workspace,
  data,
  communication,
  host
};
inline constexpr int kTagCount = 9;
std::string_view name_of(Tag tag);

class Allocator;

/// A piece of memory with one owner count; freed (or handed back to its lender) when the last holder goes.
class Storage {
 public:
  Storage(void* data, int64_t bytes, Device device, std::function<void()> release)
      : data_(data), bytes_(bytes), device_(device), release_(std::move(release)) {}
  ~Storage() {
    if (release_) release_();
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  void* data_;
  int64_t bytes_;
  Device device_;
  std::function<void()> release_;
};
using StoragePtr = std::shared_ptr<Storage>;

/// Bytes now, the most at any time since reset_peak(), and the sum over all time.
struct MemoryCounter {
  int64_t current = 0;
  int64_t peak = 0;
  int64_t total = 0;
};

struct MemoryStats {
  std::array<MemoryCounter, kTagCount> by_tag;  ///< allocated bytes, by tag
  MemoryCounter requested;                      ///< bytes asked for
  MemoryCounter allocated;                      ///< bytes handed out: requested, rounded up
  MemoryCounter reserved;                       ///< bytes mapped from the source
  int64_t live_allocations = 0;
  int64_t allocations = 0;
  int64_t largest_free = 0;  ///< largest free block
  int64_t source_calls = 0;  ///< calls of the source's map and unmap
  int64_t flushes = 0;       ///< times the cache was released because memory ran out
  int64_t out_of_memory = 0;
  /// External fragmentation: 1 - largest free block / all free bytes; 0 when nothing is free.
  double fragmentation() const;
};

/// Thread-safe. Blocks are aligned to at least 64 bytes (a cache line, and the widest vector).
class Allocator : public std::enable_shared_from_this<Allocator> {
 public:
  /// Best fit over one pool of segments from `source`. An allocator is shared by the storages it handed out,
  /// so it outlives them.
  static std::shared_ptr<Allocator> create(std::shared_ptr<MemorySource> source);
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  Device device() const { return source_->device(); }

  /// `bytes` >= 0 of uninitialised memory for use on `stream`. `alignment`: a power of two up to 4096. The
  /// name is what reports show, behind the open MemoryScopes'. Order when memory is short: a free
  /// block, release of the cache, the callbacks, then OutOfMemory, after which the allocator is as before the
  /// call.
  StoragePtr allocate(int64_t bytes, int64_t alignment, const Stream& stream, Tag tag,
                      std::string_view name = {});

  /// Says that work queued on `stream` uses the storage: its memory is not handed out again before that work
  /// is done. Streams of the CPU finish work before they return, so there this has nothing to wait for.
  void record_use(const StoragePtr& storage, const Stream& stream);

  /// Gives wholly free segments back to the source; returns the bytes released.
  int64_t release_cached();
  MemoryStats stats() const;
  void reset_peak();
  /// Called (with the allocator unlocked) when memory runs out; returns true when it freed something.
  void on_out_of_memory(std::function<bool()> callback);
  /// Allocated and reserved bytes, each tag's share and the largest live owners, as lines of text.
  std::string report() const;

 private:
  friend class MemoryScope;
  struct Block {
    char* segment;
    int64_t bytes;
    bool free;
    int64_t requested;
    Tag tag;
    std::string name;
  };
  explicit Allocator(std::shared_ptr<MemorySource> source) : source_(std::move(source)) {}
  char* take_block(int64_t bytes, int64_t alignment);
  char* carve(char* address, int64_t bytes, int64_t alignment);
  bool grow(int64_t bytes);
  void give_back(char* address);
  int64_t release_cached_locked();
  void add_free(char* address, int64_t bytes) { free_.insert({bytes, address}); }
  std::string report_locked() const;

  std::shared_ptr<MemorySource> source_;
  mutable std::mutex mutex_;
  std::map<char*, Block> blocks_;  // every block, by address; neighbours tile a segment
  std::map<char*, int64_t> segments_;
  std::set<std::pair<int64_t, char*>> free_;  // (bytes, address)
  std::vector<std::function<bool()>> callbacks_;
  std::vector<std::string> scopes_;
  MemoryStats stats_;
};

/// Names the allocations made while it lives: `MemoryScope scope(allocator, "processor.3");`. Scopes nest and
/// are joined by '/'. They belong to the thread that drives the engine.
class MemoryScope {
 public:
  MemoryScope(Allocator& allocator, std::string_view name);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  Allocator& allocator_;
};

/// One block whose pieces keep their addresses until the Pool is released: for captured or planned steps.
class Pool {
 public:
  Pool(Allocator& allocator, int64_t bytes, const Stream& stream, Tag tag, std::string_view name);
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
