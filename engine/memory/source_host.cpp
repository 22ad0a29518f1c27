// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/source_host.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace meshgrad {
namespace {

// NORESERVE: the system charges pages when they are touched, not when addresses are reserved.
constexpr int kAddressesOnly = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

/// Huge pages save page faults at first touch. Applied to whole reservations and again after unmapping: only
/// adjacent areas with equal advice merge, and a process may have 65,530 areas.
void advise_huge_pages(char* address, int64_t bytes) {
  madvise(address, static_cast<size_t>(bytes), MADV_HUGEPAGE);
}

}  // namespace

std::shared_ptr<MemorySource> make_host_memory(int64_t capacity) {
  return std::make_shared<HostMemorySource>(capacity);
}

char* reserve_addresses(int64_t bytes, int64_t alignment) {
  if (bytes <= 0 || bytes > INT64_MAX - alignment) return nullptr;
  void* memory = mmap(nullptr, static_cast<size_t>(bytes + alignment), PROT_NONE, kAddressesOnly, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  char* begin = static_cast<char*>(memory);
  const int64_t before = -reinterpret_cast<intptr_t>(begin) & (alignment - 1);
  if (before > 0) munmap(begin, static_cast<size_t>(before));
  munmap(begin + before + bytes, static_cast<size_t>(alignment - before));
  return begin + before;
}

bool drop_mapping(char* address, int64_t bytes) {
  return mmap(address, static_cast<size_t>(bytes), PROT_NONE, kAddressesOnly | MAP_FIXED, -1, 0) !=
         MAP_FAILED;
}

namespace {

/// Addresses that may be reserved: half of what the process has left under `ulimit -v`, since the heap,
/// threads and libraries need some too.
int64_t addresses_to_reserve() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return INT64_MAX;
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const int64_t used = pages * sysconf(_SC_PAGESIZE);
  const auto most = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT64_MAX));
  return std::max<int64_t>(0, most - used) / 2;
}

}  // namespace

HostMemorySource::HostMemorySource(int64_t capacity)
    : capacity_(capacity > 0 ? capacity : available_memory()) {}

char* HostMemorySource::reserve(int64_t bytes) {
  if (bytes > addresses_to_reserve()) return nullptr;
  char* address = reserve_addresses(bytes, kPage);
  if (address != nullptr) advise_huge_pages(address, bytes);
  return address;
}

bool HostMemorySource::map(char* address, int64_t bytes) {
  if (bytes > capacity_ - mapped_) return false;
  if (mprotect(address, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE) != 0) {
    // A part may have changed before the failure.
    mprotect(address, static_cast<size_t>(bytes), PROT_NONE);
    return false;
  }
  mapped_ += bytes;
  return true;
}

void HostMemorySource::unmap(char* address, int64_t bytes) {
  // A new mapping instead of MADV_DONTNEED: it also works on locked pages, and uncharges memory where the
  // system does not overcommit.
  if (drop_mapping(address, bytes)) {
    advise_huge_pages(address, bytes);
  } else {
    madvise(address, static_cast<size_t>(bytes), MADV_DONTNEED);
  }
  mapped_ -= bytes;
}

void HostMemorySource::release(char* address, int64_t bytes) { munmap(address, static_cast<size_t>(bytes)); }

}  // namespace meshgrad
