// SPDX-License-Identifier: Apache-2.0
// Copies of boxes of a matrix from global to shared memory by the copy engine of compute capability 9.0 and
// later (TMA), and the barriers in shared memory that they arrive at (mbarrier). PTX ISA, "Tensor copy" and
// "mbarrier". One thread starts a copy; no thread computes addresses or holds what is copied.
//
//   barrier_init(b, 1) by one thread, fence_shared_for_products() by it, __syncthreads()
//   one thread, for each phase of b: arrive_and_expect(b, bytes), then copies of so many bytes
//   all threads that read:           wait_for_phase(b, parity), 0 for the first phase, then 1, 0, ..
//   reads, also by products; after a barrier of the block, the next copies to the same place
//
// Copies are made behind the threads' backs (by the asynchronous proxy): a thread's own writes to where a
// copy reads or writes need fence_for_copies() by that thread, and then __syncthreads().
#pragma once
#include <meshgrad/engine/dtype.h>
#include <meshgrad/kernels/cuda/wgmma.h>

#include <string>

namespace meshgrad::cuda {

/// A matrix [rows, columns] of 16-bit values in global memory, as seen by copies. The host makes it, and a
/// kernel has it in its arguments (__grid_constant__); its form is the driver's.
struct alignas(128) TensorMap {
  unsigned char form[128];
};
inline constexpr int kBoxColumns = 64;  ///< of a copy: 128 bytes a row, swizzled as bytes128

/// For boxes of `box_rows` rows; every row begins at a multiple of 16 bytes. Returns why the driver makes no
/// map, empty when it has made one.
std::string make_tensor_map(TensorMap& map, const void* data, int64_t rows, int64_t columns, int box_rows);

struct alignas(8) CopyBarrier {
  uint64_t state;
};

#ifdef __CUDACC__

/// A phase ends with `arrivals` arrivals and all expected bytes.
__device__ inline void barrier_init(CopyBarrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}
/// One arrival, and so many more bytes to come in this phase.
__device__ inline void arrive_and_expect(CopyBarrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
/// Returns when the phase of this parity has ended: at once if it is not the present one's.
__device__ inline void wait_for_phase(CopyBarrier* barrier, int parity) {
  const uint32_t address = shared_address(barrier);
  uint32_t ended = 0;
  while (ended == 0) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(ended)
        : "r"(address), "r"(parity)
        : "memory");
  }
}
/// Copies the map's box from `column` and `row` on to `shared`, row after row of 128 bytes; zeros for what is
/// outside of the matrix. `shared` is a multiple of 128 bytes, and row 0 of the swizzle at one of
/// kSwizzleBytes. The box's bytes arrive at the barrier.
__device__ inline void copy_box_async(void* shared, const TensorMap* map, int column, int row,
                                      CopyBarrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];\n" ::"r"(shared_address(shared)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
}
/// The calling thread's writes to shared and global memory become visible to copies that start after a
/// barrier.
__device__ inline void fence_for_copies() { asm volatile("fence.proxy.async;\n" ::: "memory"); }

#else

inline void barrier_init(CopyBarrier* barrier, int arrivals, Location where = Location::current()) {
  simt::barrier_init(barrier, arrivals, where);
}
inline void arrive_and_expect(CopyBarrier* barrier, int bytes, Location where = Location::current()) {
  simt::arrive_and_expect(barrier, bytes, where);
}
inline void wait_for_phase(CopyBarrier* barrier, int parity, Location where = Location::current()) {
  simt::wait_for_phase(barrier, parity, where);
}
inline void copy_box_async(void* shared, const TensorMap* map, int column, int row, CopyBarrier* barrier,
                           Location where = Location::current()) {
  simt::copy_box_async(shared, map, column, row, barrier, where);
}
inline void fence_for_copies() { simt::fence_for_copies(); }

#endif

}  // namespace meshgrad::cuda
