// SPDX-License-Identifier: Apache-2.0
// The memory of the simulated device: one range of addresses that the host cannot touch except while an
// OpenArena lives, what is allocated in it, and what the runner remembers of its bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <source_location>
#include <string>

namespace simt {

inline constexpr int64_t kPageBytes = 4096;
inline constexpr int64_t kHugePage = int64_t{2} << 20;
inline constexpr int64_t kDeviceBytes = int64_t{2} << 30;
/// More than the memory: allocators reserve addresses for their whole limit.
inline constexpr int64_t kArenaBytes = int64_t{6} << 30;
/// What a block may have, as on an H200; without dynamic memory, and only of fixed arrays.
inline constexpr int kSharedBytes = 232448;
inline constexpr int kStaticSharedBytes = 48 * 1024;
/// NaN in every floating type, -1 in every integer.
inline constexpr int kPoison = 0xff;

/// The last accesses to 1, 2, 4, 8 or 16 bytes. A run is one block of one launch, counted over all launches,
/// so that nothing has to be cleared. See Access in access.cpp.
struct Cell {
  uint32_t write_run;
  uint32_t write_at;
  uint32_t read_run;
  uint32_t read_at;
  uint32_t foreign_run;  ///< an earlier block's read that read_run has replaced
  uint16_t write_sync;
  uint16_t read_sync;
};

enum class MemoryKind : uint8_t { none, global, shared };

/// At most one allocation has bytes in a page: [low, high) of it.
struct Page {
  Cell* cells;
  uint32_t owner;
  uint16_t low;
  uint16_t high;
  uint8_t shift;  ///< a cell is for 1 << shift bytes
  MemoryKind kind;
  uint8_t device;

  int64_t cell_count() const { return kPageBytes >> shift; }
};

struct Allocation {
  int64_t bytes = 0;
  MemoryKind kind = MemoryKind::none;
  std::string name;
  int device = 0;
};

class Arena {
 public:
  Arena();
  char* begin() const { return begin_; }
  bool contains(const void* address) const { return offset(address) < static_cast<uint64_t>(kArenaBytes); }
  uint64_t offset(const void* address) const {
    return reinterpret_cast<uint64_t>(address) - reinterpret_cast<uint64_t>(begin_);
  }
  Page& page(const void* address) const { return pages_[offset(address) / kPageBytes]; }

  /// Only addresses: nullptr when there are none. Whole pages; from the high end for large reservations.
  char* reserve(int64_t bytes, int64_t alignment, bool high);
  void release(char* address, int64_t bytes);
  /// Device memory that counts, of both devices together; false when it is full.
  bool commit(int64_t bytes);
  void uncommit(int64_t bytes) { committed_ -= bytes; }
  int64_t committed() const { return committed_; }

  /// From now on accesses to these bytes are allowed; `address` begins a page.
  void enter(char* address, Allocation allocation);
  /// No longer. The memory is the system's again when `drop` says so, else poisoned.
  void leave(char* address, bool drop);
  /// Whether all of it lies in one piece of device memory.
  bool live(const void* address, int64_t bytes) const;
  /// That of the allocation at this address, which is in one.
  int device_of(const void* address) const { return page(address).device; }
  /// "byte 12 of device memory of 64 bytes", for messages.
  std::string describe(const void* address) const;

  /// Cells for accesses of 1 << shift bytes or more.
  void refine(Page& page, int shift);
  /// For shared memory: 1 MiB at the beginning of the arena that reserve() never gives.
  char* shared_begin() const { return begin_; }

 private:
  friend class OpenArena;
  char* begin_ = nullptr;
  Page* pages_ = nullptr;
  std::map<int64_t, int64_t> free_;  // offset -> bytes
  std::map<const char*, Allocation> allocations_;
  uint32_t owners_ = 0;
  int64_t committed_ = 0;
  int open_ = 0;
};

Arena& arena();

/// The host may touch device memory while one lives: for kernels and copies.
class OpenArena {
 public:
  OpenArena();
  ~OpenArena();
  OpenArena(const OpenArena&) = delete;
  OpenArena& operator=(const OpenArena&) = delete;
};

}  // namespace simt
