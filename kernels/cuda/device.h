// SPDX-License-Identifier: Apache-2.0
// The device primitives that kernels are written with. Kernels compile twice: with nvcc for a GPU, and with
// the host's compiler for the tests' simulated device, whose simt.h provides CUDA's own names (threadIdx,
// __syncthreads, __shfl_xor_sync, atomicAdd, ...). Whatever CUDA spells as inline assembly or with types of
// its own has a wrapper here with one name for both.
//
// A kernel is `__global__ void name(Args args)` with one plain struct, started by launch() alone. Shared
// memory comes from MESHGRAD_SHARED (a fixed array) or dynamic_shared (one a kernel). Storage types are
// float, half and bfloat16 of engine/dtype.h, read and written through to_float and to_storage.
#pragma once
#include <meshgrad/engine/dtype.h>
#include <meshgrad/kernels/cuda/launch.h>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define MESHGRAD_SHARED(type, name, count) __shared__ type name[count]
#else
#include <meshgrad/kernels/cuda/simt.h>
#define MESHGRAD_SHARED(type, name, count) type* const name = simt::static_shared<type>(count)
#endif

namespace meshgrad::cuda {

/// Sixteen bytes, the widest load or store of one thread: a warp moves 512 contiguous bytes at a time.
template <class T>
struct alignas(16) Vector {
  static constexpr int kSize = static_cast<int>(16 / sizeof(T));
  T v[kSize];
};

/// See nonzero_halves. Without its sign, a half that is not 0 carries into the bit of the sign when 0x7fff is
/// added, and no further.
__device__ inline uint32_t nonzero_by_integers(uint32_t pair, int i) {
  return ((pair & 0x7fff7fffu) + 0x7fff7fffu) >> (15 - i) & 0x00010001u << i;
}

#ifdef __CUDACC__

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(half x) { return __half2float(__ushort_as_half(x.bits)); }
__device__ inline float to_float(bfloat16 x) { return __bfloat162float(__ushort_as_bfloat16(x.bits)); }
/// Rounds to nearest even.
template <class T>
__device__ T to_storage(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else {
    T result;
    if constexpr (dtype_of<T>() == DType::f16) {
      result.bits = __half_as_ushort(__float2half_rn(x));
    } else {
      result.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    }
    return result;
  }
}
/// Two neighbouring columns in one 32-bit register, the first in the low half as mma and memory have them.
template <class T>
__device__ uint32_t pack(float low, float high) {
  if constexpr (dtype_of<T>() == DType::f16) {
    const __half2 both = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
  } else {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
  }
}

/// relu of both, packed: relu commutes with the rounding, so that one instruction does both. A NaN stays one.
template <class T>
__device__ uint32_t pack_relu(float low, float high) {
  uint32_t pair;
  if constexpr (dtype_of<T>() == DType::f16) {
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}
/// Bits i and 16 + i: whether the low and the high half is not 0. The bit of a NaN is set.
template <class T>
__device__ uint32_t nonzero_halves(uint32_t pair, int i) {
  const uint32_t bits = 0x00010001u << i;
  if constexpr (dtype_of<T>() == DType::f16) {
    return __hneu2_mask(*reinterpret_cast<const __half2*>(&pair), __half2half2(__ushort_as_half(0))) & bits;
  } else {
#if __CUDA_ARCH__ >= 900
    return __hneu2_mask(*reinterpret_cast<const __nv_bfloat162*>(&pair),
                        __bfloat162bfloat162(__ushort_as_bfloat16(0))) &
           bits;
#else
    return nonzero_by_integers(pair, i);  // there is no instruction that compares bfloat16
#endif
  }
}
/// a + b of both halves, rounded to storage once.
template <class T>
__device__ uint32_t add_pairs(uint32_t a, uint32_t b) {
  if constexpr (dtype_of<T>() == DType::f16) {
    asm("add.rn.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  } else {
    // a * 1 + b: sm_80 has no addition of bf16.
    asm("fma.rn.bf16x2 %0, %0, %2, %1;" : "+r"(a) : "r"(b), "r"(0x3f803f80));
  }
  return a;
}
/// 1 / sqrt(x) of a normal number, to within two units in the last place. The instruction alone, because the
/// correctly rounded root and division branch, and no load or multiplication moves past a branch.
__device__ inline float inverse_root(float x) { return rsqrtf(x); }
/// 2^x and 1 / x to within two units in the last place: one instruction each, without a branch. A result
/// below the smallest normal number is 0.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// Brings the line of 128 bytes at an address of global memory into the L2 cache, some time.
__device__ inline void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(address)));
}
/// Stores 16 bytes that the L2 cache evicts first.
template <class T>
__device__ void store_evict_first(T* to, const T& value) {
  __stcs(reinterpret_cast<uint4*>(to), std::bit_cast<uint4>(value));
}

/// The block's dynamic shared memory, of the size given to launch(). 128-byte aligned: byte 0 is in bank 0 of
/// the 32 4-byte banks, on which every swizzle below relies.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char meshgrad_dynamic_shared[];
  return reinterpret_cast<T*>(meshgrad_dynamic_shared);
}

/// Copies 16 bytes from global to shared memory without a register in between; they may be read after commit,
/// wait (each thread for its own copies) and a barrier (for those of other threads). Both addresses are
/// 16-byte aligned. `valid` false: writes zeros and reads nothing. The .cg variant bypasses L1, since
/// streamed rows are used once per block.
__device__ inline void copy_async_16(void* shared, const void* global, bool valid = true) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(global), "r"(bytes)
               : "memory");
}
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/// Returns when at most `pending` of this thread's newest groups are still in flight. Empty groups count.
template <int pending>
__device__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
}

/// Four 8x8 matrices of 16-bit values from shared memory. Each lane gives the address of one row (16 bytes,
/// aligned): row lane % 8 of matrix lane / 8. r[i] receives of matrix i row lane / 4, columns 2 (lane % 4)
/// and the next: the share of an mma operand. The eight rows of a matrix are read at once, so they must lie
/// in different 16-byte bank groups. PTX ISA, ldmatrix.
__device__ inline void load_matrices(uint32_t (&r)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
/// As load_matrices, but r[i] receives rows 2 (lane % 4) and the next of column lane / 4 of matrix i.
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// clang-format off
/// d += a b on tensor cores: a is 16x16 (rows), b 16x8 (columns), d 16x8 in f32.
/// With g = lane / 4 and q = lane % 4, a lane holds
///   a[0]        row g,     columns 2q and 2q+1
///   a[1]        row g + 8, columns 2q and 2q+1
///   a[2]        row g,     columns 2q+8 and 2q+9
///   a[3]        row g + 8, columns 2q+8 and 2q+9
///   b[0]        column g,  rows 2q and 2q+1
///   b[1]        column g,  rows 2q+8 and 2q+9
///   d[0], d[1]  row g,     columns 2q and 2q+1
///   d[2], d[3]  row g + 8, columns 2q and 2q+1
// clang-format on
/// PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type".
template <class T>
__device__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (dtype_of<T>() == DType::f16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

#else

using simt::copy_async_16;
using simt::copy_async_commit;
using simt::copy_async_wait;
using simt::dynamic_shared;
using simt::load_matrices;
using simt::load_matrices_transposed;
using simt::multiply_add;
using simt::pack;
using simt::to_float;
using simt::to_storage;

template <class T>
uint32_t pack_relu(float low, float high) {
  const auto relu = [](float x) { return x <= 0.0f ? 0.0f : x; };
  return pack<T>(relu(low), relu(high));
}
template <class T>
uint32_t nonzero_halves(uint32_t pair, int i) {
  return nonzero_by_integers(pair, i);
}
template <class T>
uint32_t add_pairs(uint32_t a, uint32_t b) {
  const auto value = [](uint32_t bits) {
    T half_word;
    half_word.bits = static_cast<uint16_t>(bits);
    return to_float(half_word);
  };
  return pack<T>(value(a) + value(b), value(a >> 16) + value(b >> 16));
}
inline float inverse_root(float x) { return 1.0f / sqrtf(x); }
inline float fast_exp2(float x) { return exp2f(x); }
inline float fast_reciprocal(float x) { return 1.0f / x; }
inline void prefetch_l2(const void*) {}
template <class T>
void store_evict_first(T* to, const T& value) {
  *to = value;
}

#endif

/// Sum over the lanes of a warp. A butterfly: both partners of an exchange add the same two numbers, so all
/// lanes receive the same bits.
__device__ inline float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

}  // namespace meshgrad::cuda
