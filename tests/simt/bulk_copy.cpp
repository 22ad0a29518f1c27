// SPDX-License-Identifier: Apache-2.0
// Copies of boxes and their barriers (kernels/cuda/bulk_copy.h). A copy reads when it starts and lands as
// late as it can: when every thread that could go on waits for copies, in random order. Until then, and for a
// thread that has not waited for the phase in which it landed, its bytes may not be touched. Stricter than a
// GPU: each thread that reads waits itself.
#include <fmt/format.h>
#include <meshgrad/kernels/cuda/bulk_copy.h>

#include <algorithm>
#include <cstring>

#include "device.h"
#include "runner.h"

namespace simt {
namespace {

constexpr int kRowBytes = 128;
bool tensor_maps = true;

/// What a TensorMap holds on the simulated device.
struct Rows {
  const char* data;
  int64_t rows, columns;
  int box_rows;
};
static_assert(sizeof(Rows) <= sizeof(meshgrad::cuda::TensorMap));

void check_shared(const void* address, uintptr_t alignment, const char* what, Location where) {
  const bool shared = arena().contains(address) && arena().page(address).kind == MemoryKind::shared;
  if (shared && reinterpret_cast<uintptr_t>(address) % alignment == 0) return;
  in_kernel = false;
  fail(fmt::format("{} in shared memory, at a multiple of {} bytes", what, alignment),
       fmt::format("{} at {}", arena().describe(address), text(where)), "align it");
}

/// The barrier at this address, which some thread has made before the last barrier of the block.
CopyBarrier& barrier_at(const void* address, Location where, const void* code) {
  check_shared(address, 8, "a barrier of copies", where);
  access(address, 8, false, code);  // a race with its initialisation
  const auto found = runner.copy_barriers.find(address);
  if (found == runner.copy_barriers.end()) {
    in_kernel = false;
    fail("barrier_init before a barrier is used", text(where), "one thread makes it, before __syncthreads");
  }
  return found->second;
}

void end_phase_if_complete(const void* address, CopyBarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.arrivals;
  ++barrier.phase;
  for (Thread& thread : runner.threads) {
    if (thread.wait != Wait::copies || thread.value != reinterpret_cast<uint64_t>(address)) continue;
    thread.wait = Wait::none;
    make_ready(thread);
  }
}

}  // namespace

void set_tensor_maps(bool made) { tensor_maps = made; }

bool land_copy() {
  std::vector<size_t>& flying = runner.boxes_flying;
  if (flying.empty()) return false;
  const size_t drawn = next_random() % flying.size();
  BoxCopy& copy = runner.box_copies[flying[drawn]];
  flying.erase(flying.begin() + static_cast<std::ptrdiff_t>(drawn));
  for (size_t row = 0; row < copy.bytes.size() / kRowBytes; ++row) {
    for (size_t chunk = 0; chunk < kRowBytes / 16; ++chunk) {
      const size_t at = row * kRowBytes + chunk * 16;
      char* const plain = copy.to + at;
      const uint32_t phase = shared_address(plain) / kRowBytes % 8;
      std::memcpy(copy.to + row * kRowBytes + (chunk ^ phase) * 16, copy.bytes.data() + at, 16);
    }
  }
  CopyBarrier& barrier = runner.copy_barriers.at(copy.barrier);
  copy.landed = true;
  copy.phase = barrier.phase;
  barrier.bytes -= static_cast<int64_t>(copy.bytes.size());
  end_phase_if_complete(copy.barrier, barrier);
  return true;
}

void barrier_init(void* barrier, int arrivals, Location where) {
  check_shared(barrier, 8, "a barrier of copies", where);
  access(barrier, 8, true, __builtin_return_address(0));
  const OutsideKernel outside;
  if (runner.copy_barriers.contains(barrier)) {
    fail("one barrier_init for each barrier", fmt::format("a second one at {}", text(where)),
         "go on with its next phase");
  }
  const Thread& me = *runner.current;
  runner.copy_barriers[barrier] = {
      .arrivals = arrivals, .pending = arrivals, .maker = thread_of(me.at), .made_after = me.product_fences};
}

void arrive_and_expect(void* barrier, int bytes, Location where) {
  CopyBarrier& of = barrier_at(barrier, where, __builtin_return_address(0));
  const OutsideKernel outside;
  if (of.pending == 0) {
    fail("as many arrivals in a phase as at barrier_init", fmt::format("one more at {}", text(where)),
         "wait for the phase before the next arrival");
  }
  of.bytes += product_mistake() == ProductMistake::copy_bytes ? bytes / 2 : bytes;
  --of.pending;
  end_phase_if_complete(barrier, of);
}

void wait_for_phase(void* barrier, int parity, Location where) {
  CopyBarrier& of = barrier_at(barrier, where, __builtin_return_address(0));
  const OutsideKernel outside;
  Thread& me = *runner.current;
  while (static_cast<int>(of.phase % 2) == parity && product_mistake() != ProductMistake::copy_wait) {
    me.wait = Wait::copies;
    me.where = where;
    me.value = reinterpret_cast<uint64_t>(barrier);
    suspend();
  }
  me.phases_seen[barrier] = of.phase;
}

void copy_box_async(void* shared, const void* map, int column, int row, void* barrier, Location where) {
  const void* const code = __builtin_return_address(0);
  check_shared(shared, kRowBytes, "a box", where);
  CopyBarrier& of = barrier_at(barrier, where, code);
  const OutsideKernel outside;
  const Thread& maker = runner.threads[of.maker];
  const bool own = &maker == runner.current;
  if ((own ? maker.product_fences : maker.product_fences_at_barrier) <= of.made_after) {
    fail("fence_shared_for_products between barrier_init and the first copy",
         fmt::format("a copy at {} to a barrier that thread {} made and has not fenced", text(where),
                     of.maker),
         "the thread that makes a barrier fences it, before __syncthreads");
  }
  Rows from{};
  std::memcpy(&from, map, sizeof from);
  BoxCopy copy{static_cast<char*>(shared), {}, barrier};
  copy.bytes.resize(static_cast<size_t>(from.box_rows) * kRowBytes);
  const size_t number = runner.box_copies.size();
  for (int r = 0; r < from.box_rows; ++r) {
    for (int c = 0; c < meshgrad::cuda::kBoxColumns; c += 8) {
      const size_t at = static_cast<size_t>(r * kRowBytes + c * 2);
      if (row + r >= 0 && row + r < from.rows && column + c >= 0 && column + c < from.columns) {
        const char* const value = from.data + (int64_t{row + r} * from.columns + column + c) * 2;
        box_copy_access(value, false, code);
        std::memcpy(copy.bytes.data() + at, value, 16);
      }
      box_copy_access(copy.to + at, true, code);
      mark_box_copy(copy.to + at, number);
    }
  }
  std::memset(copy.to, kPoison, copy.bytes.size());
  runner.box_copies.push_back(std::move(copy));
  runner.boxes_flying.push_back(number);
  runner.current->alone = true;
}

void fence_for_copies() {
  if (product_mistake() == ProductMistake::copy_fence) return;
  ++runner.current->product_fences;
  ++runner.current->copy_fences;
}

void check_copies_landed() {
  if (runner.boxes_flying.empty()) return;
  fail("a wait for each copy before its block ends",
       fmt::format("{} copies of boxes in flight at the end of block {}", runner.boxes_flying.size(),
                   blockIdx.x),
       "wait for the phase of their barrier");
}

std::string copies_expected(const Thread& thread) {
  const CopyBarrier& barrier = runner.copy_barriers.at(reinterpret_cast<const void*>(thread.value));
  return fmt::format("whose barrier misses {} arrivals and {} of the expected bytes, with no copy in flight",
                     barrier.pending, barrier.bytes);
}

}  // namespace simt

namespace meshgrad::cuda {

std::string make_tensor_map(TensorMap& map, const void* data, int64_t rows, int64_t columns, int box_rows) {
  if (!simt::tensor_maps) return "the simulated device makes none";
  const simt::Rows form{static_cast<const char*>(data), rows, columns, box_rows};
  std::memcpy(map.form, &form, sizeof form);
  return {};
}

}  // namespace meshgrad::cuda
