// SPDX-License-Identifier: Apache-2.0
// One group of lanes per row (row_access.h). Up to 1024 columns the row stays in registers between the
// statistics and the output: each value is read once and written once.
#include <meshgrad/kernels/cuda/column_sums.h>
#include <meshgrad/kernels/cuda/norm.h>

namespace meshgrad::cuda {
namespace {

/// Arguments of norm_forward; x, residual and y are [rows, width], gain and bias [width].
template <class T>
struct ForwardArgs {
  Rows rows;
  const T* x;
  const float *gain, *bias;
  const T* residual;
  T* y;
  float epsilon;
  int width, lanes;  // lanes of a row's group, lanes_of(width, kElements)
  bool centred;      // LayerNorm; else RMSNorm
};

/// Mean (0 unless centred) and 1 / standard deviation of a group's row. Two passes over the registers:
/// mean(x^2) - mean(x)^2 would cancel for a row whose mean is far from 0.
struct Statistics {
  float mean, scale;
};
template <class Part>
__device__ Statistics statistics(Part& x, bool centred, float epsilon) {
  constexpr int kElements = static_cast<int>(sizeof(x.v[0]) / sizeof(float));
  float sum = 0.0f;
  if (centred) {
    x.each([&](int access, int) {
      const auto& v = x.at(access);
#pragma unroll
      for (int i = 0; i < kElements; ++i) sum += v[i];
    });
    sum = group_sum(sum, x.lanes);
  }
  const float count = static_cast<float>(x.width > 0 ? x.width : 1);
  const float mean = sum / count;
  float squares = 0.0f;
  x.each([&](int access, int) {
    const auto& v = x.at(access);
#pragma unroll
    for (int i = 0; i < kElements; ++i) squares += (v[i] - mean) * (v[i] - mean);
  });
  squares = group_sum(squares, x.lanes);
  return {mean, 1.0f / sqrtf(squares / count + epsilon)};
}

template <class T, int kElements, int kAccesses>
__global__ void norm_forward(ForwardArgs<T> args) {
  const int64_t rows = real_rows(args.rows);
  const int groups = static_cast<int>(blockDim.x) / args.lanes;
  const int group = static_cast<int>(threadIdx.x) / args.lanes;
  // The bound is that of the block's first row, so a warp's lanes stay together for the shuffles of
  // group_sum; groups behind the last row hold zeros and store nothing.
  for (int64_t first = int64_t{blockIdx.x} * groups; first < rows; first += int64_t{gridDim.x} * groups) {
    const int64_t row = first + group;
    RowPart<T, kElements, kAccesses> x;
    x.lanes = args.lanes;
    x.lane = static_cast<int>(threadIdx.x) % args.lanes;
    x.width = args.width;
    x.load(args.x + row * args.width, row < rows);
    const Statistics s = statistics(x, args.centred, args.epsilon);
    if (row >= rows) continue;
    x.each([&](int access, int column) {
      const auto& v = x.at(access);
      float y[kElements], add[kElements] = {};
      if (args.residual != nullptr) load_floats(args.residual + row * args.width + column, add);
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        y[i] = (v[i] - s.mean) * s.scale * args.gain[column + i];
        if (args.bias != nullptr) y[i] += args.bias[column + i];
        y[i] += add[i];
      }
      store_floats(args.y + row * args.width + column, y);
    });
  }
}

template <class T>
struct BackwardArgs {
  Rows rows;
  const T* x;
  const float* gain;
  const T* d_y;
  T* d_x;
  float* partials;  // [blocks, 2 * width]: d_gain, d_bias
  float epsilon;
  int width, lanes;
  bool centred, accumulate;
};

/// mean(g) and mean(g xn) of norm.h: the gradient through the mean and through the scale.
struct Means {
  float direct, through_scale;
};
template <int kElements, class Part>
__device__ Means means(Part& x, Part& d_y, const float* gain, const Statistics& s, bool centred) {
  float direct = 0.0f, through_scale = 0.0f;
  x.each([&](int access, int column) {
    const auto& v = x.at(access);
    const auto& d = d_y.at(access);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const float g = d[i] * gain[column + i];
      direct += g;
      through_scale += g * ((v[i] - s.mean) * s.scale);
    }
  });
  const float count = static_cast<float>(x.width > 0 ? x.width : 1);
  through_scale = group_sum(through_scale, x.lanes) / count;
  return {centred ? group_sum(direct, x.lanes) / count : 0.0f, through_scale};
}

/// d_x row by row, and this block's partial sums of d_gain and d_bias. x and d_y are both held in registers:
/// the two means need all of the row before any d_x can be computed.
template <class T, int kElements, int kAccesses>
__global__ void norm_backward(BackwardArgs<T> args) {
  using Part = RowPart<T, kElements, kAccesses>;
  constexpr int kHeld = kAccesses > 0 ? kAccesses : 1;
  const int64_t rows = real_rows(args.rows);
  const int groups = static_cast<int>(blockDim.x) / args.lanes;
  const int group = static_cast<int>(threadIdx.x) / args.lanes;
  float* partials = args.partials + int64_t{blockIdx.x} * 2 * args.width;
  Part x, d_y;
  x.lanes = d_y.lanes = args.lanes;
  x.lane = d_y.lane = static_cast<int>(threadIdx.x) % args.lanes;
  x.width = d_y.width = args.width;
  // The lane's columns, summed over all rows of its group; without registers for them, in `partials` itself.
  float d_gain[kHeld][kElements] = {}, d_bias[kHeld][kElements] = {};
  if constexpr (kAccesses == 0) {  // one warp per block, a column belongs to one lane: no atomics
    for (int column = x.lane; column < 2 * args.width; column += 32) partials[column] = 0.0f;
    __syncwarp();  // the column of d_bias that a lane adds to may have been cleared by another lane
  }
  for (int64_t first = int64_t{blockIdx.x} * groups; first < rows; first += int64_t{gridDim.x} * groups) {
    const int64_t row = first + group;
    x.load(args.x + row * args.width, row < rows);
    d_y.load(args.d_y + row * args.width, row < rows);
    const Statistics s = statistics(x, args.centred, args.epsilon);
    const Means m = means<kElements>(x, d_y, args.gain, s, args.centred);
    if (row >= rows) continue;
    x.each([&](int access, int column) {
      const auto& v = x.at(access);
      const auto& d = d_y.at(access);
      T* const to = args.d_x + row * args.width + column;
      float d_x[kElements], start[kElements] = {};
      if (args.accumulate) load_floats(to, start);
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const float normal = (v[i] - s.mean) * s.scale;
        d_x[i] = start[i] + s.scale * (d[i] * args.gain[column + i] - m.direct - normal * m.through_scale);
        if constexpr (kAccesses > 0) {
          d_gain[access][i] += d[i] * normal;
          d_bias[access][i] += d[i];
        } else {
          partials[column + i] += d[i] * normal;
          partials[args.width + column + i] += d[i];
        }
      }
      store_floats(to, d_x);
    });
  }
  if constexpr (kAccesses > 0) {  // all threads arrive: store_partials has barriers
    store_partials(x, d_gain, dynamic_shared<float>(), partials);
    store_partials(x, d_bias, dynamic_shared<float>(), partials + args.width);
  }
}

}  // namespace

void norm_rows(const NormForward& args, const Tensor& residual, const Stream& stream) {
  const int64_t width = args.x.width();
  if (width == 0) return;
  dispatch_gpu_storage(args.x.dtype(), [&]<class T>() {
    const T* add = residual.data_or_null<T>();
    dispatch_row<T>(
        width, vectors_fit<T>(width, {args.x.raw(), add, args.y.raw()}), [&]<int kElements, int kAccesses>() {
          const int lanes = lanes_of(width, kElements);
          launch("norm_forward", norm_forward<T, kElements, kAccesses>,
                 {persistent_blocks(stream, args.rows.capacity, kRowThreads / lanes, 16), kRowThreads, 0},
                 stream,
                 ForwardArgs<T>{args.rows, args.x.data<T>(), args.gain.data<float>(),
                                args.bias.data_or_null<float>(), add, args.y.data<T>(),
                                static_cast<float>(args.epsilon), static_cast<int>(width), lanes,
                                args.norm == Norm::layer});
        });
  });
}

void norm_rows_backward(const NormBackward& args, Runtime& runtime, const Stream& stream) {
  const int64_t width = args.x.width();
  if (width == 0 || args.rows.capacity == 0) return;
  const int64_t blocks = partial_blocks(stream);
  const Tensor partials =
      Tensor::empty(runtime, {blocks, 2 * width}, DType::f32, Tag::workspace, "norm partials");
  dispatch_gpu_storage(args.x.dtype(), [&]<class T>() {
    dispatch_row<T>(
        width, vectors_fit<T>(width, {args.x.raw(), args.d_y.raw(), args.d_x.raw()}),
        [&]<int kElements, int kAccesses>() {
          // Shared memory is store_partials' [kRowWarps, width] floats, at most 16 KiB.
          const int lanes = kAccesses > 0 ? lanes_of(width, kElements) : 32;
          const LaunchShape shape{blocks, kAccesses > 0 ? kRowThreads : 32,
                                  kAccesses > 0 ? kRowWarps * static_cast<int>(width) * 4 : 0};
          launch("norm_backward", norm_backward<T, kElements, kAccesses>, shape, stream,
                 BackwardArgs<T>{args.rows, args.x.data<T>(), args.gain.data<float>(), args.d_y.data<T>(),
                                 args.d_x.data<T>(), partials.data<float>(), static_cast<float>(args.epsilon),
                                 static_cast<int>(width), lanes, args.norm == Norm::layer, args.accumulate});
        });
  });
  if (args.d_gain.defined()) add_partials(partials, 0, args.d_gain, stream);
  if (args.d_bias.defined()) add_partials(partials, width, args.d_bias, stream);
}

}  // namespace meshgrad::cuda
