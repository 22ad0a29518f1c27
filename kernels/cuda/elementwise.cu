// SPDX-License-Identifier: Apache-2.0
// Elementwise operations as Ops of elementwise_launch.h: load, compute in f32, round once, store.
#include <meshgrad/kernels/cuda/activation.h>
#include <meshgrad/kernels/cuda/column_sums.h>
#include <meshgrad/kernels/cuda/elementwise_launch.h>
#include <meshgrad/kernels/cuda/norm.h>
#include <meshgrad/kernels/tables.h>

namespace meshgrad::cuda {
namespace {

template <class T>
struct Activate {
  int64_t elements;
  Activation activation;
  const T* x;
  T* y;
  template <int kElements>
  __device__ void at(int64_t i) const {
    float v[kElements];
    load_floats(x + i, v);
#pragma unroll
    for (int k = 0; k < kElements; ++k) v[k] = activate(activation, v[k]);
    store_floats(y + i, v);
  }
};

template <class T>
struct ActivateBackward {
  int64_t elements;
  Activation activation;
  const T *x, *d_y;
  T* d_x;
  bool accumulate;
  template <int kElements>
  __device__ void at(int64_t i) const {
    float v[kElements], d[kElements], start[kElements] = {};
    load_floats(x + i, v);
    load_floats(d_y + i, d);
    if (accumulate) load_floats(d_x + i, start);
#pragma unroll
    for (int k = 0; k < kElements; ++k) d[k] = start[k] + d[k] * activation_slope(activation, v[k]);
    store_floats(d_x + i, d);
  }
};

template <class T>
struct DropoutArgs {
  Rows rows;
  DropoutMask mask;
  const T* x;
  T* y;
  int width;
  bool accumulate;
};

/// A thread takes four neighbouring columns, whose bits one call of Philox gives.
template <class T>
__global__ void dropout_kernel(DropoutArgs<T> args) {
  const RandomKey key = args.mask.key();
  const auto scale = static_cast<float>(args.mask.scale);
  const int blocks = (args.width + 3) / 4;
  const int64_t items = real_rows(args.rows) * blocks;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; item < items; item += step) {
    const int64_t row = item / blocks;
    const int block = static_cast<int>(item - row * blocks);
    const uint32_t kept = args.mask.keep_four(key, args.mask.row_key(row), block);
    for (int c = 0; c < min(4, args.width - 4 * block); ++c) {
      const int64_t at = row * args.width + 4 * block + c;
      const float value = (kept >> c & 1u) != 0 ? scale * to_float(args.x[at]) : 0.0f;
      args.y[at] = to_storage<T>(args.accumulate ? to_float(args.y[at]) + value : value);
    }
  }
}

template <class T>
struct AddBias {
  int64_t elements;
  int width;
  const T* x;
  const float* bias;
  T* y;
  template <int kElements>
  __device__ void at(int64_t i) const {
    float v[kElements];
    load_floats(x + i, v);
    auto column = static_cast<int>(i % width);
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      v[k] += bias[column];
      column = column + 1 == width ? 0 : column + 1;
    }
    store_floats(y + i, v);
  }
};

/// Whether a is the larger: of equal values, and if it is a NaN.
__device__ inline bool is_first(float a, float b) { return a >= b || a != a; }

template <class T>
struct Maximum {
  int64_t elements;
  const T *a, *b;
  T* y;
  template <int kElements>
  __device__ void at(int64_t i) const {
    float u[kElements], v[kElements];
    load_floats(a + i, u);
    load_floats(b + i, v);
#pragma unroll
    for (int k = 0; k < kElements; ++k) u[k] = is_first(u[k], v[k]) ? u[k] : v[k];
    store_floats(y + i, u);
  }
};

template <class T>
struct SpreadMaximum {
  int64_t elements;
  const T *a, *b, *d_y;
  T *d_a, *d_b;  // or null
  bool accumulate_d_a, accumulate_d_b;
  template <int kElements>
  __device__ void at(int64_t i) const {
    float u[kElements], v[kElements], d[kElements];
    load_floats(a + i, u);
    load_floats(b + i, v);
    load_floats(d_y + i, d);
    if (d_a != nullptr) write(d_a + i, accumulate_d_a, u, v, d, true);
    if (d_b != nullptr) write(d_b + i, accumulate_d_b, u, v, d, false);
  }
  template <int kElements>
  __device__ static void write(T* to, bool accumulate, const float (&u)[kElements],
                               const float (&v)[kElements], const float (&d)[kElements], bool first) {
    float sum[kElements] = {};
    if (accumulate) load_floats(to, sum);
#pragma unroll
    for (int k = 0; k < kElements; ++k) sum[k] += is_first(u[k], v[k]) == first ? d[k] : 0.0f;
    store_floats(to, sum);
  }
};

/// y = a x + b y.
template <class T>
struct WeightedSum {
  int64_t elements;
  float a, b;
  const T* x;
  T* y;
  template <int kElements>
  __device__ void at(int64_t i) const {
    float u[kElements], v[kElements];
    load_floats(x + i, u);
    load_floats(y + i, v);
#pragma unroll
    for (int k = 0; k < kElements; ++k) v[k] = a * u[k] + b * v[k];
    store_floats(y + i, v);
  }
};

template <class From, class To>
struct Convert {
  int64_t elements;
  const From* from;
  To* to;
  template <int kElements>
  __device__ void at(int64_t i) const {
    float v[kElements];
    load_floats(from + i, v);
    store_floats(to + i, v);
  }
};

void activation_forward(const ActivationForward& args, const Stream& stream) {
  dispatch_gpu_storage(args.y.dtype(), [&]<class T>() {
    launch_map<Vector<T>::kSize>(
        "activation_forward",
        Activate<T>{args.y.elements(), args.activation, args.x.data<T>(), args.y.data<T>()},
        {args.x.raw(), args.y.raw()}, stream);
  });
}

void activation_backward(const ActivationBackward& args, const Stream& stream) {
  dispatch_gpu_storage(args.d_x.dtype(), [&]<class T>() {
    launch_map<Vector<T>::kSize>("activation_backward",
                                 ActivateBackward<T>{args.d_x.elements(), args.activation, args.x.data<T>(),
                                                     args.d_y.data<T>(), args.d_x.data<T>(), args.accumulate},
                                 {args.x.raw(), args.d_y.raw(), args.d_x.raw()}, stream);
  });
}

void dropout(const Dropout& args, const Stream& stream) {
  constexpr int kThreads = 256;
  const int64_t width = args.y.width();
  const LaunchShape shape{persistent_blocks(stream, args.rows.capacity * ((width + 3) / 4), kThreads, 8),
                          kThreads, 0};
  dispatch_gpu_storage(args.y.dtype(), [&]<class T>() {
    launch("dropout", dropout_kernel<T>, shape, stream,
           DropoutArgs<T>{args.rows, mask_of(args.key), args.x.data<T>(), args.y.data<T>(),
                          static_cast<int>(width), args.accumulate});
  });
}

void add_bias_forward(const AddBiasForward& args, const Stream& stream) {
  dispatch_gpu_storage(args.y.dtype(), [&]<class T>() {
    launch_map<Vector<T>::kSize>("add_bias_forward",
                                 AddBias<T>{args.y.elements(), static_cast<int>(args.y.width()),
                                            args.x.data<T>(), args.bias.data<float>(), args.y.data<T>()},
                                 {args.x.raw(), args.y.raw()}, stream);
  });
}

void maximum_forward(const MaximumForward& args, const Stream& stream) {
  dispatch_gpu_storage(args.y.dtype(), [&]<class T>() {
    launch_map<Vector<T>::kSize>(
        "maximum_forward",
        Maximum<T>{args.y.elements(), args.a.data<T>(), args.b.data<T>(), args.y.data<T>()},
        {args.a.raw(), args.b.raw(), args.y.raw()}, stream);
  });
}

void maximum_backward(const MaximumBackward& args, const Stream& stream) {
  dispatch_gpu_storage(args.d_y.dtype(), [&]<class T>() {
    launch_map<Vector<T>::kSize>(
        "maximum_backward",
        SpreadMaximum<T>{args.d_y.elements(), args.a.data<T>(), args.b.data<T>(), args.d_y.data<T>(),
                         args.d_a.data_or_null<T>(), args.d_b.data_or_null<T>(), args.accumulate_d_a,
                         args.accumulate_d_b},
        {args.a.raw(), args.b.raw(), args.d_y.raw(), args.d_a.data_or_null<T>(), args.d_b.data_or_null<T>()},
        stream);
  });
}

void axpby(const Axpby& args, const Stream& stream) {
  dispatch_gpu_storage(args.y.dtype(), [&]<class T>() {
    launch_map<Vector<T>::kSize>(
        "axpby",
        WeightedSum<T>{args.y.elements(), static_cast<float>(args.a), static_cast<float>(args.b),
                       args.x.data<T>(), args.y.data<T>()},
        {args.x.raw(), args.y.raw()}, stream);
  });
}

void cast(const Cast& args, const Stream& stream) {
  dispatch_gpu_storage(args.from.dtype(), [&]<class From>() {
    dispatch_gpu_storage(args.to.dtype(), [&]<class To>() {
      // As many as a vector of the narrower type has; of the wider one an access is two vectors.
      constexpr int kElements = std::max(Vector<From>::kSize, Vector<To>::kSize);
      launch_map<kElements>("cast",
                            Convert<From, To>{args.to.elements(), args.from.data<From>(), args.to.data<To>()},
                            {args.from.raw(), args.to.raw()}, stream);
    });
  });
}

}  // namespace

const ElementwiseKernels elementwise_kernels{
    .activation_forward = activation_forward,
    .activation_backward = activation_backward,
    .norm_forward = [](const NormForward& args, Runtime&,
                       const Stream& stream) { norm_rows(args, Tensor(), stream); },
    .norm_backward = norm_rows_backward,
    .dropout = dropout,
    .add_bias_forward = add_bias_forward,
    .add_bias_backward =
        [](const AddBiasBackward& args, Runtime& runtime, const Stream& stream) {
          add_column_sums(args.rows, args.d_y, args.d_bias, runtime, stream);
        },
    .maximum_forward = maximum_forward,
    .maximum_backward = maximum_backward,
    .axpby = axpby,
    .cast = cast,
};

}  // namespace meshgrad::cuda
