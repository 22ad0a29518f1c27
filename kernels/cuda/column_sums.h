// SPDX-License-Identifier: Apache-2.0
// Sums over rows in two launches: each block writes the partial sum of its rows, then add_partials adds the
// blocks' partial sums in a fixed order. No float atomics, and the assignment of rows to blocks depends only
// on the real count and the device: the same bits in every run and for any capacity.
#pragma once
#include <meshgrad/kernels/cuda/row_access.h>

namespace meshgrad::cuda {

/// Blocks that write partial sums: 4 per multiprocessor, whatever the number of rows, so that the size of the
/// partials does not depend on a row count that only the device knows.
inline int64_t partial_blocks(const Stream& stream) {
  return int64_t{gpu::multiprocessors(stream.device().index)} * 4;
}

/// target[c] += sum over the rows of x[row, c]. target is f32.
void add_column_sums(const Rows& rows, const Tensor& x, const Tensor& target, Runtime& runtime,
                     const Stream& stream);

/// target[c] += sum over all rows of partials[row, first_column + c]. Both are f32.
void add_partials(const Tensor& partials, int64_t first_column, const Tensor& target, const Stream& stream);

/// Reduces the threads' sums of their rows to the block's: over the groups of each warp by shuffles, then
/// over the warps in order. `partials` is the block's row of the partials, at its first column; `shared` is
/// [kRowWarps, width] floats, not used otherwise. The whole block calls.
template <class T, int kElements, int kAccesses>
__device__ void store_partials(const RowPart<T, kElements, kAccesses>& part,
                               const float (&sums)[kAccesses][kElements], float* shared, float* partials) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  // Every lane calls the shuffle, also for columns behind the width; only the first group writes.
#pragma unroll
  for (int access = 0; access < kAccesses; ++access) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const float sum = sum_of_groups(sums[access][i], part.lanes);
      const int column = part.column(access) + i;
      if (static_cast<int>(threadIdx.x) % 32 < part.lanes && column < part.width)
        shared[warp * part.width + column] = sum;
    }
  }
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x); column < part.width; column += kRowThreads) {
    float sum = 0.0f;
    for (int w = 0; w < kRowWarps; ++w) sum += shared[w * part.width + column];
    partials[column] = sum;
  }
  __syncthreads();  // the next call overwrites `shared`
}

}  // namespace meshgrad::cuda
