// SPDX-License-Identifier: Apache-2.0
// Warp operations, atomic operations, asynchronous copies and matrix fragments.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "runner.h"

namespace simt {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;

/// A lane's arguments of multiply_add.
struct Fragments {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
  bool half;
};

/// A lane's arguments of load_matrices.
struct Matrices {
  uint32_t* r;
  const char* row;
  bool transposed;
};

const char* name_of(WarpOp op) {
  constexpr const char* kNames[] = {"__syncwarp",       "__shfl_sync",   "__shfl_up_sync", "__shfl_down_sync",
                                    "__shfl_xor_sync",  "__ballot_sync", "__any_sync",     "__all_sync",
                                    "__match_any_sync", "load_matrices", "multiply_add"};
  return kNames[static_cast<int>(op)];
}

/// Of the warp of a thread.
Thread& lane_of(const Thread& thread, int lane) {
  const int first = runner.index_of(thread) / kWarp * kWarp;
  return runner.threads[static_cast<size_t>(first + lane)];
}

std::string where_it_waits(const Thread& thread) {
  const auto name = fmt::format("thread {}", runner.index_of(thread));
  switch (thread.wait) {
    case Wait::none:
      return name + " is elsewhere";
    case Wait::exited:
      return name + " has exited";
    case Wait::barrier:
      return fmt::format("{} waits at the barrier of {}", name, text(thread.where));
    case Wait::warp:
      return fmt::format("{} waits at {} of {}", name, name_of(thread.op), text(thread.where));
  }
  return name;
}

void check_same_operation(const Thread& me, const Thread& other) {
  if (me.op == other.op && me.mask == other.mask && same(me.where, other.where)) return;
  fail("one warp operation for all lanes of the mask",
       fmt::format("divergent lanes: {} (mask {:#x}), {} (mask {:#x})", where_it_waits(me), me.mask,
                   where_it_waits(other), other.mask),
       "move the operation out of the branch, or name only the lanes that reach it");
}

/// The lane that a shuffle reads for `lane`; its own where the CUDA guide says that the value is unchanged.
int source_lane(const Thread& thread, int lane) {
  const int width = thread.width;
  const int segment = lane / width * width;
  const int at = lane - segment;
  switch (thread.op) {
    case WarpOp::shuffle:
      return segment + (thread.argument & (width - 1));
    case WarpOp::up:
      return at - thread.argument >= 0 ? lane - thread.argument : lane;
    case WarpOp::down:
      return at + thread.argument < width ? lane + thread.argument : lane;
    default: {
      // A lane of a later segment keeps its value.
      const int other = lane ^ thread.argument;
      return other < segment + width ? other : lane;
    }
  }
}

uint64_t shuffle_result(const Thread& thread, int lane) {
  const int from = source_lane(thread, lane);
  const Thread& source = lane_of(thread, from & (kWarp - 1));
  const bool in_mask = (thread.mask >> (from & (kWarp - 1)) & 1u) != 0;
  if (!in_mask || source.wait == Wait::exited) {
    fail("shuffles that read lanes of the mask which take part",
         fmt::format("{} of thread {} at {} reads lane {}, which {}", name_of(thread.op),
                     runner.index_of(thread), text(thread.where), from,
                     in_mask ? "has exited" : "is not in the mask"),
         "shuffle before lanes leave, with all of them in the mask");
  }
  return source.value;
}

unsigned lanes_with(const Thread& me, unsigned lanes, uint64_t value) {
  unsigned found = 0;
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((lanes >> lane & 1u) != 0 && lane_of(me, lane).value == value) found |= 1u << lane;
  }
  return found;
}

float value_of(uint16_t bits, bool is_half) {
  if (!is_half) return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  meshgrad::half x;
  x.bits = bits;
  return to_float(x);
}

uint32_t element(const char* row, int column) {
  uint16_t bits = 0;
  std::memcpy(&bits, row + 2 * column, sizeof bits);
  return bits;
}

/// The layout is that of load_matrices in kernels/cuda/device.h.
void load(const Thread& me) {
  const auto mine = [&me](int lane) -> const Matrices& {
    return *reinterpret_cast<const Matrices*>(lane_of(me, lane).value);
  };
  for (int lane = 0; lane < kWarp; ++lane) {
    const int g = lane / 4;
    const int q = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const auto row = [&](int r) { return mine(8 * i + r).row; };
      const uint32_t low = mine(lane).transposed ? element(row(2 * q), g) : element(row(g), 2 * q);
      const uint32_t high = mine(lane).transposed ? element(row(2 * q + 1), g) : element(row(g), 2 * q + 1);
      mine(lane).r[i] = low | high << 16;
    }
  }
}

/// The fragments' layout is that of multiply_add in kernels/cuda/device.h.
void multiply(const Thread& me) {
  float a[16][16];
  float b[16][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto& mine = *reinterpret_cast<const Fragments*>(lane_of(me, lane).value);
    const int g = lane / 4;
    const int q = lane % 4;
    for (int part = 0; part < 2; ++part) {
      const auto half_of = [&](uint32_t word) {
        return value_of(static_cast<uint16_t>(word >> 16 * part), mine.half);
      };
      a[g][2 * q + part] = half_of(mine.a[0]);
      a[g + 8][2 * q + part] = half_of(mine.a[1]);
      a[g][2 * q + 8 + part] = half_of(mine.a[2]);
      a[g + 8][2 * q + 8 + part] = half_of(mine.a[3]);
      b[2 * q + part][g] = half_of(mine.b[0]);
      b[2 * q + 8 + part][g] = half_of(mine.b[1]);
    }
  }
  float sum[16][8] = {};
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 16; ++k) {
      for (int j = 0; j < 8; ++j) sum[i][j] += a[i][k] * b[k][j];
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto& mine = *reinterpret_cast<const Fragments*>(lane_of(me, lane).value);
    for (int i = 0; i < 4; ++i) mine.d[i] += sum[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2];
  }
  runner.report.tensor_flops += 2 * 16 * 8 * 16;
}

void finish_sync(Warp& warp, const Thread& me, unsigned lanes) {
  warp.syncs.push_back(lanes);
  const auto number = static_cast<uint16_t>(warp.syncs.size());
  if (warp.syncs.size() > UINT16_MAX) {
    fail("fewer than 65536 __syncwarp between barriers", text(me.where), "use __syncthreads now and then");
  }
  // Lanes that have exited do nothing more.
  if (lanes == warp.alive) warp.last_full = number;
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((lanes >> lane & 1u) != 0) lane_of(me, lane).sync = number;
  }
}

/// All participating lanes have arrived.
void finish(Warp& warp, const Thread& me, unsigned lanes) {
  const auto each = [&](auto&& result) {
    for (int lane = 0; lane < kWarp; ++lane) {
      if ((lanes >> lane & 1u) == 0) continue;
      Thread& thread = lane_of(me, lane);
      thread.result = result(thread, lane);
    }
  };
  switch (me.op) {
    case WarpOp::sync:
      finish_sync(warp, me, lanes);
      break;
    case WarpOp::shuffle:
    case WarpOp::up:
    case WarpOp::down:
    case WarpOp::exchange:
      each([](const Thread& thread, int lane) { return shuffle_result(thread, lane); });
      break;
    case WarpOp::ballot:
    case WarpOp::any:
    case WarpOp::all: {
      const unsigned ballot = lanes_with(me, lanes, 1);
      const uint64_t result = me.op == WarpOp::ballot ? ballot
                              : me.op == WarpOp::any  ? ballot != 0
                                                      : ballot == lanes;
      each([result](const Thread&, int) { return result; });
      break;
    }
    case WarpOp::match:
      each([&](const Thread& thread, int) -> uint64_t { return lanes_with(me, lanes, thread.value); });
      break;
    case WarpOp::matrices:
      load(me);
      break;
    case WarpOp::multiply:
      multiply(me);
      break;
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((lanes >> lane & 1u) == 0) continue;
    Thread& thread = lane_of(me, lane);
    thread.wait = Wait::none;
    make_ready(thread);
  }
  warp.waiting &= ~lanes;
}

void finish_if_complete(Warp& warp, const Thread& me) {
  const unsigned lanes = me.mask & warp.alive;
  if ((warp.waiting & lanes) == lanes) finish(warp, me, lanes);
}

}  // namespace

uint64_t warp_operation(WarpOp op, unsigned mask, uint64_t value, int argument, int width, Location where) {
  const OutsideKernel outside;
  Thread& me = *runner.current;
  Warp& warp = runner.warp_of(me);
  const int lane = runner.index_of(me) % kWarp;
  ++runner.report.warp_operations;
  runner.report.longest_warp = std::max(runner.report.longest_warp, ++warp.operations);
  me.op = op;
  me.mask = mask;
  me.value = value;
  me.argument = argument;
  me.width = width;
  me.wait = Wait::warp;
  me.where = where;
  if ((mask >> lane & 1u) == 0) {
    fail("a mask with the calling lane in it", fmt::format("{} with mask {:#x}", where_it_waits(me), mask),
         "name all lanes that reach the operation");
  }
  if (op >= WarpOp::matrices && warp.alive != kAllLanes) {
    fail("all 32 lanes for matrix fragments", where_it_waits(me) + ", and lanes have exited",
         "keep whole warps");
  }
  const unsigned others = warp.waiting & mask;
  if (others != 0) check_same_operation(me, lane_of(me, std::countr_zero(others)));
  warp.waiting |= 1u << lane;
  finish_if_complete(warp, me);
  suspend();
  return me.result;
}

void leave_warp(const Thread& thread) {
  Warp& warp = runner.warp_of(thread);
  warp.alive &= ~(1u << runner.index_of(thread) % kWarp);
  while (warp.waiting != 0) {
    const Thread& waiting = lane_of(thread, std::countr_zero(warp.waiting));
    const unsigned before = warp.waiting;
    finish_if_complete(warp, waiting);
    if (warp.waiting == before) break;
  }
}

void report_deadlock() {
  for (const Thread& thread : runner.threads) {
    if (thread.wait != Wait::warp) continue;
    const unsigned missing = thread.mask & runner.warp_of(thread).alive & ~runner.warp_of(thread).waiting;
    if (missing == 0) continue;
    const Thread& other = lane_of(thread, std::countr_zero(missing));
    fail(other.wait == Wait::barrier ? "barriers and warp operations that all their threads reach"
                                     : "warp operations that all lanes of the mask reach",
         fmt::format("a divergent barrier: {}, but {}", where_it_waits(thread), where_it_waits(other)),
         "move the operation out of the branch");
  }
  fail("threads that go on", "a wait without an end", "see the barriers of the kernel");
}

template <class T>
T atomic(AtomicOp op, T* address, T operand, T compare, Location where) {
  const OutsideKernel outside;
  static_cast<void>(where);
  ++runner.time;
  atomic_access(address, sizeof(T), __builtin_return_address(0));
  release_and_acquire(address);
  const T before = *address;
  switch (op) {
    case AtomicOp::add:
      *address = static_cast<T>(before + operand);
      break;
    case AtomicOp::max:
      *address = std::max(before, operand);
      break;
    case AtomicOp::min:
      *address = std::min(before, operand);
      break;
    case AtomicOp::exchange:
      *address = operand;
      break;
    case AtomicOp::compare_exchange:
      if (before == compare) *address = operand;
      break;
    case AtomicOp::bit_or:
    case AtomicOp::bit_and:
      if constexpr (std::is_integral_v<T>) {
        *address = op == AtomicOp::bit_or ? before | operand : before & operand;
      }
      break;
  }
  return before;
}
template int atomic(AtomicOp, int*, int, int, Location);
template unsigned atomic(AtomicOp, unsigned*, unsigned, unsigned, Location);
template long long atomic(AtomicOp, long long*, long long, long long, Location);
template unsigned long long atomic(AtomicOp, unsigned long long*, unsigned long long, unsigned long long,
                                   Location);
template float atomic(AtomicOp, float*, float, float, Location);
template double atomic(AtomicOp, double*, double, double, Location);

void copy_async_16(void* shared, const void* global, bool valid, Location where) {
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % 16 != 0) {
    in_kernel = false;
    fail("16-byte aligned addresses of asynchronous copies",
         fmt::format("{} and {} at {}", shared, global, text(where)), "pad the rows");
  }
  Thread& me = *runner.current;
  AsyncCopy copy{static_cast<char*>(shared), me.async_group, {}};
  const void* code = __builtin_return_address(0);
  if (valid) {
    access(global, 16, false, code);
    std::memcpy(copy.bytes, global, sizeof copy.bytes);
  }
  const OutsideKernel outside;
  begin_async_write(shared, code);
  std::memset(shared, kPoison, sizeof copy.bytes);
  me.async.push_back(copy);
}

void copy_async_commit() { ++runner.current->async_group; }

void copy_async_wait_for(int pending) {
  const OutsideKernel outside;
  Thread& me = *runner.current;
  size_t landed = 0;
  for (; landed < me.async.size() && me.async[landed].group < me.async_group - pending; ++landed) {
    const AsyncCopy& copy = me.async[landed];
    std::memcpy(copy.to, copy.bytes, sizeof copy.bytes);
    end_async_write(copy.to);
  }
  me.async.erase(me.async.begin(), me.async.begin() + static_cast<std::ptrdiff_t>(landed));
}

namespace {

const char* checked_row(const void* row, Location where, const void* code) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0 || !arena().contains(row) ||
      arena().page(row).kind != MemoryKind::shared) {
    in_kernel = false;
    fail("16-byte aligned rows in shared memory", fmt::format("{} at {}", arena().describe(row), text(where)),
         "pad the rows to 16 bytes");
  }
  access(row, 16, false, code);
  return static_cast<const char*>(row);
}

}  // namespace

void load_matrices(uint32_t (&r)[4], const void* row, Location where) {
  const Matrices mine{r, checked_row(row, where, __builtin_return_address(0)), false};
  warp_operation(WarpOp::matrices, kAllLanes, reinterpret_cast<uint64_t>(&mine), 0, kWarp, where);
}

void load_matrices_transposed(uint32_t (&r)[4], const void* row, Location where) {
  const Matrices mine{r, checked_row(row, where, __builtin_return_address(0)), true};
  warp_operation(WarpOp::matrices, kAllLanes, reinterpret_cast<uint64_t>(&mine), 0, kWarp, where);
}

void multiply_add_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Location where) {
  const Fragments mine{d, a, b, true};
  warp_operation(WarpOp::multiply, kAllLanes, reinterpret_cast<uint64_t>(&mine), 0, kWarp, where);
}

void multiply_add_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Location where) {
  const Fragments mine{d, a, b, false};
  warp_operation(WarpOp::multiply, kAllLanes, reinterpret_cast<uint64_t>(&mine), 0, kWarp, where);
}

}  // namespace simt
