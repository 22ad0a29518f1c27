// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cpu/mlp_tile.h>
#include <meshgrad/kernels/elementwise.h>

#include <algorithm>
#include <vector>

namespace meshgrad::cpu {
namespace {

constexpr int64_t kChunk = 16384;  // elements of a task

/// Cuts n elements into chunks that do not depend on threads.
template <class Body>
void over_chunks(const Stream& stream, int64_t n, Body&& body) {
  stream.parallel_for((n + kChunk - 1) / kChunk,
                      [&](int64_t task) { body(task * kChunk, std::min(n, (task + 1) * kChunk)); });
}

template <class T>
void activation_forward_of(const ActivationForward& args, const Stream& stream) {
  over_chunks(stream, args.y.elements(), [&](int64_t begin, int64_t end) {
    tile_ops<T>().activate(args.activation, 1, end - begin, args.x.data<T>() + begin, 0,
                           args.y.data<T>() + begin, 0);
  });
}

template <class T>
void activation_backward_of(const ActivationBackward& args, const Stream& stream) {
  const TileOps<T>& ops = tile_ops<T>();
  over_chunks(stream, args.d_x.elements(), [&](int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    const T* x = args.x.data<T>() + begin;
    const T* d_y = args.d_y.data<T>() + begin;
    T* d_x = args.d_x.data<T>() + begin;
    if (args.accumulate) {
      std::vector<T> slope(d_y, d_y + n);
      ops.activate_backward(args.activation, 1, n, x, 0, slope.data(), 0);
      ops.add(1, n, slope.data(), 0, d_x, 0);
    } else {
      if (d_x != d_y) ops.copy(1, n, d_y, 0, d_x, 0);
      ops.activate_backward(args.activation, 1, n, x, 0, d_x, 0);
    }
  });
}

template <class T>
void norm_forward_of(const NormForward& args, const Stream& stream) {
  const int64_t rows = args.rows.value();
  const int64_t width = args.x.width();
  stream.parallel_for((rows + kTileRows - 1) / kTileRows, [&](int64_t task) {
    const int64_t row = task * kTileRows;
    tile_ops<T>().norm(args.norm, std::min(kTileRows, rows - row), width, args.x.data<T>() + row * width,
                       width, args.gain.data<T>(), args.bias.defined() ? args.bias.data<T>() : nullptr,
                       static_cast<T>(args.epsilon), args.y.data<T>() + row * width, width);
  });
}

template <class T>
void norm_backward_of(const NormBackward& args, Runtime& runtime, const Stream& stream) {
  const TileOps<T>& ops = tile_ops<T>();
  const int64_t rows = args.rows.value();
  const int64_t width = args.x.width();
  const int64_t slabs = gradient_slabs(rows);
  const int64_t slab_rows = (rows + slabs - 1) / slabs;
  const Tensor sums =
      Tensor::zeros(runtime, Shape{slabs, 2 * width}, dtype_of<T>(), Tag::workspace, "gradient slabs");
  stream.parallel_for(slabs, [&](int64_t slab) {
    T* d_gain = sums.data<T>() + slab * 2 * width;
    std::vector<T> tile(static_cast<size_t>(kTileRows * width));
    for (int64_t row = slab * slab_rows; row < std::min(rows, (slab + 1) * slab_rows); row += kTileRows) {
      const int64_t count = std::min({kTileRows, rows - row, (slab + 1) * slab_rows - row});
      ops.norm_backward(args.norm, count, width, args.x.data<T>() + row * width, width, args.gain.data<T>(),
                        static_cast<T>(args.epsilon), args.d_y.data<T>() + row * width, width, tile.data(),
                        width, d_gain, d_gain + width);
      (args.accumulate ? ops.add : ops.copy)(count, width, tile.data(), width,
                                             args.d_x.data<T>() + row * width, width);
    }
  });
  for (int64_t slab = 0; slab < slabs; ++slab) {
    const T* d_gain = sums.data<T>() + slab * 2 * width;
    ops.add(1, width, d_gain, 0, args.d_gain.data<T>(), 0);
    if (args.d_bias.defined()) ops.add(1, width, d_gain + width, 0, args.d_bias.data<T>(), 0);
  }
}

template <class T>
void axpby_of(const Axpby& args, const Stream& stream) {
  const T a = static_cast<T>(args.a);
  const T b = static_cast<T>(args.b);
  over_chunks(stream, args.y.elements(), [&](int64_t begin, int64_t end) {
    const T* x = args.x.data<T>();
    T* y = args.y.data<T>();
    for (int64_t i = begin; i < end; ++i) y[i] = a * x[i] + b * y[i];
  });
}

/// Calls body<T>() with any floating type.
template <class Body>
void dispatch_floating(DType dtype, Body&& body) {
  if (dtype == DType::f64) {
    body.template operator()<double>();
  } else {
    dispatch_gpu_storage(dtype, body);
  }
}

template <class From, class To>
void cast_of(const Cast& args, const Stream& stream) {
  over_chunks(stream, args.to.elements(), [&](int64_t begin, int64_t end) {
    const From* from = args.from.data<From>();
    To* to = args.to.data<To>();
    for (int64_t i = begin; i < end; ++i) {
      if constexpr (sizeof(From) + sizeof(To) >= 12) {
        to[i] = static_cast<To>(from[i]);  // f64 with f32 or f64
      } else {
        to[i] = static_cast<To>(static_cast<float>(from[i]));
      }
    }
  });
}

}  // namespace

const ElementwiseKernels elementwise_kernels{
    .activation_forward =
        [](const ActivationForward& args, const Stream& stream) {
          dispatch_storage(args.y.dtype(), [&]<class T>() { activation_forward_of<T>(args, stream); });
        },
    .activation_backward =
        [](const ActivationBackward& args, const Stream& stream) {
          dispatch_storage(args.d_x.dtype(), [&]<class T>() { activation_backward_of<T>(args, stream); });
        },
    .norm_forward =
        [](const NormForward& args, const Stream& stream) {
          dispatch_storage(args.y.dtype(), [&]<class T>() { norm_forward_of<T>(args, stream); });
        },
    .norm_backward =
        [](const NormBackward& args, Runtime& runtime, const Stream& stream) {
          dispatch_storage(args.d_x.dtype(), [&]<class T>() { norm_backward_of<T>(args, runtime, stream); });
        },
    .axpby =
        [](const Axpby& args, const Stream& stream) {
          dispatch_storage(args.y.dtype(), [&]<class T>() { axpby_of<T>(args, stream); });
        },
    .cast =
        [](const Cast& args, const Stream& stream) {
          dispatch_floating(args.from.dtype(), [&]<class From>() {
            dispatch_floating(args.to.dtype(), [&]<class To>() { cast_of<From, To>(args, stream); });
          });
        },
};

}  // namespace meshgrad::cpu
