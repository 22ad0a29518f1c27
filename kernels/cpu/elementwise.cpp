// SPDX-License-Identifier: Apache-2.0
// Elementwise ops are bound by memory: each task converts a piece to the accumulation dtype in a buffer that
// stays in the first cache, computes there, and rounds once on the way out.
#include <meshgrad/kernels/cpu/mlp_tile.h>
#include <meshgrad/kernels/tables.h>

#include <algorithm>
#include <array>

namespace meshgrad::cpu {
namespace {

constexpr int64_t kChunk = 16384;  // elements of a task: enough to outweigh starting it

/// Calls body(begin, end) for chunks of n elements. Chunks do not depend on the number of threads.
template <class Body>
void over_chunks(const Stream& stream, int64_t n, Body&& body) {
  stream.parallel_for((n + kChunk - 1) / kChunk,
                      [&](int64_t task) { body(task * kChunk, std::min(n, (task + 1) * kChunk)); });
}

/// Elements converted together, in a buffer on the stack: 4 KiB of f32.
constexpr int64_t kBuffer = 1024;
template <class T>
using Buffer = std::array<T, static_cast<size_t>(kBuffer)>;

/// Calls body(offset, count) for up to kBuffer elements at a time, which are no rows: they count as one.
template <class Body>
void over_buffers(const Stream& stream, int64_t n, Body&& body) {
  over_chunks(stream, n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kBuffer) body(i, std::min(kBuffer, end - i));
  });
}

template <class S>
void activation_forward_of(const ActivationForward& args, const Stream& stream) {
  const RowOps<S>& ops = row_ops<S>();
  over_buffers(stream, args.y.elements(), [&](int64_t begin, int64_t n) {
    Buffer<Accumulator<S>> y;
    ops.activate(args.activation, 1, n, args.x.data<S>() + begin, 0, y.data(), 0);
    ops.store(1, n, y.data(), 0, args.y.data<S>() + begin, 0);
  });
}

template <class S>
void activation_backward_of(const ActivationBackward& args, const Stream& stream) {
  const RowOps<S>& ops = row_ops<S>();
  over_buffers(stream, args.d_x.elements(), [&](int64_t begin, int64_t n) {
    Buffer<Accumulator<S>> d_x;
    ops.load(1, n, args.d_y.data<S>() + begin, 0, d_x.data(), 0);
    ops.activate_backward(args.activation, 1, n, args.x.data<S>() + begin, 0, d_x.data(), 0);
    (args.accumulate ? ops.add_to_stored : ops.store)(1, n, d_x.data(), 0, args.d_x.data<S>() + begin, 0);
  });
}

/// Workspace: kTileRows rows of the accumulation dtype for each worker thread.
template <class S>
Tensor tile_per_worker(int64_t width, Runtime& runtime, const Stream& stream) {
  return Tensor::empty(runtime, Shape{stream.threads(), kTileRows<S> * width}, dtype_of<Accumulator<S>>(),
                       Tag::workspace, "tiles");
}
/// The calling worker's part of it.
template <class S>
Accumulator<S>* own_tile(const Tensor& tiles) {
  return tiles.data<Accumulator<S>>() + ThreadPool::worker() * tiles.width();
}

template <class S>
void norm_forward_of(const NormForward& args, Runtime& runtime, const Stream& stream) {
  using T = Accumulator<S>;
  const RowOps<S>& ops = row_ops<S>();
  const int64_t rows = args.rows.value();
  const int64_t width = args.x.width();
  const Tensor tiles = tile_per_worker<S>(width, runtime, stream);
  stream.parallel_for((rows + kTileRows<S> - 1) / kTileRows<S>, [&](int64_t task) {
    const int64_t row = task * kTileRows<S>;
    const int64_t count = std::min(kTileRows<S>, rows - row);
    T* const tile = own_tile<S>(tiles);
    ops.load(count, width, args.x.data<S>() + row * width, width, tile, width);
    ops.norm(args.norm, count, width, tile, width, args.gain.data<T>(), args.bias.data_or_null<T>(),
             static_cast<T>(args.epsilon), {.out = args.y.data<S>() + row * width});
  });
}

/// Parameter gradients are summed per slab of rows and then over slabs in order. Slabs are cut by the number
/// of rows, so the result does not depend on threads. A slab's row of `sums` is d_gain, then d_bias.
template <class S>
void norm_backward_of(const NormBackward& args, Runtime& runtime, const Stream& stream) {
  using T = Accumulator<S>;
  const RowOps<S>& ops = row_ops<S>();
  const int64_t rows = args.rows.value();
  const int64_t width = args.x.width();
  const int64_t slabs = gradient_slabs(rows);
  const int64_t slab_rows = (rows + slabs - 1) / slabs;
  const Tensor sums =
      Tensor::zeros(runtime, Shape{slabs, 2 * width}, dtype_of<T>(), Tag::workspace, "gradient slabs");
  const Tensor tiles = tile_per_worker<S>(width, runtime, stream);
  stream.parallel_for(slabs, [&](int64_t slab) {
    T* d_gain = sums.data<T>() + slab * 2 * width;
    T* const d_x = own_tile<S>(tiles);
    for (int64_t row = slab * slab_rows; row < std::min(rows, (slab + 1) * slab_rows); row += kTileRows<S>) {
      const int64_t count = std::min({kTileRows<S>, rows - row, (slab + 1) * slab_rows - row});
      ops.load(count, width, args.d_y.data<S>() + row * width, width, d_x, width);
      ops.norm_backward(args.norm, count, width, args.x.data<S>() + row * width, width, args.gain.data<T>(),
                        static_cast<T>(args.epsilon), d_x, width, d_x, width, d_gain, d_gain + width,
                        nullptr);
      (args.accumulate ? ops.add_to_stored : ops.store)(count, width, d_x, width,
                                                        args.d_x.data<S>() + row * width, width);
    }
  });
  const RowOps<T>& total = row_ops<T>();
  stream.run([&] {
    const T* d_gain = sums.data<T>();
    total.sum_rows({.accumulate = true}, 0, slabs, width, d_gain, 2 * width, args.d_gain.data<T>());
    if (args.d_bias.defined())
      total.sum_rows({.accumulate = true}, 0, slabs, width, d_gain + width, 2 * width, args.d_bias.data<T>());
  });
}

template <class S>
void axpby_of(const Axpby& args, const Stream& stream) {
  using T = Accumulator<S>;
  const RowOps<S>& ops = row_ops<S>();
  const T a = static_cast<T>(args.a);
  const T b = static_cast<T>(args.b);
  over_buffers(stream, args.y.elements(), [&](int64_t begin, int64_t n) {
    Buffer<T> x, y;
    ops.load(1, n, args.x.data<S>() + begin, 0, x.data(), 0);
    ops.load(1, n, args.y.data<S>() + begin, 0, y.data(), 0);
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) y[i] = a * x[i] + b * y[i];
    ops.store(1, n, y.data(), 0, args.y.data<S>() + begin, 0);
  });
}

/// half and bfloat16 convert from and to float only: between them and f64 a value goes through f32.
template <class From, class To>
void cast_of(const Cast& args, const Stream& stream) {
  over_chunks(stream, args.to.elements(), [&](int64_t begin, int64_t end) {
    const From* from = args.from.data<From>();
    To* to = args.to.data<To>();
    for (int64_t i = begin; i < end; ++i) {
      if constexpr (sizeof(From) + sizeof(To) >= 12) {
        to[i] = static_cast<To>(from[i]);  // between f64 and f32 or f64: 8 + 4 bytes or more
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
          dispatch_cpu_storage(args.y.dtype(), [&]<class S>() { activation_forward_of<S>(args, stream); });
        },
    .activation_backward =
        [](const ActivationBackward& args, const Stream& stream) {
          dispatch_cpu_storage(args.d_x.dtype(), [&]<class S>() { activation_backward_of<S>(args, stream); });
        },
    .norm_forward =
        [](const NormForward& args, Runtime& runtime, const Stream& stream) {
          dispatch_cpu_storage(args.y.dtype(), [&]<class S>() { norm_forward_of<S>(args, runtime, stream); });
        },
    .norm_backward =
        [](const NormBackward& args, Runtime& runtime, const Stream& stream) {
          dispatch_cpu_storage(args.d_x.dtype(),
                               [&]<class S>() { norm_backward_of<S>(args, runtime, stream); });
        },
    .axpby =
        [](const Axpby& args, const Stream& stream) {
          dispatch_cpu_storage(args.y.dtype(), [&]<class S>() { axpby_of<S>(args, stream); });
        },
    .cast =
        [](const Cast& args, const Stream& stream) {
          dispatch_cpu_storage(args.from.dtype(), [&]<class From>() {
            dispatch_cpu_storage(args.to.dtype(), [&]<class To>() { cast_of<From, To>(args, stream); });
          });
        },
};

}  // namespace meshgrad::cpu
