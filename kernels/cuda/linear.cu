// SPDX-License-Identifier: Apache-2.0
// Linear layers by gemm, which processes all rows of a tensor. The host does not know a real count that is in
// device memory, so in that case results go through workspace, and operands of a sum over rows are copied
// with zeros behind the count: rows behind it are neither written nor added.
#include <meshgrad/kernels/cuda/column_sums.h>
#include <meshgrad/kernels/cuda/elementwise_launch.h>
#include <meshgrad/kernels/cuda/gemm.h>
#include <meshgrad/kernels/tables.h>

namespace meshgrad::cuda {
namespace {

template <class T>
struct CopyWithZeros {
  int64_t elements;  // of the capacity, not the real count
  Rows rows;
  int64_t width;
  const T* from;
  T* to;
  template <int kElements>
  __device__ void at(int64_t i) const {
    const int64_t end = real_rows(rows) * width;  // may lie within an access
    float v[kElements] = {};
    if (i + kElements <= end) {
      load_floats(from + i, v);
    } else {
      for (int k = 0; k < kElements && i + k < end; ++k) v[k] = to_float(from[i + k]);
    }
    store_floats(to + i, v);
  }
};

/// `x` itself, or a copy whose rows behind the real count are 0.
Tensor real_rows_of(const Tensor& x, const Rows& rows, Runtime& runtime, const Stream& stream) {
  if (rows.count == nullptr) return x;
  const Tensor copy = Tensor::empty(runtime, x.shape(), x.dtype(), Tag::workspace, "real rows");
  dispatch_gpu_storage(x.dtype(), [&]<class T>() {
    launch_map<Vector<T>::kSize>("copy_with_zeros",
                                 CopyWithZeros<T>{x.elements(), rows, x.width(), x.data<T>(), copy.data<T>()},
                                 {x.raw(), copy.raw()}, stream);
  });
  return copy;
}

/// Runs `call` with `to` as its result; with a count in device memory, into workspace, of which only the real
/// rows are copied (or added) to `to`.
void gemm_rows(Gemm call, const Rows& rows, const Tensor& to, bool accumulate, Runtime& runtime,
               const Stream& stream) {
  call.c = to;
  call.accumulate = accumulate;
  if (rows.count == nullptr) {
    gemm(call, runtime, stream);
    return;
  }
  call.c = Tensor::empty(runtime, to.shape(), to.dtype(), Tag::workspace, "gemm result");
  call.accumulate = false;
  gemm(call, runtime, stream);
  // Without offsets a segment is one row: a copy or an addition row by row.
  segment_sum_kernels.segment_sum(
      {.segments = rows, .offsets = {}, .order = {}, .x = call.c, .out = to, .accumulate = accumulate},
      stream);
}

void forward(const LinearForward& args, Runtime& runtime, const Stream& stream) {
  if (args.x.width() == 0 && args.accumulate) return;  // no term, and none may be multiplied
  Tensor bias = args.bias;
  // cuBLASLt's bias epilogue needs the result's dtype.
  if (bias.defined() && bias.dtype() != args.y.dtype()) {
    bias = Tensor::empty(runtime, args.bias.shape(), args.y.dtype(), Tag::workspace, "bias");
    elementwise_kernels.cast({args.bias, bias}, stream);
  }
  gemm_rows({.a = args.x, .b = args.weight, .c = {}, .bias = bias}, args.rows, args.y, args.accumulate,
            runtime, stream);
}

void backward(const LinearBackward& args, Runtime& runtime, const Stream& stream) {
  if (args.d_bias.defined()) add_column_sums(args.rows, args.d_y, args.d_bias, runtime, stream);
  if (args.d_weight.defined() && args.d_weight.elements() > 0) {
    gemm({.a = real_rows_of(args.x, args.rows, runtime, stream),
          .b = real_rows_of(args.d_y, args.rows, runtime, stream),
          .c = args.d_weight,
          .transpose_a = true,
          .accumulate = true,
          .bias = {}},
         runtime, stream);
  }
  if (args.d_x.defined() && args.d_x.width() > 0) {
    gemm_rows({.a = args.d_y, .b = args.weight, .c = {}, .transpose_b = true, .bias = {}}, args.rows,
              args.d_x, args.accumulate_d_x, runtime, stream);
  }
}

}  // namespace

const LinearKernels linear_kernels{.forward = forward, .backward = backward};

}  // namespace meshgrad::cuda
