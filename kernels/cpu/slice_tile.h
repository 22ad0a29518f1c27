// SPDX-License-Identifier: Apache-2.0
// Small matrices of the slice attention's CPU kernels, in the accumulation type: tiles of rows, and what they
// are multiplied with, in a worker's scratch memory.
#pragma once
#include <meshgrad/engine/runtime.h>
#include <meshgrad/kernels/cpu/gemm.h>
#include <meshgrad/kernels/slice_attention.h>

namespace meshgrad::cpu {

/// Rows that are padded as gemm.h needs it: `stride` is at least padded(width).
template <class T>
struct SliceTile {
  T* data = nullptr;
  int64_t stride = 0;

  SliceTile from_row(int64_t row) const { return {data + row * stride, stride}; }
  /// Its columns from here on; the stride has kPad columns more than the last part needs.
  SliceTile from_column(int64_t column) const { return {data + column, stride}; }
  StridedMatrix<T> by_rows(int64_t columns) const { return {data, stride, 1, columns}; }
  StridedMatrix<T> transposed(int64_t rows) const { return {data, 1, stride, rows}; }
};

/// c [m, n] = start + a b. `start` may be c.
template <class T>
void multiply(int64_t m, int64_t n, const StridedMatrix<T>& a, const SliceTile<T>& b,
              const InitialSums<T>& start, const SliceTile<T>& c) {
  const GemmOps<T>& gemm = gemm_ops<T>();
  gemm.sum({m, n, a, {b.data, gemm.panel, b.stride}, start}, c.data, c.stride);
}
/// c += a b.
template <class T>
void multiply_add(int64_t m, int64_t n, const StridedMatrix<T>& a, const SliceTile<T>& b,
                  const SliceTile<T>& c) {
  multiply(m, n, a, b, {c.data, c.stride}, c);
}

template <class T>
void transpose(int64_t rows, int64_t columns, const SliceTile<T>& from, const SliceTile<T>& to) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) to.data[j * to.stride + i] = from.data[i * from.stride + j];
}

/// y = x, or y += x, rounded to storage; of exact rows.
template <class S>
void store_rows(int64_t rows, int64_t width, const SliceTile<Accumulator<S>>& x, S* y, bool add) {
  const RowOps<S>& ops = row_ops<S>();
  (add ? ops.add_to_stored : ops.store)(rows, width, x.data, x.stride, y, width);
}

/// Hands out tiles of a worker's memory, or with a null address only counts what they take.
template <class T>
struct TileMemory {
  T* base = nullptr;
  int64_t used = 0;

  SliceTile<T> take(int64_t rows, int64_t width) {
    const SliceTile<T> tile{base != nullptr ? base + used : nullptr, padded(width) + kPad};
    used += rows * tile.stride;
    return tile;
  }
};

/// Memory for each worker's `Tiles`, which Tiles(memory, sizes) takes from a TileMemory.
template <class T, class Tiles>
class WorkerTiles {
 public:
  template <class Sizes>
  WorkerTiles(const Sizes& sizes, Runtime& runtime) {
    TileMemory<T> memory;
    Tiles(memory, sizes);
    size_ = memory.used;
    memory_ = Tensor::empty(runtime, Shape{runtime.stream().threads() * size_}, dtype_of<T>(), Tag::workspace,
                            "tiles");
  }
  /// The calling worker's.
  template <class Sizes>
  Tiles of_worker(const Sizes& sizes) const {
    TileMemory<T> memory{memory_.data<T>() + ThreadPool::worker() * size_};
    return Tiles(memory, sizes);
  }

 private:
  int64_t size_ = 0;
  Tensor memory_;
};

void token_attention_forward(const TokenAttentionForward& args, Runtime& runtime, const Stream& stream);
void token_attention_backward(const TokenAttentionBackward& args, Runtime& runtime, const Stream& stream);

}  // namespace meshgrad::cpu
