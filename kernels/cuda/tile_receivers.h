// SPDX-License-Identifier: Apache-2.0
// Sums over each receiver's edges inside fused edge kernels: a warp owns whole receivers, so that every sum
// runs in edge order in one place, without atomics.
#pragma once
#include <meshgrad/kernels/cuda/tile.h>

namespace meshgrad::cuda {

/// The connectivity that edge kernels read, and the real counts.
struct EdgeList {
  const int32_t* senders;
  const int32_t* receivers;
  const int32_t* receiver_offsets;
  const int64_t* edge_count;   ///< null: edge_capacity
  const int64_t* owned_count;  ///< null: owned_capacity
  int64_t edge_capacity, owned_capacity;
};

/// One warp's receivers and their edges.
struct EdgeRange {
  int receiver_begin, receiver_end;
  int edge_begin, edge_end;
};

/// Part `part` of `parts`: an equal share of the edges, its ends moved to the next receiver's first edge. The
/// parts have every owned receiver once, those without edges too.
__device__ inline EdgeRange edge_range(const EdgeList& list, int part, int parts) {
  const int64_t edges = list.edge_count == nullptr ? list.edge_capacity : *list.edge_count;
  const int64_t owned = list.owned_count == nullptr ? list.owned_capacity : *list.owned_count;
  const auto first_receiver = [&](int which) {
    if (which == parts) return static_cast<int>(owned);
    const int64_t edge = edges * which / parts;
    return edge == 0 ? 0 : list.receivers[edge - 1] + 1;
  };
  EdgeRange range;
  range.receiver_begin = first_receiver(part);
  range.receiver_end = first_receiver(part + 1);
  const bool any = range.receiver_begin < range.receiver_end;
  range.edge_begin = any ? list.receiver_offsets[range.receiver_begin] : 0;
  range.edge_end = any ? list.receiver_offsets[range.receiver_end] : 0;
  return range;
}

/// Adds up rows by receiver, tile by tile, and writes each sum once it is complete.
template <class T, int W>
class ReceiverSums {
 public:
  static constexpr int kStageRow = W + 4;  // the four shift each row's banks: neither way conflicts
  static constexpr int kStageFloats = 8 * kStageRow;
  /// `stage` is the warp's own, 16-byte aligned; `out` is [owned_nodes, W].
  __device__ ReceiverSums(float* stage, T* out, const EdgeRange& range)
      : stage_(stage), out_(out), receiver_(range.receiver_begin), end_(range.receiver_end) {}

  /// The tile's first `count` rows; lane i brings the receiver of row i.
  template <int bands, int groups>
  __device__ void add(Sums<bands, groups>& rows, int receiver, int count) {
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* to = stage_ + kStageRow * (lane_index() / 4) + lane_column();
#pragma unroll
        for (int group = 0; group < groups; ++group)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            Vector<float> four;
#pragma unroll
            for (int k = 0; k < 4; ++k) four.v[k] = rows.at(band, half, group, 4 * i + k);
            *reinterpret_cast<Vector<float>*>(to + 32 * group + 4 * i) = four;
          }
        __syncwarp();
        const int first = 16 * band + 8 * half;
#pragma unroll 1
        for (int row = 0; row < 8 && first + row < count; ++row) {
          finish_before(__shfl_sync(0xffffffffu, receiver, first + row));
          add_row(row);
        }
        __syncwarp();
      }
  }
  /// Writes what is left, zeros for receivers without edges.
  __device__ void finish() { finish_before(end_); }

 private:
  static constexpr int kRun = W == 64 ? 2 : 4;  // neighbouring columns of a lane,
  static constexpr int kRuns = W / 32 / kRun;   // so many times, 128 columns apart
  struct alignas(4 * kRun) Floats {
    float v[kRun];
  };
  struct alignas(2 * kRun) Stored {
    T v[kRun];
  };

  __device__ void finish_before(int receiver) {
    for (; receiver_ < receiver; ++receiver_) {
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        Stored stored;
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
          stored.v[i] = to_storage<T>(sums_[run].v[i]);
          sums_[run].v[i] = 0.0f;
        }
        T* to = out_ + int64_t{receiver_} * W + 128 * run + kRun * lane_index();
        *reinterpret_cast<Stored*>(to) = stored;
      }
    }
  }
  __device__ void add_row(int row) {
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      const Floats values =
          *reinterpret_cast<const Floats*>(stage_ + kStageRow * row + 128 * run + kRun * lane_index());
#pragma unroll
      for (int i = 0; i < kRun; ++i) sums_[run].v[i] += values.v[i];
    }
  }

  float* stage_;
  T* out_;
  int receiver_, end_;
  Floats sums_[kRuns] = {};
};

}  // namespace meshgrad::cuda
