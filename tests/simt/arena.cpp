// SPDX-License-Identifier: Apache-2.0
#include "arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace simt {
namespace {

constexpr int64_t kSharedWindow = kHugePage;
/// Of a large allocation only the beginning is poisoned: it costs real memory.
constexpr int64_t kMostPoison = int64_t{32} << 20;

/// Cells begin with what one thread moves at most, and get finer as smaller accesses come.
constexpr uint8_t kCoarsest = 4;

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

char* map_or_die(int64_t bytes, int protection) {
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), protection,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("the simulated device needs addresses");
    std::abort();
  }
  return static_cast<char*>(memory);
}

}  // namespace

Arena::Arena() {
  char* memory = map_or_die(kArenaBytes + kHugePage, PROT_NONE);
  begin_ = memory + (-reinterpret_cast<intptr_t>(memory) & (kHugePage - 1));
  // Opening and closing is done for each synchronisation; with huge pages that is quick.
  madvise(begin_, static_cast<size_t>(kArenaBytes), MADV_HUGEPAGE);
  pages_ = reinterpret_cast<Page*>(
      map_or_die(kArenaBytes / kPageBytes * static_cast<int64_t>(sizeof(Page)), PROT_READ | PROT_WRITE));
  free_[kSharedWindow] = kArenaBytes - kSharedWindow;
}

Arena& arena() {
  static Arena& only = *new Arena;  // outlives what tests hold in static objects
  return only;
}

char* Arena::reserve(int64_t bytes, int64_t alignment, bool high) {
  bytes = round_up(bytes, kPageBytes);
  const auto fit = [&](const std::pair<const int64_t, int64_t>& range) -> int64_t {
    const int64_t end = range.first + range.second;
    const int64_t place = high ? (end - bytes) / alignment * alignment : round_up(range.first, alignment);
    return place >= range.first && place + bytes <= end ? place : -1;
  };
  int64_t place = -1;
  int64_t begin = 0;
  for (const auto& range : free_) {
    const int64_t found = fit(range);
    if (found < 0) continue;
    place = found;
    begin = range.first;
    if (!high) break;
  }
  if (bytes <= 0 || place < 0) return nullptr;
  const int64_t end = begin + free_[begin];
  free_.erase(begin);
  if (place > begin) free_[begin] = place - begin;
  if (place + bytes < end) free_[place + bytes] = end - place - bytes;
  return begin_ + place;
}

void Arena::release(char* address, int64_t bytes) {
  int64_t begin = address - begin_;
  int64_t end = begin + round_up(bytes, kPageBytes);
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == end) {
    end += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      begin = before->first;
      free_.erase(before);
    }
  }
  free_[begin] = end - begin;
}

bool Arena::commit(int64_t bytes) {
  if (bytes > kDeviceBytes - committed_) return false;
  committed_ += bytes;
  return true;
}

void Arena::enter(char* address, Allocation allocation) {
  ++owners_;
  for (int64_t done = 0; done < allocation.bytes; done += kPageBytes) {
    Page& page = this->page(address + done);
    page.owner = owners_;
    if (page.cells == nullptr) page.shift = kCoarsest;
    page.low = 0;
    page.high = static_cast<uint16_t>(std::min(kPageBytes, allocation.bytes - done));
    page.kind = allocation.kind;
    page.device = static_cast<uint8_t>(allocation.device);
  }
  const OpenArena open;
  std::memset(address, kPoison, static_cast<size_t>(std::min(allocation.bytes, kMostPoison)));
  allocations_[address] = std::move(allocation);
}

void Arena::leave(char* address, bool drop) {
  const auto found = allocations_.find(address);
  const int64_t bytes = found->second.bytes;
  for (int64_t done = 0; done < bytes; done += kPageBytes) {
    Page& page = this->page(address + done);
    if (page.kind == MemoryKind::shared) {  // the next launch has some there, too
      page.kind = MemoryKind::none;
      continue;
    }
    std::free(page.cells);
    page = {};
  }
  if (drop) {
    madvise(address, static_cast<size_t>(bytes), MADV_DONTNEED);
  } else {
    const OpenArena open;
    std::memset(address, kPoison, static_cast<size_t>(std::min(bytes, kMostPoison)));
  }
  allocations_.erase(found);
}

bool Arena::live(const void* address, int64_t bytes) const {
  if (!contains(address)) return false;
  const char* byte = static_cast<const char*>(address);
  const char* end = byte + bytes;
  auto found = allocations_.upper_bound(byte);
  if (found == allocations_.begin()) return false;
  --found;
  // Neighbouring mappings are one piece of memory; exact allocations have no neighbours.
  while (found != allocations_.end() && found->first <= byte && found->second.kind == MemoryKind::global) {
    byte = found->first + found->second.bytes;
    if (end <= byte) return true;
    ++found;
  }
  return false;
}

std::string Arena::describe(const void* address) const {
  const char* byte = static_cast<const char*>(address);
  if (!contains(address)) return fmt::format("{}, which is no device memory", fmt::ptr(address));
  auto found = allocations_.upper_bound(byte);
  // The nearest allocation: a little before one is an access before its begin.
  if (found != allocations_.end() &&
      (found == allocations_.begin() || found->first - byte <= kPageBytes / 2)) {
    return fmt::format("byte {} of {} of {} bytes", byte - found->first, found->second.name,
                       found->second.bytes);
  }
  if (found == allocations_.begin()) return fmt::format("{}, where nothing is allocated", fmt::ptr(address));
  --found;
  return fmt::format("byte {} of {} of {} bytes", byte - found->first, found->second.name,
                     found->second.bytes);
}

void Arena::refine(Page& page, int shift) {
  Page fine = page;
  fine.shift = static_cast<uint8_t>(shift);
  fine.cells = static_cast<Cell*>(std::calloc(static_cast<size_t>(fine.cell_count()), sizeof(Cell)));
  if (page.cells != nullptr) {
    for (int64_t i = 0; i < fine.cell_count(); ++i) fine.cells[i] = page.cells[(i << shift) >> page.shift];
    std::free(page.cells);
  }
  page = fine;
}

OpenArena::OpenArena() {
  Arena& all = arena();
  if (all.open_++ == 0) {
    mprotect(all.begin_, static_cast<size_t>(kArenaBytes), PROT_READ | PROT_WRITE);
  }
}

OpenArena::~OpenArena() {
  Arena& all = arena();
  if (--all.open_ == 0) mprotect(all.begin_, static_cast<size_t>(kArenaBytes), PROT_NONE);
}

}  // namespace simt
