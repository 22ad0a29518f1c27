// SPDX-License-Identifier: Apache-2.0
// Weights in slabs and rows in tiles, shared by node terms forward and backward.
#pragma once
#include <meshgrad/kernels/cuda/fused/node_terms.h>
#include <meshgrad/kernels/cuda/fused/tile_weights.h>

namespace meshgrad::cuda::node_tiles {

/// Both weights as slabs of 16 W words in the order in which a tile uses them, 2 W / 32 in all. Each has the
/// layout of tile_weights.h. Up to width 128 all slabs stay in shared memory (64 KiB at 128); of width 256
/// two at a time, and the block's warps use the same slab at the same time.
template <class T, int W, class Order>
class Slabs {
 public:
  static constexpr int kCount = 2 * W / 32;
  static constexpr int kWords = 16 * W;
  static constexpr bool kResident = W < 256;
  static constexpr int kBytes = (kResident ? kCount : 2) * kWords * 4;

  __device__ Slabs(const T* sender, const T* receiver, uint32_t* shared)
      : sender_(sender), receiver_(receiver), shared_(shared) {
    for (int k = 0; k < (kResident ? kCount : 1); ++k) {
      prefetch(k);
      if (kResident) store_prefetched(k);
    }
    __syncthreads();
  }
  /// Slab k. Calls must cycle through 0, 1, .. kCount - 1, all warps alike: when streaming, the next slab is
  /// prefetched into registers while the caller multiplies by this one.
  __device__ const uint32_t* acquire(int k) {
    if constexpr (kResident) return shared_ + k * kWords;
    // Overwrites slab k - 2. Every warp has passed the barrier of slab k - 1 and is done with slab k - 2.
    store_prefetched(k % 2);
    __syncthreads();  // slab k is complete
    prefetch((k + 1) % kCount);
    return shared_ + k % 2 * kWords;
  }

 private:
  static constexpr int kVectors = kWords / 4 / kFusedThreads;  // 16-byte vectors of a slab per thread
  static constexpr int kRowVectors = Order::kColumns / 8;      // and of a row of the slab
  __device__ void prefetch(int k) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = i * kFusedThreads + static_cast<int>(threadIdx.x);
      prefetched_[i] = load_pairs(Order::matrix(k) == 0 ? sender_ : receiver_, W,
                                  Order::row(k) + at / kRowVectors, Order::column(k) + at % kRowVectors * 8);
    }
  }
  __device__ void store_prefetched(int slot) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = i * kFusedThreads + static_cast<int>(threadIdx.x);
      place_weight<Order::kColumns>(shared_ + slot * kWords, at / kRowVectors, at % kRowVectors * 8,
                                    prefetched_[i]);
    }
  }
  const T* sender_;
  const T* receiver_;
  uint32_t* shared_;
  Vector<uint32_t> prefetched_[kVectors];
};

/// Forward: slab k is 32 columns of a weight, all rows; first those of the sender's weight.
template <int W>
struct ColumnSlabs {
  static constexpr int kColumns = 32;
  static constexpr int matrix(int k) { return k / (W / 32); }
  static constexpr int row(int) { return 0; }
  static constexpr int column(int k) { return k % (W / 32) * 32; }
};
/// Backward: 32 rows of the sender's weight, then the same of the receiver's. Transposed, both contribute to
/// the same 32 columns of d_nodes.
template <int W>
struct RowSlabs {
  static constexpr int kColumns = W;
  static constexpr int matrix(int k) { return k % 2; }
  static constexpr int row(int k) { return k / 2 * 32; }
  static constexpr int column(int) { return 0; }
};

/// Adds the 32 columns of x from `column` on to the one group of `sums`.
template <class T, int W, int bands>
__device__ void add_columns(Sums<bands, 1>& sums, const T* x, const LaneRows<bands>& rows, int column) {
#pragma unroll
  for (int band = 0; band < bands; ++band) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const EightFloats values = unpack<T>(load_pairs(x, W, rows.v[band][half], column + lane_column()));
#pragma unroll
      for (int i = 0; i < 8; ++i) sums.at(band, half, 0, i) += values.v[i];
    }
  }
}
/// Stores the one group of `sums` as the 32 columns of y from `column` on.
template <class T, int W, int bands>
__device__ void store_columns(Sums<bands, 1>& sums, T* y, const LaneRows<bands>& rows, int column) {
#pragma unroll
  for (int band = 0; band < bands; ++band) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Vector<uint32_t> words;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words.v[i] = pack<T>(sums.at(band, half, 0, 2 * i), sums.at(band, half, 0, 2 * i + 1));
      }
      store_pairs(y, W, rows.v[band][half], column + lane_column(), words);
    }
  }
}

/// The lane's rows of a tile that starts at row `first`, as far as they are below `end`.
template <int bands>
__device__ LaneRows<bands> rows_from(int first, int end) {
  LaneRows<bands> rows;
#pragma unroll
  for (int band = 0; band < bands; ++band) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + 16 * band + 8 * half + lane_index() / 4;
      rows.v[band][half] = row < end ? row : -1;
    }
  }
  return rows;
}
/// Loads these rows of x, and zeros for those at or behind `end`, which are not read: other warps may be
/// writing them. The base is moved to `first`, so that row 0 of load_operand exists.
template <class T, int bands, int groups>
__device__ void load_tile(Operand<bands, groups>& a, const T* x, int first, int end) {
  if (first < end) {
    load_operand(a, x + int64_t{first} * 32 * groups, rows_from<bands>(0, end - first));
  } else {
    a = {};
  }
}

/// The real number of rows.
__device__ inline int rows_of(int capacity, const int64_t* count) {
  return count == nullptr ? capacity : static_cast<int>(*count);
}

/// Calls `body` with the storage type and the width.
template <class Body>
void dispatch(DType dtype, int64_t width, const Body& body) {
  dispatch_gpu_storage(dtype, [&]<class T>() {
    if constexpr (sizeof(T) == 2) {
      if (width == 64) return body.template operator()<T, 64>();
      if (width == 128) return body.template operator()<T, 128>();
      if (width == 256) return body.template operator()<T, 256>();
    }
    check_internal(false, "node terms of a width or dtype that they do not cover");
  });
}

template <class T>
void set_rows(T& args, const Graph& graph) {
  args.counts[0] = graph.node_rows().count;
  args.counts[1] = graph.owned_rows().count;
  args.capacities[0] = static_cast<int>(graph.nodes);
  args.capacities[1] = static_cast<int>(graph.owned_nodes);
}

}  // namespace meshgrad::cuda::node_tiles
