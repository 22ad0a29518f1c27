// SPDX-License-Identifier: Apache-2.0
// Row access: the real row count, and the part of a row that one lane holds. A row belongs to a group of
// `lanes` neighbouring threads (a power of two, at most a warp). An access is kElements neighbouring values,
// one 16-byte vector or one scalar, and lane l of the group holds accesses l, l + lanes, l + 2 lanes, ...:
//
//   access 0 of lanes 0 1 .. lanes-1 | access 1 of lanes 0 1 .. lanes-1 | ...
//
// so that a group reads contiguous memory at each step. 128 columns of f16 are 16 lanes with one access of 8
// values, two rows to a warp.
#pragma once
#include <meshgrad/engine/tensor.h>
#include <meshgrad/kernels/cuda/device.h>

namespace meshgrad::cuda {

inline constexpr int kRowThreads = 128;  // per block of row kernels
inline constexpr int kRowWarps = kRowThreads / 32;

/// Rows to process. A captured graph replays with other meshes, so the count may be known to the device only.
__device__ inline int64_t real_rows(const Rows& rows) {
  return rows.count != nullptr ? *rows.count : rows.capacity;
}

/// kElements values as floats: one scalar, or whole vectors from a 16-byte aligned address.
template <int kElements, class T>
__device__ void load_floats(const T* from, float (&to)[kElements]) {
  if constexpr (kElements == 1) {
    to[0] = to_float(from[0]);
  } else {
    constexpr int kSize = Vector<T>::kSize;
    static_assert(kElements % kSize == 0);
#pragma unroll
    for (int part = 0; part < kElements; part += kSize) {
      const Vector<T> vector = *reinterpret_cast<const Vector<T>*>(from + part);
#pragma unroll
      for (int i = 0; i < kSize; ++i) to[part + i] = to_float(vector.v[i]);
    }
  }
}

template <int kElements, class T>
__device__ void store_floats(T* to, const float (&from)[kElements]) {
  if constexpr (kElements == 1) {
    to[0] = to_storage<T>(from[0]);
  } else {
    constexpr int kSize = Vector<T>::kSize;
    static_assert(kElements % kSize == 0);
#pragma unroll
    for (int part = 0; part < kElements; part += kSize) {
      Vector<T> vector;
#pragma unroll
      for (int i = 0; i < kSize; ++i) vector.v[i] = to_storage<T>(from[part + i]);
      *reinterpret_cast<Vector<T>*>(to + part) = vector;
    }
  }
}

/// One lane's part of a row, in registers; kAccesses = 0: for rows of any width, reloaded at each use.
template <class T, int kElements, int kAccesses>
struct RowPart {
  const T* row = nullptr;
  int lane = 0, lanes = 1, width = 0;
  float v[kAccesses > 0 ? kAccesses : 1][kElements];

  __device__ int column(int access) const { return (access * lanes + lane) * kElements; }
  __device__ int accesses() const {
    return kAccesses > 0 ? kAccesses : (width + lanes * kElements - 1) / (lanes * kElements);
  }
  /// Calls body(access, column) for each access of this lane within the row. The trip count is a constant
  /// when kAccesses > 0, so that `v` is indexed statically and stays in registers.
  template <class Body>
  __device__ void each(const Body& body) const {
#pragma unroll
    for (int access = 0; access < accesses(); ++access) {
      if (column(access) < width) body(access, column(access));
    }
  }
  /// Nothing is read, and every value is 0, when `valid` is false.
  __device__ void load(const T* from, bool valid) {
    row = from;
    if constexpr (kAccesses > 0) {
#pragma unroll
      for (int access = 0; access < kAccesses; ++access) {
        if (valid && column(access) < width) {
          load_floats(row + column(access), v[access]);
        } else {
#pragma unroll
          for (int i = 0; i < kElements; ++i) v[access][i] = 0.0f;
        }
      }
    } else {
      if (!valid) width = 0;
    }
  }
  /// The values of an access that lies within the row.
  __device__ const float (&at(int access))[kElements] {
    if constexpr (kAccesses > 0) {
      return v[access];
    } else {
      load_floats(row + column(access), v[0]);
      return v[0];
    }
  }
};

/// Sum over a group's lanes, in all of them. The whole warp must call, since the mask is full; steps below
/// `lanes` stay within the group because groups are aligned.
__device__ inline float group_sum(float x, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

/// Sum over the groups of a warp of the values at the same place in each group.
__device__ inline float sum_of_groups(float x, int lanes) {
  for (int step = lanes; step < 32; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

/// Lanes of a row's group: the fewest that hold the row in one access each, at most a warp.
inline int lanes_of(int64_t width, int elements) {
  int lanes = 1;
  while (lanes < 32 && int64_t{lanes} * elements < width) lanes *= 2;
  return lanes;
}

/// True when rows of `width` elements that start at these addresses can be read as vectors.
template <class T>
bool vectors_fit(int64_t width, std::initializer_list<const void*> addresses) {
  bool fit = width % Vector<T>::kSize == 0;
  for (const void* address : addresses) fit = fit && reinterpret_cast<uintptr_t>(address) % 16 == 0;
  return fit;
}

/// Calls `body.template operator()<kElements, kAccesses>()` for rows of this width. At most 1024 columns are
/// held in registers, 32 values a lane; wider rows have kAccesses = 0.
///
///   vectors, one per lane      up to 128 columns of f32, 256 of 16 bits
///   vectors, 32 values a lane  up to 1024
///   scalars, 4 or 32 a lane    up to 128 or 1024; for widths or addresses that 16 bytes do not divide
template <class T, class Body>
void dispatch_row(int64_t width, bool vectors, Body&& body) {
  constexpr int kVector = Vector<T>::kSize;
  if (vectors && width <= 32 * kVector) {
    body.template operator()<kVector, 1>();
  } else if (vectors && width <= 1024) {
    body.template operator()<kVector, 1024 / (32 * kVector)>();
  } else if (width <= 128) {
    body.template operator()<1, 4>();
  } else if (width <= 1024) {
    body.template operator()<1, 32>();
  } else {
    body.template operator()<1, 0>();
  }
}

/// The graph of a node: the last one that starts at it or before, empty ones left out.
__device__ inline int64_t graph_of(const int32_t* starts, int64_t graphs, int64_t node) {
  int64_t low = 0, high = graphs;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (starts[middle] > node) {
      high = middle;
    } else {
      low = middle;
    }
  }
  return low;
}

}  // namespace meshgrad::cuda
