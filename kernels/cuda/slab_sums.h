// SPDX-License-Identifier: Apache-2.0
// Sums in f64 in two launches: each block sums a slab of fixed size, then one block sums the slabs. The order
// of additions depends on the values' indices only, not on the device; rows after the real count add zero.
#pragma once
#include <meshgrad/kernels/cuda/row_access.h>

namespace meshgrad::cuda {

inline constexpr int kSumThreads = 256;     // of a block that sums a slab
inline constexpr int64_t kSlabRows = 2048;  // of a loss; a constant, so that sums do not depend on the device

/// Sum over the block's threads, in all of them, by a tree in shared memory; `sums` is [kSumThreads].
__device__ inline double block_sum(double* sums, double x) {
  const auto thread = static_cast<int>(threadIdx.x);
  sums[thread] = x;
  __syncthreads();
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    if (thread < half) sums[thread] += sums[thread + half];
    __syncthreads();
  }
  const double total = sums[0];
  __syncthreads();  // the next call overwrites sums[0]
  return total;
}

/// f64 [slabs], uninitialised workspace.
inline Tensor empty_slab_sums(Runtime& runtime, int64_t slabs) {
  return Tensor::empty(runtime, Shape{slabs}, DType::f64, Tag::workspace, "partial sums");
}

/// The second launch: one block sums the slabs of one or two quantities.
struct AddSlabs {
  const double* first;   // [slabs]
  const double* second;  // [slabs], or null
  int64_t slabs;
  double* first_sum;
  double* second_sum;
  bool add;             // to the values in first_sum and second_sum
  int32_t* non_finite;  // or null: set where first's total is not finite
};
void add_slabs(const char* launch_name, const AddSlabs& args, const Stream& stream);

}  // namespace meshgrad::cuda
