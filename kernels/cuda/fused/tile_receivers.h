// SPDX-License-Identifier: Apache-2.0
// Sums over each receiver's edges inside fused edge kernels. Edges are sorted by receiver and a warp owns
// whole receivers, so that one warp adds all edges of a receiver in edge order: no atomics, and the same bits
// whatever the number of warps. A receiver with very many edges is a single warp's work.
#pragma once
#include <meshgrad/kernels/cuda/fused/tile.h>

namespace meshgrad::cuda {

/// The connectivity that edge kernels read, and the real counts. Indices are 32-bit as in Graph.
struct EdgeList {
  const int32_t* senders;
  const int32_t* receivers;
  const int32_t* receiver_offsets;
  const int64_t* edge_count;   ///< null: edge_capacity
  const int64_t* owned_count;  ///< null: owned_capacity
  int64_t edge_capacity, owned_capacity;
};

/// One warp's receivers and their edges, both contiguous.
struct EdgeRange {
  int receiver_begin, receiver_end;
  int edge_begin, edge_end;
};

/// Part `part` of `parts`: an equal share of the edges, with both ends moved up to the next first edge of a
/// receiver. The parts contain every owned receiver exactly once, also those without edges, whose sum is 0.
__device__ inline EdgeRange edge_range(const EdgeList& list, int part, int parts) {
  const int64_t edges = list.edge_count == nullptr ? list.edge_capacity : *list.edge_count;
  const int64_t owned = list.owned_count == nullptr ? list.owned_capacity : *list.owned_count;
  const auto first_receiver = [&](int which) {
    if (which == parts) return static_cast<int>(owned);
    const int64_t edge = edges * which / parts;  // 64-bit: the product passes 2^31
    return edge == 0 ? 0 : list.receivers[edge - 1] + 1;
  };
  EdgeRange range;
  range.receiver_begin = uniform(first_receiver(part));
  range.receiver_end = uniform(first_receiver(part + 1));
  const bool any = range.receiver_begin < range.receiver_end;
  range.edge_begin = uniform(any ? list.receiver_offsets[range.receiver_begin] : 0);
  range.edge_end = uniform(any ? list.receiver_offsets[range.receiver_end] : 0);
  return range;
}

/// Sums rows by receiver, tile by tile, and stores each sum once it is complete. The sum of the current
/// receiver is in registers, lane l with columns 64 run + 2 l and the next, and continues over tiles.
///
/// In a tile, eight neighbouring rows are in eight different lanes (lane / 4), while an ordered sum needs all
/// rows of a column in one lane. So the tile passes through shared memory, eight rows at a time: `stage` is
/// [8, kStageRow] floats per warp.
template <class T, int W>
class ReceiverSums {
 public:
  /// Two floats of padding. Writing, lanes 4 r + q of a half-warp store 8 bytes at bank 2 r + 8 q + i (mod
  /// 32): 16 different pairs of banks. Reading, a warp takes 256 contiguous bytes of one row. Neither
  /// conflicts, and rows stay 8-byte aligned.
  static constexpr int kStageRow = W + 2;
  static constexpr int kStageFloats = 8 * kStageRow;
  /// `stage` is the warp's own, 8-byte aligned; `out` is [owned_nodes, W].
  __device__ ReceiverSums(float* stage, T* out, const EdgeRange& range)
      : stage_(stage), out_(out), receiver_(range.receiver_begin), end_(range.receiver_end) {}

  /// Adds the tile's first `count` rows (none if it is negative); lane i < count passes the receiver of row
  /// i, which must not decrease from call to call.
  template <int bands, int groups>
  __device__ void add(Sums<bands, groups>& rows, int receiver, int count) {
    // Bit i: row i is the first of another receiver than the row before it, or the first behind the last.
    const int before = __shfl_up_sync(0xffffffffu, receiver, 1);
    const bool starts_here = receiver != (lane_index() == 0 ? receiver_ : before) || lane_index() == count;
    const uint32_t starts = __ballot_sync(0xffffffffu, starts_here);
    // One copy of the sums for all eights of rows: only the staging names registers.
#pragma unroll 1
    for (int first = 0; first < min(count, 16 * bands); first += 8) {
#pragma unroll
      for (int band = 0; band < bands; ++band)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (first == 16 * band + 8 * half) stage(rows, band, half);
      __syncwarp();  // other lanes' columns are staged
      add_staged(receiver, starts, first, count);
      __syncwarp();  // and read, before the next eight rows overwrite them
    }
  }
  /// Stores the last sum, and zeros for the receivers without edges behind it.
  __device__ void finish() { store_sums_before(end_); }

 private:
  static constexpr int kBatch = 4;
  static constexpr int kRuns = W / 64;  // runs of 64 columns, of which a lane has two neighbours each
  struct alignas(8) Two {
    float a, b;
  };
  struct alignas(4) Stored {
    T a, b;
  };

  /// Stores the sums of all receivers before `receiver` and starts the next from 0. The branch is uniform:
  /// all lanes have the same receivers. A store is 128 contiguous bytes per run.
  __device__ void store_sums_before(int receiver) {
#pragma unroll 1
    for (; receiver_ < receiver; ++receiver_) {
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        T* to = out_ + int64_t{receiver_} * W + 64 * run + 2 * lane_index();
        *reinterpret_cast<Stored*>(to) = {to_storage<T>(sums_[run].a), to_storage<T>(sums_[run].b)};
        sums_[run] = {};
      }
    }
  }
  template <int bands, int groups>
  __device__ void stage(Sums<bands, groups>& rows, int band, int half) {
    float* to = stage_ + kStageRow * (lane_index() / 4) + lane_column();
#pragma unroll
    for (int group = 0; group < groups; ++group)
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        *reinterpret_cast<Two*>(to + 32 * group + i) = {rows.at(band, half, group, i),
                                                        rows.at(band, half, group, i + 1)};
      }
  }
  /// Adds the staged rows first .. first + 7 of the tile, as far as they are below `count`. kBatch of them
  /// are read before the first is added: one wait instead of as many.
  __device__ void add_staged(int receiver, uint32_t starts, int first, int count) {
#pragma unroll
    for (int batch = 0; batch < 8; batch += kBatch) {
      Two values[kBatch][kRuns];
#pragma unroll
      for (int row = 0; row < kBatch; ++row)
#pragma unroll
        for (int run = 0; run < kRuns; ++run)
          values[row][run] =
              *reinterpret_cast<const Two*>(stage_ + kStageRow * (batch + row) + 64 * run + 2 * lane_index());
#pragma unroll
      for (int row = 0; row < kBatch; ++row) {
        const int at = first + batch + row;
        if (starts >> at & 1u) {
          if (at >= count) return;
          store_sums_before(__shfl_sync(0xffffffffu, receiver, at));
        }
#pragma unroll
        for (int run = 0; run < kRuns; ++run) {
          sums_[run].a += values[row][run].a;
          sums_[run].b += values[row][run].b;
        }
      }
    }
  }

  float* stage_;
  T* out_;
  int receiver_, end_;
  Two sums_[kRuns] = {};
};

}  // namespace meshgrad::cuda
