// SPDX-License-Identifier: Apache-2.0
// One thread per element: node states have a few columns, too few for vector accesses to pay.
#include <meshgrad/kernels/cuda/row_access.h>
#include <meshgrad/kernels/state_error.h>
#include <meshgrad/kernels/tables.h>

namespace meshgrad::cuda {
namespace {

constexpr int kStateThreads = 256;
constexpr int kStateBlocksPerSm = 8;

/// Calls body(row, i) for every element of this thread in rows of `width`.
template <class Body>
__device__ void for_elements(const Rows& rows, int64_t width, const Body& body) {
  const int64_t elements = real_rows(rows) * width;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elements; i += stride)
    body(i / width, i);
}

/// Stores or adds a value; a null `to` is an output that is not needed.
template <class T>
__device__ void store_optional(T* to, int64_t at, bool accumulate, float value) {
  if (to == nullptr) return;
  to[at] = to_storage<T>(accumulate ? to_float(to[at]) + value : value);
}

template <class T>
struct StateErrorArgs {
  Rows rows;
  int64_t width;
  const T* prediction;
  const float *before, *target;  // either may be null
  const uint8_t* mask;
  float* after;
};
/// after = before + prediction - target inside the mask, else 0.
template <class T>
__global__ void state_error_kernel(StateErrorArgs<T> args) {
  for_elements(args.rows, args.width, [&](int64_t row, int64_t i) {
    float after = 0.0f;
    if (args.mask[row] != 0) {
      after = to_float(args.prediction[i]);
      if (args.target != nullptr) after -= args.target[i];
      if (args.before != nullptr) after += args.before[i];
    }
    args.after[i] = after;
  });
}

template <class T>
struct StateErrorGradientArgs {
  Rows rows;
  int64_t width;
  const float* d_after;
  const uint8_t* mask;
  float* d_before;  // or null
  T* d_prediction;  // or null
  bool accumulate_d_before, accumulate_d_prediction;
};
/// Both inputs enter with factor 1, so both gradients are d_after inside the mask.
template <class T>
__global__ void state_error_gradient_kernel(StateErrorGradientArgs<T> args) {
  for_elements(args.rows, args.width, [&](int64_t row, int64_t i) {
    const float gradient = args.mask[row] != 0 ? args.d_after[i] : 0.0f;
    store_optional(args.d_before, i, args.accumulate_d_before, gradient);
    store_optional(args.d_prediction, i, args.accumulate_d_prediction, gradient);
  });
}

template <class T>
struct ShiftArgs {
  Rows rows;
  int64_t columns, width;
  const T* given;
  const float* shift;
  const int32_t* source;
  const float* ratio;
  T* shifted;
};
/// shifted[row, c] = given[row, c] + ratio[c] shift[row, source[c]]; a negative source copies the bits.
template <class T>
__global__ void add_columns_kernel(ShiftArgs<T> args) {
  for_elements(args.rows, args.columns, [&](int64_t row, int64_t i) {
    const int64_t column = i - row * args.columns;
    const int32_t source = args.source[column];
    if (source < 0) {
      args.shifted[i] = args.given[i];
      return;
    }
    const float by = args.ratio[column] * args.shift[row * args.width + source];
    args.shifted[i] = to_storage<T>(to_float(args.given[i]) + by);
  });
}

template <class T>
struct ShiftGradientArgs {
  Rows rows;
  int64_t columns, width;
  const T* d_shifted;
  const int32_t* source;
  const float* ratio;
  float* d_shift;
  bool accumulate;
};
/// d_shift[row, k] (+)= sum of ratio[c] d_shifted[row, c] over the columns c with source[c] == k. A search
/// over the columns instead of atomics: the sum has a fixed order.
template <class T>
__global__ void add_columns_gradient_kernel(ShiftGradientArgs<T> args) {
  for_elements(args.rows, args.width, [&](int64_t row, int64_t i) {
    const int64_t own = i - row * args.width;
    float sum = 0.0f;
    for (int64_t column = 0; column < args.columns; ++column) {
      if (args.source[column] == own)
        sum += args.ratio[column] * to_float(args.d_shifted[row * args.columns + column]);
    }
    store_optional(args.d_shift, i, args.accumulate, sum);
  });
}

LaunchShape shape_for(const Stream& stream, int64_t elements) {
  return {.blocks = persistent_blocks(stream, elements, kStateThreads, kStateBlocksPerSm),
          .threads = kStateThreads};
}

void accumulate_error_forward(const AccumulateErrorForward& args, const Stream& stream) {
  const int64_t width = args.prediction.width();
  dispatch_gpu_storage(args.prediction.dtype(), [&]<class T>() {
    launch("accumulate_error.forward", state_error_kernel<T>, shape_for(stream, args.rows.capacity * width),
           stream,
           StateErrorArgs<T>{args.rows, width, args.prediction.data<T>(), args.before.data_or_null<float>(),
                             args.target.data_or_null<float>(), args.mask.data<uint8_t>(),
                             args.after.data<float>()});
  });
}

void accumulate_error_backward(const AccumulateErrorBackward& args, const Stream& stream) {
  const int64_t width = args.d_after.width();
  const Tensor& stored = args.d_prediction.defined() ? args.d_prediction : args.d_after;
  dispatch_gpu_storage(stored.dtype(), [&]<class T>() {
    launch("accumulate_error.backward", state_error_gradient_kernel<T>,
           shape_for(stream, args.rows.capacity * width), stream,
           StateErrorGradientArgs<T>{args.rows, width, args.d_after.data<float>(), args.mask.data<uint8_t>(),
                                     args.d_before.data_or_null<float>(), args.d_prediction.data_or_null<T>(),
                                     args.accumulate_d_before, args.accumulate_d_prediction});
  });
}

void add_columns_forward(const AddColumnsForward& args, const Stream& stream) {
  const int64_t columns = args.given.width();
  dispatch_gpu_storage(args.given.dtype(), [&]<class T>() {
    launch(
        "add_columns.forward", add_columns_kernel<T>, shape_for(stream, args.rows.capacity * columns), stream,
        ShiftArgs<T>{args.rows, columns, args.shift.width(), args.given.data<T>(), args.shift.data<float>(),
                     args.source.data<int32_t>(), args.ratio.data<float>(), args.shifted.data<T>()});
  });
}

void add_columns_backward(const AddColumnsBackward& args, const Stream& stream) {
  const int64_t width = args.d_shift.width();
  dispatch_gpu_storage(args.d_shifted.dtype(), [&]<class T>() {
    launch("add_columns.backward", add_columns_gradient_kernel<T>,
           shape_for(stream, args.rows.capacity * width), stream,
           ShiftGradientArgs<T>{args.rows, args.d_shifted.width(), width, args.d_shifted.data<T>(),
                                args.source.data<int32_t>(), args.ratio.data<float>(),
                                args.d_shift.data<float>(), args.accumulate});
  });
}

}  // namespace

const StateErrorKernels state_error_kernels{
    .accumulate_error_forward = accumulate_error_forward,
    .accumulate_error_backward = accumulate_error_backward,
    .add_columns_forward = add_columns_forward,
    .add_columns_backward = add_columns_backward,
};

}  // namespace meshgrad::cuda
