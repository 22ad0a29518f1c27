// SPDX-License-Identifier: Apache-2.0
// operator new that counts, and notes the largest block. For one source of a program: it replaces the
// library's in all of it.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kNewIsCounted = false;  // AddressSanitizer's own finds mistakes of new and delete
#else
inline constexpr bool kNewIsCounted = true;
#endif

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};
std::atomic<size_t> largest_allocation{0};

}  // namespace

#ifndef __SANITIZE_ADDRESS__
namespace {

void count_allocation(std::size_t bytes) {
  if (!counting.load(std::memory_order_relaxed)) return;
  allocations.fetch_add(1, std::memory_order_relaxed);
  size_t largest = largest_allocation.load(std::memory_order_relaxed);
  while (largest < bytes && !largest_allocation.compare_exchange_weak(largest, bytes)) {
  }
}

void* counted_or_null(std::size_t bytes) {
  count_allocation(bytes);
  return std::malloc(bytes > 0 ? bytes : 1);
}

void* counted_or_null(std::size_t bytes, std::align_val_t alignment) {
  count_allocation(bytes);
  const auto align = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(align, (bytes + align - 1) / align * align + (bytes == 0 ? align : 0));
}

template <class... Alignment>
void* counted(std::size_t bytes, Alignment... alignment) {
  void* const memory = counted_or_null(bytes, alignment...);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// In place of the library's, for the whole program; what does not throw (std::stable_sort's buffer) frees
// through the same delete.
void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return counted_or_null(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return counted_or_null(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return counted(bytes, alignment); }
void* operator new[](std::size_t bytes, std::align_val_t alignment) { return counted(bytes, alignment); }
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return counted_or_null(bytes, alignment);
}
void* operator new[](std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return counted_or_null(bytes, alignment);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
#endif
