// SPDX-License-Identifier: Apache-2.0
// GEMMs of a warpgroup, four warps that begin at a multiple of four: wgmma, which compute
// capability 9.0 alone has (nvcc -arch=sm_90a; sm_90 is not enough). PTX ISA, "Asynchronous warpgroup level
// matrix instructions". Both operands are 16-bit and lie in shared memory as rows of x and of d_z do in a
// stage of weight_gradient_units.h, so that d is a piece of x^T d_z; a may also be in registers.
//
// A product runs beside the threads that start it. In order, by all threads of the warpgroup:
//
//   writes to the operands, fence_shared_for_products() by each thread that wrote, __syncthreads()
//   product_fence(d)       after the last access to d or to a's registers
//   multiply_add_async     any number, also into the same d
//   product_commit()       ends a group of them
//   product_wait<n>(d)     at most n groups are still running
//   reads of d; after a barrier, writes to the operands
#pragma once
#include <meshgrad/kernels/cuda/device.h>

#ifndef __CUDACC__
#include <meshgrad/kernels/cuda/simt_wgmma.h>
#endif

namespace meshgrad::cuda {

inline constexpr int kWarpgroup = 128;
inline constexpr int kProductRows = 64;      ///< of d
inline constexpr int kProductColumns = 128;  ///< of d
inline constexpr int kProductSum = 16;       ///< rows of both operands

/// How the 16-byte chunks of a 128-byte row are exchanged in shared memory: with bytes128, chunk c of row r
/// is at c ^ (r % 8). The numbers are those of the descriptor.
enum class Swizzle : uint8_t { none = 0, bytes128 = 1, bytes64 = 2, bytes32 = 3 };

/// Eight rows of 128 bytes, after which bytes128 repeats. It exchanges by bits of the address, so row 0 of an
/// operand begins at a multiple of this.
inline constexpr int kSwizzleBytes = 1024;

__device__ inline uint32_t shared_address(const void* shared) {
#ifdef __CUDACC__
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
#else
  return simt::shared_address(shared);
#endif
}
/// dynamic_shared from its first multiple of kSwizzleBytes on: a launch asks for kSwizzleBytes more than it
/// uses. What precedes it, fixed arrays among others, leaves it at a multiple of 128 only.
template <class T>
__device__ T* aligned_shared() {
  auto* const begin = dynamic_shared<unsigned char>();
  return reinterpret_cast<T*>(begin + (-shared_address(begin) & (kSwizzleBytes - 1)));
}

/// Describes an operand of 16 rows to the tensor cores, from `start` on. With bytes128, a panel has 64
/// columns, a row of a panel 128 bytes. leading_bytes: from a panel to the next; stride_bytes: from eight
/// rows to the next eight. All in dynamic shared memory, multiples of 16 below 2^18.
__device__ inline uint64_t operand_in_shared(const void* start, int leading_bytes, int stride_bytes,
                                             Swizzle swizzle = Swizzle::bytes128) {
  const uint32_t address = shared_address(start);
  const auto field = [](uint32_t bytes) { return static_cast<uint64_t>((bytes & 0x3ffffu) >> 4); };
  return field(address) | field(static_cast<uint32_t>(leading_bytes)) << 16 |
         field(static_cast<uint32_t>(stride_bytes)) << 32 | static_cast<uint64_t>(swizzle) << 62;
}

#ifdef __CUDACC__

/// The calling thread's writes to shared memory, those of finished asynchronous copies too, become visible to
/// products that start after a barrier.
__device__ inline void fence_shared_for_products() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
/// Names d, so that the compiler moves no access to it across a fence or a wait.
__device__ inline void keep_in_place(float (&d)[64]) {
  for (float& x : d) asm volatile("" : "+f"(x)::"memory");
}
__device__ inline void product_fence(float (&d)[64]) {
  keep_in_place(d);
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ inline void product_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int pending>
__device__ void product_wait(float (&d)[64]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(pending) : "memory");
  keep_in_place(d);
}

// clang-format off
#define MESHGRAD_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MESHGRAD_D16(i) MESHGRAD_D4(i), MESHGRAD_D4(i + 4), MESHGRAD_D4(i + 8), MESHGRAD_D4(i + 12)
#define MESHGRAD_PRODUCT(type, operands, ...)                                                                \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                                  \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"    \
               "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"    \
               "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, " operands ";\n"   \
               : MESHGRAD_D16(0), MESHGRAD_D16(16), MESHGRAD_D16(32), MESHGRAD_D16(48)                       \
               : __VA_ARGS__)
// clang-format on

/// d += x^T d_z over 16 rows: x has 64 columns, d_z 128. Of d, warp w of the warpgroup holds rows 16 w to
/// 16 w + 15; with g = lane / 4 and q = lane % 4, a lane holds of columns 8 j to 8 j + 7
///   d[4 j], d[4 j + 1]      row 16 w + g,     columns 8 j + 2 q and the next
///   d[4 j + 2], d[4 j + 3]  row 16 w + g + 8, the same columns
template <class T>
__device__ void multiply_add_async(float (&d)[64], uint64_t x, uint64_t d_z) {
  if constexpr (dtype_of<T>() == DType::f16) {
    MESHGRAD_PRODUCT("f16", "%64, %65, 1, 1, 1, 1, 1", "l"(x), "l"(d_z));
  } else {
    MESHGRAD_PRODUCT("bf16", "%64, %65, 1, 1, 1, 1, 1", "l"(x), "l"(d_z));
  }
}
/// The same with x^T, 64 x 16, in registers: each warp has its 16 rows, in the layout of multiply_add's a.
template <class T>
__device__ void multiply_add_async(float (&d)[64], const uint32_t (&a)[4], uint64_t d_z) {
  if constexpr (dtype_of<T>() == DType::f16) {
    MESHGRAD_PRODUCT("f16", "{%64,%65,%66,%67}, %68, 1, 1, 1, 1", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]),
                     "l"(d_z));
  } else {
    MESHGRAD_PRODUCT("bf16", "{%64,%65,%66,%67}, %68, 1, 1, 1, 1", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]),
                     "l"(d_z));
  }
}

#undef MESHGRAD_PRODUCT
#undef MESHGRAD_D16
#undef MESHGRAD_D4

#else

using simt::Location;
inline void fence_shared_for_products() { simt::fence_shared_for_products(); }
inline void product_fence(float (&)[64], Location where = Location::current()) { simt::product_fence(where); }
inline void product_commit(Location where = Location::current()) { simt::product_commit(where); }
template <int pending>
void product_wait(float (&)[64], Location where = Location::current()) {
  simt::product_wait(pending, where);
}
template <class T>
void multiply_add_async(float (&d)[64], uint64_t x, uint64_t d_z, Location where = Location::current()) {
  simt::start_product({d, nullptr, x, d_z, kProductColumns, std::is_same_v<T, half>}, where);
}
template <class T>
void multiply_add_async(float (&d)[64], const uint32_t (&a)[4], uint64_t d_z,
                        Location where = Location::current()) {
  simt::start_product({d, a, 0, d_z, kProductColumns, std::is_same_v<T, half>}, where);
}

#endif

}  // namespace meshgrad::cuda
