// SPDX-License-Identifier: Apache-2.0
// Elementwise ops are bound by memory: each task converts a piece to the accumulation dtype in a buffer that
// stays in the first cache, computes there, and rounds once on the way out.
#include <meshgrad/kernels/cpu/mlp_tile.h>
#include <meshgrad/kernels/tables.h>

#include <algorithm>
#include <array>
#include <cmath>

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

/// Calls body(begin, end) for ranges of rows of about kChunk elements.
template <class Body>
void over_rows(const Stream& stream, int64_t rows, int64_t width, Body&& body) {
  const int64_t together = std::max<int64_t>(1, kChunk / std::max<int64_t>(1, width));
  stream.parallel_for((rows + together - 1) / together,
                      [&](int64_t task) { body(task * together, std::min(rows, (task + 1) * together)); });
}

template <class S>
void dropout_of(const Dropout& args, const Stream& stream) {
  using T = Accumulator<S>;
  const int64_t width = args.y.width();
  over_rows(stream, args.rows.value(), width, [&](int64_t begin, int64_t end) {
    const DropoutMask mask = mask_of(args.key);
    const RandomKey key = mask.key();
    const T scale = static_cast<T>(mask.scale);
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t row_key = mask.row_key(i);
      const S* const x = args.x.data<S>() + i * width;
      S* const y = args.y.data<S>() + i * width;
      for (int64_t j = 0; j < width; j += 4) {
        const uint32_t kept = mask.keep_four(key, row_key, j / 4);
        for (int64_t c = 0; c < std::min<int64_t>(4, width - j); ++c) {
          const T value = (kept >> c & 1u) != 0 ? scale * static_cast<T>(x[j + c]) : T(0);
          y[j + c] = S(args.accumulate ? static_cast<T>(y[j + c]) + value : value);
        }
      }
    }
  });
}

template <class S>
void add_bias_forward_of(const AddBiasForward& args, const Stream& stream) {
  using T = Accumulator<S>;
  const int64_t width = args.y.width();
  const RowOps<S>& ops = row_ops<S>();
  over_rows(stream, args.y.rows(), width, [&](int64_t begin, int64_t end) {
    Buffer<T> y;
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < width; j += kBuffer) {
        const int64_t n = std::min(kBuffer, width - j), at = i * width + j;
        const T* const bias = args.bias.data<T>() + j;
        ops.load(1, n, args.x.data<S>() + at, 0, y.data(), 0);
        for (int64_t c = 0; c < n; ++c) y[static_cast<size_t>(c)] += bias[c];
        ops.store(1, n, y.data(), 0, args.y.data<S>() + at, 0);
      }
    }
  });
}

/// Summed per slab and then over slabs in order, as parameter gradients of norm_backward.
template <class S>
void add_bias_backward_of(const AddBiasBackward& args, Runtime& runtime, const Stream& stream) {
  using T = Accumulator<S>;
  const int64_t rows = args.rows.value(), width = args.d_y.width();
  const int64_t slabs = gradient_slabs(rows);
  const int64_t slab_rows = (rows + slabs - 1) / slabs;
  const Tensor sums =
      Tensor::empty(runtime, Shape{slabs, width}, dtype_of<T>(), Tag::workspace, "gradient slabs");
  stream.parallel_for(slabs, [&](int64_t slab) {
    row_ops<S>().sum_rows_wide({}, std::min(rows, slab * slab_rows), std::min(rows, (slab + 1) * slab_rows),
                               width, args.d_y.data<S>(), width, sums.data<T>() + slab * width);
  });
  stream.run([&] {
    row_ops<T>().sum_rows({.accumulate = true}, 0, slabs, width, sums.data<T>(), width,
                          args.d_bias.data<T>());
  });
}

/// Whether a is the larger: of equal values, and if it is a NaN.
template <class T>
bool is_first(T a, T b) {
  return a >= b || std::isnan(a);
}

template <class S>
void maximum_forward_of(const MaximumForward& args, const Stream& stream) {
  using T = Accumulator<S>;
  const S *a = args.a.data<S>(), *b = args.b.data<S>();
  S* y = args.y.data<S>();
  over_chunks(stream, args.y.elements(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      y[i] = is_first(static_cast<T>(a[i]), static_cast<T>(b[i])) ? a[i] : b[i];
  });
}

template <class S>
void maximum_backward_of(const MaximumBackward& args, const Stream& stream) {
  using T = Accumulator<S>;
  const S *a = args.a.data<S>(), *b = args.b.data<S>(), *d_y = args.d_y.data<S>();
  S *d_a = args.d_a.data_or_null<S>(), *d_b = args.d_b.data_or_null<S>();
  const auto write = [](S* to, int64_t i, bool accumulate, T gradient) {
    if (to != nullptr) to[i] = S(accumulate ? static_cast<T>(to[i]) + gradient : gradient);
  };
  over_chunks(stream, args.d_y.elements(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const bool first = is_first(static_cast<T>(a[i]), static_cast<T>(b[i]));
      const T gradient = static_cast<T>(d_y[i]);
      write(d_a, i, args.accumulate_d_a, first ? gradient : T(0));
      write(d_b, i, args.accumulate_d_b, first ? T(0) : gradient);
    }
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
    .dropout =
        [](const Dropout& args, const Stream& stream) {
          dispatch_cpu_storage(args.y.dtype(), [&]<class S>() { dropout_of<S>(args, stream); });
        },
    .add_bias_forward =
        [](const AddBiasForward& args, const Stream& stream) {
          dispatch_cpu_storage(args.y.dtype(), [&]<class S>() { add_bias_forward_of<S>(args, stream); });
        },
    .add_bias_backward =
        [](const AddBiasBackward& args, Runtime& runtime, const Stream& stream) {
          dispatch_cpu_storage(args.d_y.dtype(),
                               [&]<class S>() { add_bias_backward_of<S>(args, runtime, stream); });
        },
    .maximum_forward =
        [](const MaximumForward& args, const Stream& stream) {
          dispatch_cpu_storage(args.y.dtype(), [&]<class S>() { maximum_forward_of<S>(args, stream); });
        },
    .maximum_backward =
        [](const MaximumBackward& args, const Stream& stream) {
          dispatch_cpu_storage(args.d_y.dtype(), [&]<class S>() { maximum_backward_of<S>(args, stream); });
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
