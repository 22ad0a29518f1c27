// SPDX-License-Identifier: Apache-2.0
// An application that uses the allocator and nothing else of the engine: over its own memory, capped, and
// shared with another library that knows only pointers.
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/memory/source.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace meshgrad;

int main() {
  constexpr int64_t kMiB = int64_t{1} << 20;
  int64_t lent = 0;
  MemoryCallbacks own;
  own.allocate = [&](int64_t bytes) {
    lent += bytes;
    return std::malloc(static_cast<size_t>(bytes));
  };
  own.free = [&](void* memory, int64_t bytes) {
    lent -= bytes;
    std::free(memory);
  };
  bool refused = false, other_library_worked = false;
  {
    const auto source = make_callback_memory(own, Device{}, 64 * kMiB);
    const auto allocator = CachingAllocator::create(source, {.memory_limit = 16 * kMiB});
    const Stream stream{Device{}};

    const StoragePtr block = allocator->allocate(3 * kMiB, 64, stream, Tag::workspace, "solver");
    std::memset(block->data(), 7, static_cast<size_t>(block->bytes()));

    void* const pointer = allocator->allocate_raw(kMiB, 64, stream, Tag::communication, "other library");
    std::memset(pointer, 8, static_cast<size_t>(kMiB));
    other_library_worked = static_cast<char*>(block->data())[3 * kMiB - 1] == 7;
    allocator->free_raw(pointer);

    try {
      allocator->allocate(15 * kMiB, 64, stream, Tag::workspace, "too much");
    } catch (const OutOfMemory& error) {
      refused = std::strstr(error.what(), "solver (workspace)") != nullptr;
    }
  }
  std::printf("refused %d, shared %d, still lent %lld\n", refused, other_library_worked,
              static_cast<long long>(lent));
  return refused && other_library_worked && lent == 0 ? 0 : 1;
}
