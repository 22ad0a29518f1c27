// SPDX-License-Identifier: Apache-2.0
// A build without CUDA compiles the kernels' sources for their host code, which the dry runs of memory plans
// for a GPU need: launch() of kernels/cuda/launch.h starts nothing. The device primitives exist for the
// linker alone.
#include <meshgrad/engine/error.h>
#include <meshgrad/kernels/cuda/simt.h>

#include <cstdlib>

simt::Index threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

uint64_t warp_operation(WarpOp, unsigned, uint64_t, int, int, Location) { std::abort(); }
int barrier(Vote, int, Location) { std::abort(); }
template <class T>
T atomic(AtomicOp, T*, T, T, Location) {
  std::abort();
}
template int atomic(AtomicOp, int*, int, int, Location);
template unsigned atomic(AtomicOp, unsigned*, unsigned, unsigned, Location);
template long long atomic(AtomicOp, long long*, long long, long long, Location);
template unsigned long long atomic(AtomicOp, unsigned long long*, unsigned long long, unsigned long long,
                                   Location);
template float atomic(AtomicOp, float*, float, float, Location);
template double atomic(AtomicOp, double*, double, double, Location);
void fence() { std::abort(); }
void* static_shared(size_t, size_t, Location) { std::abort(); }
void* dynamic_shared() { std::abort(); }
void trap(Location) { std::abort(); }
void copy_async_16(void*, const void*, bool, Location) { std::abort(); }
void copy_async_commit() { std::abort(); }
void copy_async_wait_for(int) { std::abort(); }
void load_matrices(uint32_t (&)[4], const void*, Location) { std::abort(); }
void load_matrices_transposed(uint32_t (&)[4], const void*, Location) { std::abort(); }
void multiply_add_f16(float (&)[4], const uint32_t (&)[4], const uint32_t (&)[2], Location) { std::abort(); }
void multiply_add_bf16(float (&)[4], const uint32_t (&)[4], const uint32_t (&)[2], Location) { std::abort(); }

}  // namespace simt
