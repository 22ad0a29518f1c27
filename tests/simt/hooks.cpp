// SPDX-License-Identifier: Apache-2.0
// What the compiler calls for each access of a source built with -fsanitize=thread, in place of the
// sanitizer's own library. Inline functions of headers come from such objects, too, so everything here must
// be harmless outside of kernels: then it only asks one flag.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

#include "runner.h"

namespace {

/// As the compiler lays them out.
struct BadIndex {
  const char* file;
  uint32_t line;
  uint32_t column;
};

struct BadAddress {
  const char* file;
  uint32_t line;
  uint32_t column;
  const void* type;
  unsigned char log_alignment;
  unsigned char access;
};

[[noreturn]] void refuse(const char* needed, const std::string& got, const char* fix) {
  if (!simt::in_kernel) {
    std::fprintf(stderr, "needed %s, got %s\n", needed, got.c_str());
    std::abort();
  }
  simt::in_kernel = false;
  simt::fail(needed, got + " by " + simt::name_of_thread(simt::thread_of(simt::runner.current->at)), fix);
}

[[noreturn]] void refuse(const BadIndex* place, uintptr_t index) {
  refuse("indices inside of their array",
         fmt::format("index {} at {}:{}", static_cast<intptr_t>(index), place->file, place->line),
         "check the loop's bound");
}

[[noreturn]] void refuse(const BadAddress* place, uintptr_t address) {
  refuse("addresses that are multiples of what is accessed there",
         fmt::format("{:#x} for {} bytes at {}:{}", address, 1 << place->log_alignment, place->file,
                     place->line),
         "align the rows, or access one element at a time");
}

inline void check(const void* address, size_t bytes, bool write, const void* code) {
  if (simt::in_kernel) simt::access(address, static_cast<int64_t>(bytes), write, code);
}

}  // namespace

#define SIMT_ACCESS(bytes)                                                                              \
  void __tsan_read##bytes(void* address) { check(address, bytes, false, __builtin_return_address(0)); } \
  void __tsan_write##bytes(void* address) { check(address, bytes, true, __builtin_return_address(0)); } \
  void __tsan_unaligned_read##bytes(void* address) {                                                    \
    check(address, bytes, false, __builtin_return_address(0));                                          \
  }                                                                                                     \
  void __tsan_unaligned_write##bytes(void* address) {                                                   \
    check(address, bytes, true, __builtin_return_address(0));                                           \
  }

// Host code in kernel sources uses atomics: reference counts, guards of static objects. Kernels use atomicAdd
// and its like.
#define SIMT_ATOMIC(bits, T)                                                                              \
  T __tsan_atomic##bits##_load(const volatile T* a, int) { return __atomic_load_n(a, __ATOMIC_SEQ_CST); } \
  void __tsan_atomic##bits##_store(volatile T* a, T v, int) { __atomic_store_n(a, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_exchange(volatile T* a, T v, int) {                                             \
    return __atomic_exchange_n(a, v, __ATOMIC_SEQ_CST);                                                   \
  }                                                                                                       \
  T __tsan_atomic##bits##_fetch_add(volatile T* a, T v, int) {                                            \
    return __atomic_fetch_add(a, v, __ATOMIC_SEQ_CST);                                                    \
  }                                                                                                       \
  T __tsan_atomic##bits##_fetch_sub(volatile T* a, T v, int) {                                            \
    return __atomic_fetch_sub(a, v, __ATOMIC_SEQ_CST);                                                    \
  }                                                                                                       \
  T __tsan_atomic##bits##_fetch_and(volatile T* a, T v, int) {                                            \
    return __atomic_fetch_and(a, v, __ATOMIC_SEQ_CST);                                                    \
  }                                                                                                       \
  T __tsan_atomic##bits##_fetch_or(volatile T* a, T v, int) {                                             \
    return __atomic_fetch_or(a, v, __ATOMIC_SEQ_CST);                                                     \
  }                                                                                                       \
  T __tsan_atomic##bits##_fetch_xor(volatile T* a, T v, int) {                                            \
    return __atomic_fetch_xor(a, v, __ATOMIC_SEQ_CST);                                                    \
  }                                                                                                       \
  bool __tsan_atomic##bits##_compare_exchange_strong(volatile T* a, T* c, T v, int, int) {                \
    return __atomic_compare_exchange_n(a, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);               \
  }                                                                                                       \
  bool __tsan_atomic##bits##_compare_exchange_weak(volatile T* a, T* c, T v, int, int) {                  \
    return __atomic_compare_exchange_n(a, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);               \
  }

extern "C" {

SIMT_ACCESS(1)
SIMT_ACCESS(2)
SIMT_ACCESS(4)
SIMT_ACCESS(8)
SIMT_ACCESS(16)
void __tsan_read_range(void* address, size_t bytes) {
  check(address, bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(void* address, size_t bytes) {
  check(address, bytes, true, __builtin_return_address(0));
}

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

SIMT_ATOMIC(8, uint8_t)
SIMT_ATOMIC(16, uint16_t)
SIMT_ATOMIC(32, uint32_t)
SIMT_ATOMIC(64, uint64_t)
void __tsan_atomic_thread_fence(int) { std::atomic_thread_fence(std::memory_order_seq_cst); }
void __tsan_atomic_signal_fence(int) { std::atomic_signal_fence(std::memory_order_seq_cst); }

void __ubsan_handle_out_of_bounds(const BadIndex* place, uintptr_t index) { refuse(place, index); }
void __ubsan_handle_type_mismatch_v1(const BadAddress* place, uintptr_t address) { refuse(place, address); }
void __ubsan_handle_type_mismatch_v1_abort(const BadAddress* place, uintptr_t address) {
  refuse(place, address);
}
void __ubsan_handle_out_of_bounds_abort(const BadIndex* place, uintptr_t index) { refuse(place, index); }

}  // extern "C"
