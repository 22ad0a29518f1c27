// SPDX-License-Identifier: Apache-2.0
// What the slice attention's kernels share: small matrices in a block's shared memory, as floats, their
// products, and softmax over their rows. All of them are for the whole block, without barriers of their own.
#pragma once
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/kernels/cuda/row_access.h>
#include <meshgrad/kernels/slice_attention.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace meshgrad::cuda {

inline constexpr int kSliceThreads = 128;
inline constexpr int kSliceWarps = kSliceThreads / 32;
/// Of a block; every GPU since compute capability 8.0 has 99 KiB.
inline constexpr int kSliceSharedBytes = 96 * 1024;

/// Pitches are odd, so that neighbouring rows lie in other banks.
struct SharedMatrix {
  float* data;
  int pitch;
  __device__ float& at(int i, int j) const { return data[i * pitch + j]; }
};
constexpr int odd(int width) { return width | 1; }

/// A matrix of so wide rows at a place of the block's dynamic shared memory.
__device__ inline SharedMatrix matrix_at(int place, int width) {
  return {dynamic_shared<float>() + place, odd(width)};
}

/// Hands out places in shared memory, in floats.
struct SharedPlaces {
  int used = 0;
  constexpr int take(int rows, int pitch) {
    const int place = used;
    used += rows * pitch;
    return place;
  }
};

/// The layout with the most of 64, 32 or 16 rows a tile that fit into a thread block of the device. With
/// kSliceSharedBytes the least fits; throws InvalidArgument where a device has less and it does not.
template <class Layout>
Layout largest_layout(const Layout& of, int device) {
  const int most = std::min(kSliceSharedBytes, gpu::shared_bytes(device));
  Layout layout = of;
  for (layout.rows = 64;; layout.rows /= 2) {
    layout.place();
    if (layout.floats * 4 <= most) return layout;
    if (layout.rows == 16) break;
  }
  throw invalid_argument(
      "slice_attention",
      "slices and columns of a head that fit into " + std::to_string(most) + " bytes of shared memory",
      std::to_string(layout.floats * 4) + " bytes");
}

/// Calls body(i, j, sum over k < depth of a(i, k) b(k, j)) for i < m, j < n. A thread has 4 x 4 of them at a
/// time, far from each other, so that neighbouring threads read neighbouring columns.
template <class A, class B, class Body>
__device__ void block_product(int m, int n, int depth, const A& a, const B& b, const Body& body) {
  constexpr int kSide = 4;
  const int row_step = (m + kSide - 1) / kSide, column_step = (n + kSide - 1) / kSide;
  for (int item = static_cast<int>(threadIdx.x); item < row_step * column_step; item += kSliceThreads) {
    const int row = item / column_step, column = item % column_step;
    float sums[kSide][kSide] = {};
    for (int k = 0; k < depth; ++k) {
      float left[kSide], right[kSide];
#pragma unroll
      for (int i = 0; i < kSide; ++i) left[i] = a(min(row + i * row_step, m - 1), k);
#pragma unroll
      for (int j = 0; j < kSide; ++j) right[j] = b(k, min(column + j * column_step, n - 1));
#pragma unroll
      for (int i = 0; i < kSide; ++i) {
#pragma unroll
        for (int j = 0; j < kSide; ++j) sums[i][j] += left[i] * right[j];
      }
    }
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
#pragma unroll
      for (int j = 0; j < kSide; ++j) {
        if (row + i * row_step < m && column + j * column_step < n)
          body(row + i * row_step, column + j * column_step, sums[i][j]);
      }
    }
  }
}

/// Rows of x [rows, n] become softmax(scale x), those from `valid` on 0. A NaN makes its row NaN.
__device__ inline void block_softmax(const SharedMatrix& x, int rows, int valid, int n, float scale) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < rows; i += kSliceWarps) {
    float most = -INFINITY, sum = 0.0f;
    for (int j = lane; j < n; j += 32) most = fmaxf(most, scale * x.at(i, j));
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    for (int j = lane; j < n; j += 32) {
      const float e = expf(scale * x.at(i, j) - most);
      x.at(i, j) = e;
      sum += e;
    }
    sum = warp_sum(sum);
    for (int j = lane; j < n; j += 32) x.at(i, j) = i < valid ? x.at(i, j) / sum : 0.0f;
  }
}
/// d = scale s (d - sum of s d), row by row: the gradient of x, with s such a result.
__device__ inline void block_softmax_backward(const SharedMatrix& s, const SharedMatrix& d, int rows, int n,
                                              float scale) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < rows; i += kSliceWarps) {
    float mean = 0.0f;
    for (int j = lane; j < n; j += 32) mean += s.at(i, j) * d.at(i, j);
    mean = warp_sum(mean);
    for (int j = lane; j < n; j += 32) d.at(i, j) = scale * s.at(i, j) * (d.at(i, j) - mean);
  }
}

/// to [rows, columns] = rows of `stride` elements in storage, of which `valid` are read; the others are 0.
template <class T>
__device__ void load_block(const SharedMatrix& to, const T* from, int64_t stride, int rows, int valid,
                           int columns) {
  for (int item = static_cast<int>(threadIdx.x); item < rows * columns; item += kSliceThreads) {
    const int i = item / columns, j = item % columns;
    to.at(i, j) = i < valid ? to_float(from[i * stride + j]) : 0.0f;
  }
}
template <class T>
__device__ void store_value(T* to, float value, bool add) {
  *to = to_storage<T>(add ? to_float(*to) + value : value);
}

void token_attention_forward(const TokenAttentionForward& args, Runtime& runtime, const Stream& stream);
void token_attention_backward(const TokenAttentionBackward& args, Runtime& runtime, const Stream& stream);

}  // namespace meshgrad::cuda
