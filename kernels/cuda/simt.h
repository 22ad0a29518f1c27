// SPDX-License-Identifier: Apache-2.0
// CUDA's own names for kernel sources that the host's compiler builds, and what kernels/cuda/device.h has of
// its own. Kernels run on the simulated device (runner.h): each thread is a fiber, and each load and store is
// checked (access.cpp), because these sources are compiled with -fsanitize=thread and the runner answers the
// sanitizer's calls (hooks.cpp).
//
// Stricter than a GPU: all threads of a block come to the same barrier of the source, and none may have
// exited; all lanes of a mask that have not exited come to the same warp operation; __activemask() names the
// caller alone; only __syncthreads and __syncwarp order memory within a block; shared memory starts as poison
// that may not be read; indices stay inside of local arrays. Blocks run one after the other: a block cannot
// wait for another one.
#pragma once
#include <math.h>
#include <meshgrad/engine/dtype.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <source_location>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

namespace simt {

#ifdef __cpp_lib_source_location
using Location = std::source_location;
#else  // a compiler that builds for plans alone, where nothing runs
struct Location {
  static constexpr Location current() { return {}; }
};
#endif

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

enum class WarpOp : uint8_t {
  sync,
  shuffle,
  up,
  down,
  exchange,
  ballot,
  any,
  all,
  match,
  matrices,
  multiply
};
enum class AtomicOp : uint8_t { add, max, min, exchange, compare_exchange, bit_or, bit_and };
enum class Vote : uint8_t { none, both, either, count };

/// The caller waits for all lanes of `mask`; `value` is its operand. Returns its result.
uint64_t warp_operation(WarpOp op, unsigned mask, uint64_t value, int argument, int width, Location where);
int barrier(Vote vote, int predicate, Location where);
/// For int, unsigned, (unsigned) long long, float and double.
template <class T>
T atomic(AtomicOp op, T* address, T operand, T compare, Location where);
void fence();
void* static_shared(size_t bytes, size_t alignment, Location where);
void* dynamic_shared();
[[noreturn]] void trap(Location where);

/// Queues `body`, which calls the kernel with its arguments, once for each thread. The object itself is what
/// a GPU calls parameter memory.
void launch(const char* name, int64_t blocks, int threads, int shared_bytes, void* stream,
            std::shared_ptr<void> body, size_t body_bytes, void (*call)(void*));
template <class Body>
void launch(const char* name, int64_t blocks, int threads, int shared_bytes, void* stream, Body body) {
  launch(name, blocks, threads, shared_bytes, stream, std::make_shared<Body>(std::move(body)), sizeof(Body),
         [](void* object) { (*static_cast<Body*>(object))(); });
}
/// A kernel with its arguments. With -ftrivial-auto-var-init=pattern GCC 12 clears the padding of closures,
/// and of structs whose initialisers name all members, as if an array of structs in them took no room, and so
/// a part of other members. Hence a constructor.
template <class Args>
struct Call {
  void (*kernel)(Args);
  Args args;
  Call(void (*called)(Args), const Args& with) : kernel(called), args(with) {}
  void operator()() const { kernel(args); }
};

template <class T>
T* static_shared(size_t count, Location where = Location::current()) {
  return static_cast<T*>(static_shared(count * sizeof(T), alignof(T), where));
}
template <class T>
T* dynamic_shared() {
  return static_cast<T*>(dynamic_shared());
}

inline float to_float(float x) { return x; }
inline float to_float(meshgrad::bfloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
inline float to_float(meshgrad::half x) {
  const uint32_t magnitude = x.bits & 0x7fffu;
  const uint32_t sign = (x.bits & 0x8000u) << 16;
  // A shift puts the fraction in place and leaves the exponent 112 too small; multiplying corrects that and
  // makes subnormals normal. Infinity and NaN have an exponent of their own.
  const float finite = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const uint32_t bits =
      magnitude < 0x7c00u ? std::bit_cast<uint32_t>(finite) : 0x7f800000u | ((magnitude & 0x3ffu) << 13);
  return std::bit_cast<float>(sign | bits);
}
template <class T>
T to_storage(float x) {
  return static_cast<T>(x);
}
template <class T>
uint32_t pack(float low, float high) {
  return to_storage<T>(low).bits | static_cast<uint32_t>(to_storage<T>(high).bits) << 16;
}

/// Until the wait that covers it, no thread may access the 16 bytes.
void copy_async_16(void* shared, const void* global, bool valid = true, Location where = Location::current());
void copy_async_commit();
void copy_async_wait_for(int pending);
template <int pending>
void copy_async_wait() {
  copy_async_wait_for(pending);
}
void load_matrices(uint32_t (&r)[4], const void* row, Location where = Location::current());
void load_matrices_transposed(uint32_t (&r)[4], const void* row, Location where = Location::current());
void multiply_add_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Location where);
void multiply_add_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Location where);
template <class T>
void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                  Location where = Location::current()) {
  static_assert(sizeof(T) == 2);
  if constexpr (std::is_same_v<T, meshgrad::half>) {
    multiply_add_f16(d, a, b, where);
  } else {
    multiply_add_bf16(d, a, b, where);
  }
}

template <class T>
T shuffled(WarpOp op, unsigned mask, T value, int argument, int width, Location where) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  return std::bit_cast<T>(
      static_cast<Bits>(warp_operation(op, mask, std::bit_cast<Bits>(value), argument, width, where)));
}

}  // namespace simt

extern simt::Index threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

inline void __syncthreads(simt::Location where = simt::Location::current()) {
  simt::barrier(simt::Vote::none, 0, where);
}
inline int __syncthreads_and(int predicate, simt::Location where = simt::Location::current()) {
  return simt::barrier(simt::Vote::both, predicate, where);
}
inline int __syncthreads_or(int predicate, simt::Location where = simt::Location::current()) {
  return simt::barrier(simt::Vote::either, predicate, where);
}
inline int __syncthreads_count(int predicate, simt::Location where = simt::Location::current()) {
  return simt::barrier(simt::Vote::count, predicate, where);
}
inline void __threadfence() { simt::fence(); }
inline void __trap(simt::Location where = simt::Location::current()) { simt::trap(where); }

inline void __syncwarp(unsigned mask = 0xffffffffu, simt::Location where = simt::Location::current()) {
  simt::warp_operation(simt::WarpOp::sync, mask, 0, 0, 32, where);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32,
              simt::Location where = simt::Location::current()) {
  return simt::shuffled(simt::WarpOp::shuffle, mask, value, lane, width, where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 simt::Location where = simt::Location::current()) {
  return simt::shuffled(simt::WarpOp::up, mask, value, static_cast<int>(delta), width, where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   simt::Location where = simt::Location::current()) {
  return simt::shuffled(simt::WarpOp::down, mask, value, static_cast<int>(delta), width, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                  simt::Location where = simt::Location::current()) {
  return simt::shuffled(simt::WarpOp::exchange, mask, value, lane_mask, width, where);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              simt::Location where = simt::Location::current()) {
  return static_cast<unsigned>(
      simt::warp_operation(simt::WarpOp::ballot, mask, predicate != 0, 0, 32, where));
}
inline int __any_sync(unsigned mask, int predicate, simt::Location where = simt::Location::current()) {
  return static_cast<int>(simt::warp_operation(simt::WarpOp::any, mask, predicate != 0, 0, 32, where));
}
inline int __all_sync(unsigned mask, int predicate, simt::Location where = simt::Location::current()) {
  return static_cast<int>(simt::warp_operation(simt::WarpOp::all, mask, predicate != 0, 0, 32, where));
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, simt::Location where = simt::Location::current()) {
  return static_cast<unsigned>(simt::shuffled(simt::WarpOp::match, mask, value, 0, 32, where));
}
inline unsigned __activemask() { return 1u << (threadIdx.x % 32); }

template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value, simt::Location where = simt::Location::current()) {
  return simt::atomic(simt::AtomicOp::add, address, value, T{}, where);
}
template <class T>
T atomicMax(T* address, std::type_identity_t<T> value, simt::Location where = simt::Location::current()) {
  return simt::atomic(simt::AtomicOp::max, address, value, T{}, where);
}
template <class T>
T atomicMin(T* address, std::type_identity_t<T> value, simt::Location where = simt::Location::current()) {
  return simt::atomic(simt::AtomicOp::min, address, value, T{}, where);
}
template <class T>
T atomicExch(T* address, std::type_identity_t<T> value, simt::Location where = simt::Location::current()) {
  return simt::atomic(simt::AtomicOp::exchange, address, value, T{}, where);
}
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> compare, std::type_identity_t<T> value,
            simt::Location where = simt::Location::current()) {
  return simt::atomic(simt::AtomicOp::compare_exchange, address, value, compare, where);
}
template <class T>
T atomicOr(T* address, std::type_identity_t<T> value, simt::Location where = simt::Location::current()) {
  return simt::atomic(simt::AtomicOp::bit_or, address, value, T{}, where);
}
template <class T>
T atomicAnd(T* address, std::type_identity_t<T> value, simt::Location where = simt::Location::current()) {
  return simt::atomic(simt::AtomicOp::bit_and, address, value, T{}, where);
}

template <class T>
T __ldg(const T* address) {
  return *address;
}
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __frcp_rn(float x) { return 1.0f / x; }

inline int min(int a, int b) { return b < a ? b : a; }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline long min(long a, long b) { return b < a ? b : a; }
inline long max(long a, long b) { return a < b ? b : a; }
inline long long min(long long a, long long b) { return b < a ? b : a; }
inline long long max(long long a, long long b) { return a < b ? b : a; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
