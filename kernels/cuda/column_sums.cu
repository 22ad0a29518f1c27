// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/column_sums.h>

namespace meshgrad::cuda {
namespace {

template <class T>
struct ColumnSumArgs {
  Rows rows;
  const T* x;
  float* partials;  // [blocks, width]
  int width, lanes;
};

/// A grid-stride loop over rows, one group of lanes per row; each lane sums its columns in registers.
template <class T, int kElements, int kAccesses>
__global__ void column_sums(ColumnSumArgs<T> args) {
  const int64_t rows = real_rows(args.rows);
  const int groups = static_cast<int>(blockDim.x) / args.lanes;
  const int group = static_cast<int>(threadIdx.x) / args.lanes;
  RowPart<T, kElements, kAccesses> part;
  part.lanes = args.lanes;
  part.lane = static_cast<int>(threadIdx.x) % args.lanes;
  part.width = args.width;
  float* partials = args.partials + int64_t{blockIdx.x} * args.width;
  if constexpr (kAccesses > 0) {
    float sums[kAccesses][kElements] = {};
    for (int64_t row = int64_t{blockIdx.x} * groups + group; row < rows; row += int64_t{gridDim.x} * groups) {
      part.load(args.x + row * args.width, true);
#pragma unroll
      for (int access = 0; access < kAccesses; ++access) {
#pragma unroll
        for (int i = 0; i < kElements; ++i) sums[access][i] += part.v[access][i];
      }
    }
    store_partials(part, sums, dynamic_shared<float>(), partials);
  } else {  // rows too wide for registers: one warp per block, column by column
    for (int column = part.lane; column < args.width; column += 32) {
      float sum = 0.0f;
      for (int64_t row = blockIdx.x; row < rows; row += gridDim.x)
        sum += to_float(args.x[row * args.width + column]);
      partials[column] = sum;
    }
  }
}

struct AddPartialArgs {
  const float* partials;
  float* target;
  int64_t count, stride;  // rows of partials, and floats from one to the next
  int width;
};

/// A block adds 32 columns, a lane one of them: each warp adds every kRowWarps-th row, then the warps' sums
/// are added in order. `sums` is [kRowWarps, 32].
__global__ void add_partial_rows(AddPartialArgs args) {
  MESHGRAD_SHARED(float, sums, kRowThreads);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int column = static_cast<int>(blockIdx.x) * 32 + lane;
  float sum = 0.0f;
  if (column < args.width) {
    for (int64_t row = warp; row < args.count; row += kRowWarps)
      sum += args.partials[row * args.stride + column];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (warp == 0 && column < args.width) {
    for (int w = 1; w < kRowWarps; ++w) sum += sums[w * 32 + lane];
    args.target[column] += sum;
  }
}

}  // namespace

void add_column_sums(const Rows& rows, const Tensor& x, const Tensor& target, Runtime& runtime,
                     const Stream& stream) {
  const int64_t width = x.width();
  if (rows.capacity == 0 || width == 0) return;
  const int64_t blocks = partial_blocks(stream);
  const Tensor partials =
      Tensor::empty(runtime, {blocks, width}, DType::f32, Tag::workspace, "column partials");
  dispatch_gpu_storage(x.dtype(), [&]<class T>() {
    dispatch_row<T>(width, vectors_fit<T>(width, {x.raw()}), [&]<int kElements, int kAccesses>() {
      // Shared memory is store_partials' [kRowWarps, width] floats.
      const int lanes = kAccesses > 0 ? lanes_of(width, kElements) : 32;
      const LaunchShape shape{blocks, kAccesses > 0 ? kRowThreads : 32,
                              kAccesses > 0 ? kRowWarps * static_cast<int>(width) * 4 : 0};
      launch("column_sums", column_sums<T, kElements, kAccesses>, shape, stream,
             ColumnSumArgs<T>{rows, x.data<T>(), partials.data<float>(), static_cast<int>(width), lanes});
    });
  });
  add_partials(partials, 0, target, stream);
}

void add_partials(const Tensor& partials, int64_t first_column, const Tensor& target, const Stream& stream) {
  const int64_t width = target.elements();
  launch("add_partials", add_partial_rows, {blocks_for(width, 32), kRowThreads, 0}, stream,
         AddPartialArgs{partials.data<float>() + first_column, target.data<float>(), partials.rows(),
                        partials.width(), static_cast<int>(width)});
}

}  // namespace meshgrad::cuda
