// SPDX-License-Identifier: Apache-2.0
// Sums over rows: each block leaves the partial sums of its rows, and a second launch adds them in order of
// the blocks. How rows are cut depends on their real count and the device alone: the same bits in every run
// and for any capacity.
#pragma once
#include <meshgrad/kernels/cuda/row_access.h>

namespace meshgrad::cuda {

/// Blocks that leave partial sums: all that the device runs at once, whatever the number of rows.
inline int64_t partial_blocks(const Stream& stream) {
  return int64_t{gpu::multiprocessors(stream.device().index)} * 4;
}

/// target[c] += sum over the rows of x[row, c]. target is f32.
void add_column_sums(const Rows& rows, const Tensor& x, const Tensor& target, Runtime& runtime,
                     const Stream& stream);

/// target[c] += sum over all rows of partials[row, first_column + c]. Both are f32.
void add_partials(const Tensor& partials, int64_t first_column, const Tensor& target, const Stream& stream);

/// What a thread summed over its rows becomes the block's: partials[blockIdx.x, first_column + column].
/// `shared` has kRowWarps * width floats, which no thread uses otherwise; the whole block calls.
template <class T, int kElements, int kAccesses>
__device__ void leave_partials(const RowPart<T, kElements, kAccesses>& part,
                               const float (&sums)[kAccesses][kElements], float* shared, float* partials) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
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
  __syncthreads();
}

}  // namespace meshgrad::cuda
