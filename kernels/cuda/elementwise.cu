// SPDX-License-Identifier: Apache-2.0
// Elementwise operations as Ops of elementwise_launch.h: load, compute in f32, round once, store.
#include <meshgrad/kernels/cuda/activation.h>
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
    .axpby = axpby,
    .cast = cast,
};

}  // namespace meshgrad::cuda
