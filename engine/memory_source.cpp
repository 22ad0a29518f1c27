// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory_source.h>

#include <sys/mman.h>

namespace meshgrad {

HostMemorySource::HostMemorySource(int64_t limit_bytes)
    : limit_(limit_bytes > 0 ? limit_bytes : available_memory()) {}

void* HostMemorySource::map(int64_t bytes) {
  if (bytes > limit_ - mapped_) return nullptr;
  void* segment = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (segment == MAP_FAILED) return nullptr;
  // Large pages spare the page faults of a first touch; a refusal costs nothing.
  madvise(segment, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  mapped_ += bytes;
  return segment;
}

void HostMemorySource::unmap(void* segment, int64_t bytes) {
  munmap(segment, static_cast<size_t>(bytes));
  mapped_ -= bytes;
}

}  // namespace meshgrad
