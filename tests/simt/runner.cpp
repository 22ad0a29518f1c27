// SPDX-License-Identifier: Apache-2.0
#include "runner.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/kernels/cuda/launch.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "streams.h"

simt::Index threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

Runner runner;
constinit thread_local bool in_kernel = false;

namespace {

namespace context = boost::context::detail;

constexpr uint32_t kMostEpochs = 1u << 20;
constexpr int64_t kStaticWindow = int64_t{1} << 20;  // after the dynamic shared memory

std::vector<LaunchReport> reports;
uint32_t runs = 0;

/// The stacks of all threads, each with a page below it that faults.
char* stack_of(int thread) {
  static char* const kStacks = [] {
    void* memory = mmap(nullptr, kMostThreads * kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    for (int i = 0; i < kMostThreads; ++i) {
      mprotect(static_cast<char*>(memory) + i * kStackBytes, kPageBytes, PROT_NONE);
    }
    return static_cast<char*>(memory);
  }();
  return kStacks + thread * kStackBytes;
}

/// The next thread to run, drawn from the ready ones; none when all wait or have exited.
Thread* draw() {
  std::vector<uint16_t>& ready = runner.ready;
  if (ready.empty()) return nullptr;
  const auto drawn = static_cast<size_t>((next_random() >> 32) * ready.size() >> 32);
  const uint16_t index = ready[drawn];
  ready[drawn] = ready.back();
  ready.pop_back();
  return &runner.threads[index];
}

void enter(Thread& thread) {
  runner.current = &thread;
  const int index = runner.index_of(thread);
  threadIdx.x = static_cast<unsigned>(index);
  runner.stack_begin = stack_of(index);
}

/// `slot` receives the context of the fiber that left; the fiber that is resumed stores it.
void jump(context::fcontext_t to, context::fcontext_t* slot) {
  const context::transfer_t from = context::jump_fcontext(to, slot);
  *static_cast<context::fcontext_t*>(from.data) = from.fctx;
}

void leave_to_next() {
  Thread* const self = runner.current;
  Thread* const next = draw();
  if (next == self) return;
  if (next == nullptr) {
    if (runner.exited < runner.launch->threads) report_deadlock();
    jump(runner.main, &self->context);
  } else {
    enter(*next);
    jump(next->context, &self->context);
  }
}

void check_barrier_against_exits() {
  if (runner.exited == 0 || runner.at_barrier == 0) return;
  const auto find = [](Wait wait) {
    return static_cast<unsigned>(std::find_if(runner.threads.begin(), runner.threads.end(),
                                              [wait](const Thread& thread) { return thread.wait == wait; }) -
                                 runner.threads.begin());
  };
  const unsigned waiting = find(Wait::barrier);
  fail("a barrier that all threads of the block reach",
       fmt::format("a divergent barrier: thread {} waits at {}, and thread {} has exited", waiting,
                   text(runner.threads[waiting].where), find(Wait::exited)),
       "let threads with nothing to do go on to the barrier");
}

void body_of_thread(context::transfer_t from) {
  *static_cast<context::fcontext_t*>(from.data) = from.fctx;
  in_kernel = true;
  runner.launch->call(runner.launch->body.get());
  in_kernel = false;
  Thread& self = *runner.current;
  self.wait = Wait::exited;
  ++runner.exited;
  check_barrier_against_exits();
  leave_warp(self);
  leave_to_next();
}

void begin_block(int64_t block) {
  const auto count = static_cast<size_t>(runner.launch->threads);
  runner.run = ++runs;
  blockIdx.x = static_cast<unsigned>(block);
  runner.ready.resize(count);
  std::iota(runner.ready.begin(), runner.ready.end(), uint16_t{0});
  runner.warps.resize((count + kWarp - 1) / kWarp);
  for (size_t w = 0; w < runner.warps.size(); ++w) {
    Warp& warp = runner.warps[w];
    const size_t lanes = std::min<size_t>(kWarp, count - w * kWarp);
    warp.waiting = 0;
    warp.alive = static_cast<unsigned>((uint64_t{1} << lanes) - 1);
    warp.syncs.clear();
    warp.last_full = 0;
    warp.operations = 0;
  }
  for (size_t i = 0; i < count; ++i) {
    Thread& thread = runner.threads[i];
    thread.context =
        context::make_fcontext(stack_of(static_cast<int>(i)) + kStackBytes, kStackBytes, body_of_thread);
    thread.at = static_cast<At>(i);
    thread.sync = 0;
    thread.wait = Wait::none;
    thread.async_group = 0;
    thread.async.clear();
    thread.fence_time = 0;
  }
  runner.exited = 0;
  runner.at_barrier = 0;
  runner.votes = 0;
  runner.fenced_threads = 0;
  runner.fenced_epoch = -1;
  runner.acquires.clear();
  std::memset(dynamic_shared(), kPoison, static_cast<size_t>(runner.launch->shared_bytes));
  for (const StaticArray& array : runner.static_arrays) std::memset(array.memory, kPoison, array.bytes);
}

void run_blocks(const Launch& launch) {
  std::vector<uint32_t> order(static_cast<size_t>(launch.blocks));
  std::iota(order.begin(), order.end(), 0u);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next_random() % i]);
  for (const uint32_t block : order) {
    begin_block(block);
    Thread& first = *draw();
    enter(first);
    jump(first.context, &runner.main);
    if (!runner.error.empty()) return;
  }
}

void end_shared_memory() {
  if (runner.launch->shared_bytes > 0) arena().leave(arena().shared_begin(), false);
  for (const StaticArray& array : runner.static_arrays) arena().leave(array.memory, false);
  runner.static_arrays.clear();
}

}  // namespace

uint64_t next_random() {  // xorshift64*: Vigna, 2016
  uint64_t& x = runner.random;
  x ^= x >> 12;
  x ^= x << 25;
  x ^= x >> 27;
  return x * 0x2545f4914f6cdd1dull;
}

void set_seed(uint64_t seed) { runner.random = seed * 2 + 1; }
std::vector<LaunchReport> take_reports() { return std::exchange(reports, {}); }

std::string name_of_thread(unsigned index) { return fmt::format("thread {} of block {}", index, blockIdx.x); }

std::string text(const Location& where) {
  const std::string_view path = where.file_name();
  return fmt::format("{}:{}", path.substr(path.rfind('/') + 1), where.line());
}

std::string text(const void* code) {
  Dl_info info{};
  if (dladdr(code, &info) == 0) return fmt::format("code at {}", code);
  // A return address is after the call.
  const auto offset = static_cast<const char*>(code) - static_cast<const char*>(info.dli_fbase) - 1;
  const std::string command = fmt::format("addr2line -e '{}' {:#x} 2>/dev/null", info.dli_fname, offset);
  std::string line;
  if (FILE* pipe = popen(command.c_str(), "r"); pipe != nullptr) {
    std::array<char, 512> buffer{};
    if (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) line = buffer.data();
    pclose(pipe);
  }
  line = line.substr(0, line.find_first_of(" \n"));
  if (line.empty() || line[0] == '?') return fmt::format("code at {:#x}", offset);
  return line.substr(line.rfind('/') + 1);
}

bool same(const Location& a, const Location& b) {
  if (a.line() != b.line() || a.column() != b.column()) return false;
  return a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0;
}

void fail(std::string_view needed, std::string_view got, std::string_view fix) {
  in_kernel = false;
  runner.error = meshgrad::device_error("kernel " + runner.launch->name, needed, got, fix).what();
  context::fcontext_t never_resumed = nullptr;
  jump(runner.main, &never_resumed);
  std::abort();
}

void suspend() { leave_to_next(); }

void make_ready(const Thread& thread) {
  runner.ready.push_back(static_cast<uint16_t>(runner.index_of(thread)));
}

int barrier(Vote vote, int predicate, Location where) {
  const OutsideKernel outside;
  Thread& me = *runner.current;
  const auto index = static_cast<unsigned>(runner.index_of(me));
  if (runner.at_barrier == 0) {
    runner.barrier_site = where;
    runner.vote = vote;
    runner.first_at_barrier = index;
  } else if (!same(runner.barrier_site, where) || runner.vote != vote) {
    fail("one barrier for all threads of the block",
         fmt::format("a divergent barrier: thread {} waits at {}, {} at {}", runner.first_at_barrier,
                     text(runner.barrier_site), name_of_thread(index), text(where)),
         "move the barrier out of the branch");
  }
  me.wait = Wait::barrier;
  me.where = where;
  runner.votes += predicate != 0;
  ++runner.at_barrier;
  ++runner.report.barriers;
  check_barrier_against_exits();
  if (runner.at_barrier == runner.launch->threads) {
    const int all = runner.launch->threads;
    const int result = vote == Vote::count    ? runner.votes
                       : vote == Vote::both   ? runner.votes == all
                       : vote == Vote::either ? runner.votes > 0
                                              : 0;
    if (epoch_of(me.at) + 1 == kMostEpochs) std::abort();
    if (runner.fenced_threads == all) runner.fenced_epoch = epoch_of(me.at);
    for (Thread& thread : runner.threads) {
      thread.at += kEpoch;
      thread.sync = 0;
      thread.wait = Wait::none;
      thread.result = static_cast<uint64_t>(result);
      make_ready(thread);
    }
    for (Warp& warp : runner.warps) {
      warp.syncs.clear();
      warp.last_full = 0;
      warp.operations = 0;
    }
    runner.at_barrier = 0;
    runner.votes = 0;
    runner.fenced_threads = 0;
  }
  suspend();
  return static_cast<int>(me.result);
}

void fence() {
  const OutsideKernel outside;
  Thread& me = *runner.current;
  const unsigned epoch = epoch_of(me.at);
  if (me.fence_time == 0 || me.fence_epoch != epoch) ++runner.fenced_threads;
  me.fence_time = ++runner.time;
  me.fence_epoch = epoch;
  for (Acquire& acquire : runner.acquires) acquire.fenced |= acquire.thread == thread_of(me.at);
}

void trap(Location where) {
  in_kernel = false;
  fail("a kernel that does not trap",
       fmt::format("__trap at {} by {}", text(where), name_of_thread(thread_of(runner.current->at))),
       "see the condition before it");
}

void* dynamic_shared() { return arena().shared_begin(); }

void* static_shared(size_t bytes, size_t alignment, Location where) {
  const OutsideKernel outside;
  for (const StaticArray& array : runner.static_arrays) {
    if (same(array.where, where) && std::strcmp(array.where.function_name(), where.function_name()) == 0) {
      return array.memory;
    }
  }
  size_t all = bytes;
  for (const StaticArray& array : runner.static_arrays) all += array.bytes;
  const int limit = meshgrad::gpu::shared_bytes(0);
  if (all > kStaticSharedBytes || static_cast<int64_t>(all) + runner.launch->shared_bytes > limit ||
      alignment > 128) {
    fail(fmt::format("at most {} bytes of fixed shared memory, {} with dynamic", kStaticSharedBytes, limit),
         fmt::format("{} at {}", all, text(where)), "use dynamic shared memory, or smaller tiles");
  }
  const int64_t dynamic = runner.launch->shared_bytes;
  if (dynamic <= meshgrad::cuda::kSharedOptInBytes &&
      static_cast<int64_t>(all) + dynamic > meshgrad::cuda::kDefaultSharedBytes) {
    fail(fmt::format("at most {} bytes of shared memory for a launch that asks for no more",
                     meshgrad::cuda::kDefaultSharedBytes),
         fmt::format("{} dynamic and {} fixed, at {}", dynamic, all, text(where)),
         "make more of it dynamic: launch() opts in to more above kSharedOptInBytes");
  }
  char* const memory = runner.next_static;
  const auto size = static_cast<int64_t>(bytes);
  // A page between two arrays that belongs to neither.
  runner.next_static += (size + kPageBytes - 1) / kPageBytes * kPageBytes + kPageBytes;
  arena().enter(memory, {size, MemoryKind::shared, "the shared array of " + text(where)});
  runner.static_arrays.push_back({where, memory, bytes});
  return memory;
}

void run(const Launch& launch) {
  runner.arena = &arena();
  runner.launch = &launch;
  runner.error.clear();
  runner.report = {launch.name, launch.blocks, launch.threads, launch.shared_bytes, 0, 0, 0, 0, 0};
  runner.first_run = runs + 1;
  runner.threads.resize(static_cast<size_t>(launch.threads));
  runner.releases.clear();
  runner.next_static = arena().shared_begin() + kStaticWindow;
  gridDim = {static_cast<unsigned>(launch.blocks), 1, 1};
  blockDim = {static_cast<unsigned>(launch.threads), 1, 1};
  if (launch.shared_bytes > 0) {
    arena().enter(arena().shared_begin(), {launch.shared_bytes, MemoryKind::shared, "dynamic shared memory"});
  }
  run_blocks(launch);
  for (const StaticArray& array : runner.static_arrays) {
    runner.report.shared_bytes += static_cast<int>(array.bytes);
  }
  end_shared_memory();
  runner.launch = nullptr;
  if (!runner.error.empty()) {
    note_failure(launch.device, runner.error);
    throw meshgrad::DeviceError(runner.error);
  }
  reports.push_back(runner.report);
}

}  // namespace simt
