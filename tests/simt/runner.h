// SPDX-License-Identifier: Apache-2.0
// The running kernel: one at a time, one block at a time, each thread a fiber that runs until it waits for
// others. Inside of tests/simt only.
#pragma once
#include <meshgrad/kernels/cuda/simt.h>

#include <boost/context/detail/fcontext.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "arena.h"
#include "device.h"

namespace simt {

inline constexpr int kWarp = 32;
inline constexpr int kMostThreads = 1024;

/// Where an access stands in its block's order: thread in the low 10 bits, 2 flags, then how many barriers
/// the thread has passed. With it the number of its warp's last __syncwarp is stored, counted from each
/// barrier on.
using At = uint32_t;
inline constexpr At kAtomic = 1u << 10;
inline constexpr At kInFlight = 1u << 11;  ///< will be written by an asynchronous copy
/// In read_at: threads of one warp; threads of several warps.
inline constexpr At kManyLanes = 1u << 10;
inline constexpr At kManyWarps = 1u << 11;
inline constexpr At kEpoch = 1u << 12;
constexpr unsigned thread_of(At at) { return at & 1023u; }
constexpr unsigned epoch_of(At at) { return at / kEpoch; }
constexpr At without_flags(At at) { return at & ~(kManyLanes | kManyWarps); }

struct AsyncCopy {
  char* to;
  int group;
  char bytes[16];
};

enum class Wait : uint8_t { none, barrier, warp, exited };

struct Thread {
  boost::context::detail::fcontext_t context = nullptr;
  At at = 0;
  uint16_t sync = 0;
  Wait wait = Wait::none;
  Location where;  ///< of what it waits for

  WarpOp op = WarpOp::sync;
  unsigned mask = 0;
  int argument = 0;
  int width = 0;
  uint64_t value = 0;
  uint64_t result = 0;

  int async_group = 0;
  std::vector<AsyncCopy> async;

  int64_t fence_time = 0;  ///< 0: none yet
  unsigned fence_epoch = 0;
};

struct Warp {
  unsigned waiting = 0;         ///< lanes
  unsigned alive = 0;           ///< that have not exited
  std::vector<unsigned> syncs;  ///< masks of each __syncwarp since the last barrier
  unsigned last_full = 0;       ///< number of the last one of all lanes, counted from 1
  int64_t operations = 0;
};

/// What an atomic operation made visible to those that come later to its address: of block `run` everything
/// in epochs before `epoch`, and of its thread everything up to `own_epoch`.
struct Release {
  uint32_t run;
  unsigned epoch;
  unsigned thread;
  unsigned own_epoch;
};

/// What this block may rely on: the first `count` releases at an address, seen by `thread` at `epoch`.
struct Acquire {
  const std::vector<Release>* releases;
  size_t count;
  unsigned thread;
  unsigned epoch;
  int64_t time;
  bool fenced;
};

struct Launch {
  std::string name;
  int64_t blocks = 0;
  int threads = 0;
  int shared_bytes = 0;
  int device = 0;
  std::shared_ptr<void> body;
  size_t body_bytes = 0;
  void (*call)(void*) = nullptr;
};

struct StaticArray {
  Location where;
  char* memory;
  size_t bytes;
};

/// The state of the running launch and of its block.
struct Runner {
  Arena* arena = nullptr;
  const Launch* launch = nullptr;
  LaunchReport report;
  uint32_t first_run = 0;  ///< of this launch
  uint32_t run = 0;        ///< of this block
  int64_t time = 0;        ///< counts fences and atomic operations

  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<uint16_t> ready;
  Thread* current = nullptr;
  const char* stack_begin = nullptr;  ///< of the current thread
  boost::context::detail::fcontext_t main = nullptr;
  int exited = 0;

  int at_barrier = 0;
  int votes = 0;
  Vote vote = Vote::none;
  Location barrier_site;
  unsigned first_at_barrier = 0;
  int fenced_threads = 0;     ///< that fenced since the last barrier
  int64_t fenced_epoch = -1;  ///< up to which all threads have fenced

  std::vector<StaticArray> static_arrays;
  char* next_static = nullptr;
  std::unordered_map<const void*, std::vector<Release>> releases;
  std::vector<Acquire> acquires;

  std::string error;
  uint64_t random = 1;

  int index_of(const Thread& thread) const { return static_cast<int>(&thread - threads.data()); }
  Warp& warp_of(const Thread& thread) { return warps[static_cast<size_t>(index_of(thread) / kWarp)]; }
};
extern Runner runner;

/// Set while kernel code runs: only then the sanitizer's calls mean anything.
extern constinit thread_local bool in_kernel;

/// Kernel code calls the runner: until the end of the scope, or of the wait in it, this is not kernel code.
class OutsideKernel {
 public:
  OutsideKernel() { in_kernel = false; }
  ~OutsideKernel() { in_kernel = true; }
  OutsideKernel(const OutsideKernel&) = delete;
  OutsideKernel& operator=(const OutsideKernel&) = delete;
};

inline constexpr int64_t kStackBytes = 64 * 1024;

/// Ends the launch with an error; the fibers of the block are abandoned.
[[noreturn]] void fail(std::string_view needed, std::string_view got, std::string_view fix);
/// "thread 3 of block 2".
std::string name_of_thread(unsigned index);
/// "mlp.cu:12".
std::string text(const Location& where);
/// The same for an address of code, if addr2line knows it.
std::string text(const void* code);
bool same(const Location& a, const Location& b);
uint64_t next_random();

/// The current thread waits until make_ready is called for it.
void suspend();
void make_ready(const Thread& thread);
/// A deadlock: all threads wait for each other.
[[noreturn]] void report_deadlock();
/// Looks whether lanes wait only for `thread`, which has exited.
void leave_warp(const Thread& thread);

/// Runs a launch to its end. Throws DeviceError. The arena is open.
void run(const Launch& launch);

/// Checks and counts an access of kernel code; `code` is where it was made.
void access(const void* address, int64_t bytes, bool write, const void* code);
/// Both a read and a write, not in conflict with others of its kind.
void atomic_access(const void* address, int64_t bytes, const void* code);
/// The beginning and the end of an asynchronous copy to shared memory.
void begin_async_write(const void* address, const void* code);
void end_async_write(const void* address);
/// What `thread` did before becomes visible to those that come to `address` later, and the reverse.
void release_and_acquire(const void* address);

}  // namespace simt
