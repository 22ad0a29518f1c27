// SPDX-License-Identifier: Apache-2.0
// Loads and stores of kernels. Two accesses to one byte by different threads, one of them a write, must be
// ordered:
// - within a block by __syncthreads, within a warp also by __syncwarp with both lanes in the mask;
// - between blocks of a launch by atomic operations on one address. What a block did is released by an atomic
//   operation of a thread that has called __threadfence since the block's last barrier (or after a barrier
//   before which all threads had called it), and is acquired by a block of which a thread operates on
//   the address later and, after that, calls __threadfence; its other threads take part after the next
//   barrier.
// - Atomic operations do not conflict with each other.
// Blocks run one after the other, so of two blocks the one with the lower run was first.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "runner.h"

extern "C" const char __executable_start;
extern "C" const char _end;

namespace simt {
namespace {

struct Access {
  const char* address;
  int64_t bytes;
  bool write;
  bool atomic;
  const void* code;

  std::string text() const {
    return fmt::format("{} {} {} bytes at {} ({})", name_of_thread(thread_of(runner.current->at)),
                       atomic  ? "atomically changes"
                       : write ? "writes"
                               : "reads",
                       bytes, arena().describe(address), simt::text(code));
  }
};

/// Whether an access of this block, so long ago, is ordered before the current thread's next one.
bool ordered_in_block(At at, uint16_t sync, bool all_lanes = false) {
  const Thread& me = *runner.current;
  if (epoch_of(at) != epoch_of(me.at)) return true;
  if (thread_of(at) == thread_of(me.at) && !all_lanes) return true;
  if (thread_of(at) / kWarp != thread_of(me.at) / kWarp) return false;
  const Warp& warp = runner.warp_of(me);
  if (warp.last_full > sync && warp.last_full <= me.sync) return true;
  if (all_lanes) return false;
  const unsigned both = 1u << (thread_of(at) % kWarp) | 1u << (thread_of(me.at) % kWarp);
  for (unsigned i = sync; i < me.sync; ++i) {
    if ((warp.syncs[i] & both) == both) return true;
  }
  return false;
}

/// The same of an access of an earlier block of the launch.
bool ordered_between_blocks(uint32_t run, unsigned thread, unsigned epoch) {
  const Thread& me = *runner.current;
  for (const Acquire& acquire : runner.acquires) {
    const bool mine = acquire.thread == thread_of(me.at);
    if (!mine && acquire.epoch >= epoch_of(me.at)) continue;
    const bool fenced_here = me.fence_time > acquire.time && (mine || me.fence_epoch > acquire.epoch);
    if (!acquire.fenced && !fenced_here) continue;
    for (size_t i = 0; i < acquire.count; ++i) {
      const Release& release = (*acquire.releases)[i];
      if (release.run != run) continue;
      if (epoch < release.epoch || (thread == release.thread && epoch <= release.own_epoch)) return true;
    }
  }
  return false;
}

[[noreturn]] void fail_race(const Access& access, uint32_t run, At at, const char* earlier) {
  if (run == runner.run) {
    fail("a barrier between accesses of two threads to one address, one of them a write",
         fmt::format("a race: {}, which thread {} {} since the last barrier", access.text(), thread_of(at),
                     earlier),
         "put __syncthreads (within a warp: __syncwarp) between them");
  }
  fail("blocks that do not depend on each other, or meet by __threadfence and an atomic operation",
       fmt::format("a race: {}, which thread {} of another block {} in this launch", access.text(),
                   thread_of(at), earlier),
       "give each block its own part, or end the launch between them");
}

void check_against_write(const Cell& cell, const Access& access) {
  if (cell.write_run == runner.run) {
    if ((cell.write_at & kInFlight) != 0) {
      fail("a wait for the asynchronous copy before its bytes are touched",
           fmt::format("{}, where a copy of thread {} is in flight", access.text(), thread_of(cell.write_at)),
           "copy_async_commit and copy_async_wait come first, then a barrier");
    }
    if (access.atomic && (cell.write_at & kAtomic) != 0) return;
    if (ordered_in_block(cell.write_at, cell.write_sync)) return;
  } else {
    if (access.atomic && (cell.write_at & kAtomic) != 0) return;
    if (ordered_between_blocks(cell.write_run, thread_of(cell.write_at), epoch_of(cell.write_at))) return;
  }
  fail_race(access, cell.write_run, cell.write_at, "wrote");
}

void check_against_reads(const Cell& cell, const Access& access, uint32_t oldest) {
  if (cell.read_run == runner.run) {
    const bool many = (cell.read_at & (kManyLanes | kManyWarps)) != 0;
    const bool other_warps = (cell.read_at & kManyWarps) != 0;
    const bool old = epoch_of(cell.read_at) != epoch_of(runner.current->at);
    if (!old && (other_warps || !ordered_in_block(cell.read_at, cell.read_sync, many))) {
      fail_race(access, cell.read_run, cell.read_at, "read");
    }
  } else if (!ordered_between_blocks(cell.read_run, thread_of(cell.read_at), epoch_of(cell.read_at))) {
    fail_race(access, cell.read_run, cell.read_at, "read");
  }
  if (cell.foreign_run >= oldest && cell.foreign_run != runner.run &&
      !ordered_between_blocks(cell.foreign_run, 0, 0)) {
    fail_race(access, cell.foreign_run, 0, "(or another) read");
  }
}

void note_read(Cell& cell) {
  const Thread& me = *runner.current;
  if (cell.read_run != runner.run) {
    if (cell.read_run >= runner.first_run) cell.foreign_run = cell.read_run;
    cell.read_run = runner.run;
  } else if (epoch_of(cell.read_at) == epoch_of(me.at)) {
    const bool other = thread_of(cell.read_at) != thread_of(me.at);
    const At many = cell.read_at & (kManyLanes | kManyWarps);
    if (other && thread_of(cell.read_at) / kWarp != thread_of(me.at) / kWarp) {
      cell.read_at |= kManyWarps;
      return;
    }
    if (many != 0 || (other && !ordered_in_block(cell.read_at, cell.read_sync))) {
      cell.read_at |= kManyLanes;
      cell.read_sync = std::max(cell.read_sync, me.sync);
      return;
    }
  }
  cell.read_at = me.at;
  cell.read_sync = me.sync;
}

/// One cell's part of an access; `size` is the cell's bytes.
inline void visit(Cell& cell, const Page& page, const Access& access, int64_t size) {
  const Thread& me = *runner.current;
  // What an earlier launch did is ordered; shared memory is another one for each block.
  const uint32_t oldest = page.kind == MemoryKind::shared ? runner.run : runner.first_run;
  const bool written = cell.write_run >= oldest;
  if (page.kind == MemoryKind::shared && !access.write && cell.write_run != runner.run) {
    fail("shared memory that was written before it is read", access.text() + ", which was never written",
         "write it first; nothing of an earlier block is left");
  }
  if (written && (cell.write_at != me.at || cell.write_run != runner.run)) check_against_write(cell, access);
  if (access.write || access.atomic) {
    const bool mine_alone = cell.read_at == me.at && cell.read_run == runner.run && cell.foreign_run < oldest;
    if (cell.read_run >= oldest && !mine_alone) {
      check_against_reads(cell, access, oldest);
    }
    if (page.kind == MemoryKind::global && !written) runner.report.unique_bytes_written += size;
  }
  if (!access.write || access.atomic) {
    if (page.kind == MemoryKind::global && cell.read_run < oldest) {
      runner.report.unique_bytes_read += size;
    }
    if (!access.atomic) note_read(cell);
  }
  if (access.write || access.atomic) {
    cell.write_run = runner.run;
    cell.write_at = access.atomic ? me.at | kAtomic : me.at;
    cell.write_sync = me.sync;
  }
}

/// Memory that is not the device's: a thread's own stack, constants of the program, the kernel's arguments.
void check_elsewhere(const Access& access) {
  if (static_cast<uint64_t>(access.address - runner.stack_begin) < uint64_t{kStackBytes}) return;
  const char* arguments = static_cast<const char*>(runner.launch->body.get());
  const bool readable =
      (access.address >= &__executable_start && access.address < &_end) ||
      (access.address >= arguments && access.address < arguments + runner.launch->body_bytes);
  if (readable && !access.write) return;
  fail("accesses to device memory", access.text(), "pass a pointer into device memory");
}

void visit_all(const Access& access) {
  Arena& device = *runner.arena;
  const char* address = access.address;
  const char* end = address + access.bytes;
  if (!device.contains(address)) return check_elsewhere(access);
  const MemoryKind kind = device.page(address).kind;
  while (address < end) {
    Page& page = device.page(address);
    const int64_t first = static_cast<int64_t>(device.offset(address) % kPageBytes);
    const int64_t last = std::min(kPageBytes, first + (end - address));
    if (page.kind != kind || kind == MemoryKind::none || first < page.low || last > page.high) {
      fail("accesses inside of an allocation", access.text(), "check the bound of the index");
    }
    if (kind == MemoryKind::global && page.device != runner.launch->device) {
      fail(fmt::format("memory of device {}, on which the kernel runs", runner.launch->device),
           fmt::format("{}, of device {}", access.text(), page.device), "copy it to that device");
    }
    while (((first | last) & ((1 << page.shift) - 1)) != 0 || page.cells == nullptr) {
      int shift = page.shift;
      while (((first | last) & ((1 << shift) - 1)) != 0) --shift;
      device.refine(page, shift);
    }
    const int64_t size = int64_t{1} << page.shift;
    for (int64_t at = first; at < last; at += size) visit(page.cells[at >> page.shift], page, access, size);
    address += last - first;
  }
  if (kind != MemoryKind::global) return;
  if (!access.write || access.atomic) runner.report.bytes_read += access.bytes;
  if (access.write || access.atomic) runner.report.bytes_written += access.bytes;
}

}  // namespace

void access(const void* address, int64_t bytes, bool write, const void* code) {
  const char* byte = static_cast<const char*>(address);
  // The commonest: a thread's own stack.
  if (static_cast<uint64_t>(byte - runner.stack_begin) < uint64_t{kStackBytes}) return;
  if (bytes == 0) return;
  const OutsideKernel outside;
  visit_all({byte, bytes, write, false, code});
}

void atomic_access(const void* address, int64_t bytes, const void* code) {
  if (reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(bytes) != 0) {
    fail("aligned addresses of atomic operations", fmt::format("{}", fmt::ptr(address)), "align it");
  }
  visit_all({static_cast<const char*>(address), bytes, true, true, code});
}

void begin_async_write(const void* address, const void* code) {
  if (arena().contains(address) && arena().page(address).kind != MemoryKind::shared) {
    fail("asynchronous copies to shared memory", arena().describe(address), "swap the addresses");
  }
  visit_all({static_cast<const char*>(address), 16, true, false, code});
  Page& page = arena().page(address);
  const uint64_t first = arena().offset(address) % kPageBytes;
  for (uint64_t at = first; at < first + 16; at += 1u << page.shift) {
    page.cells[at >> page.shift].write_at |= kInFlight;
  }
}

void end_async_write(const void* address) {
  Page& page = arena().page(address);
  const uint64_t first = arena().offset(address) % kPageBytes;
  for (uint64_t at = first; at < first + 16; at += 1u << page.shift) {
    Cell& cell = page.cells[at >> page.shift];
    cell.write_run = runner.run;
    cell.write_at = runner.current->at;
    cell.write_sync = runner.current->sync;
  }
}

void release_and_acquire(const void* address) {
  Thread& me = *runner.current;
  const unsigned epoch = epoch_of(me.at);
  const unsigned thread = thread_of(me.at);
  std::vector<Release>& releases = runner.releases[address];
  if (!releases.empty()) {
    runner.acquires.push_back({&releases, releases.size(), thread, epoch, ++runner.time, false});
  }
  if (me.fence_time > 0 || runner.fenced_epoch >= 0) {
    const bool fenced_now = me.fence_time > 0 && me.fence_epoch == epoch;
    const unsigned before = fenced_now ? epoch : static_cast<unsigned>(runner.fenced_epoch + 1);
    releases.push_back({runner.run, before, thread, me.fence_time > 0 ? me.fence_epoch : 0});
  }
}

}  // namespace simt
