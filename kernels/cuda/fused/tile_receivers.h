// SPDX-License-Identifier: Apache-2.0
// Sums over each receiver's edges inside fused edge kernels. Edges are sorted by receiver and a warp owns
// whole receivers, so that one warp adds all edges of a receiver in edge order. Only a long receiver, with
// more than kLongReceiver edges, is divided: each warp stores the sum of its edges, and the last one to
// finish adds these in the order of the edges. So the bits depend on the counts and the device alone, never
// on timing.
#pragma once
#include <meshgrad/kernels/cuda/fused/tile_columns.h>

namespace meshgrad::cuda {

/// The connectivity that edge kernels read, and the real counts. Indices are 32-bit as in Graph.
struct EdgeList {
  const int32_t* senders;
  const int32_t* receivers;
  const int32_t* receiver_offsets;
  const int64_t* edge_count;   ///< null: edge_capacity
  const int64_t* owned_count;  ///< null: owned_capacity
  int64_t edge_capacity, owned_capacity;
  float* partials;    ///< [warps, W]: each warp's sum of the divided receiver that it has edges of
  unsigned* tickets;  ///< [warps, 32], by lane, zeroed: warps that have stored their sum of a receiver
};

/// A receiver with more edges than this is divided where shares of the edges begin. A mesh has
/// none.
inline constexpr int kLongReceiver = 256;
/// Where the edges of one warp end and those of the next begin: before the first edge of `receiver`, or, if
/// `inside`, in the middle of it.
struct EdgeBoundary {
  int receiver, edge;
  bool inside;
};
/// One warp's receivers, without a divided one, and its edges; both contiguous.
struct EdgeRange {
  int receiver_begin, receiver_end;
  int edge_begin, edge_end;
};

/// Equal shares of the edges for all warps but the last, which has what the others leave: share p has edges
/// first(p) .. first(p + 1) - 1.
struct EdgeShares {
  int edges, parts;
  __device__ explicit EdgeShares(const EdgeList& list)
      : edges(static_cast<int>(list.edge_count == nullptr ? list.edge_capacity : *list.edge_count)),
        parts(static_cast<int>(gridDim.x) * kFusedWarps - 1) {}
  __device__ int first(int part) const { return edges / parts * part + min(part, edges % parts); }
  __device__ int part_of(int edge) const {
    const int share = edges / parts, longer = edges % parts * (share + 1);
    return edge < longer ? edge / (share + 1) : edges % parts + (edge - longer) / share;
  }
};
/// A share's first edge, moved up to the next first edge of a receiver unless the receiver is long.
__device__ inline EdgeBoundary share_boundary(const EdgeList& list, int edge) {
  if (edge == 0) return {0, 0, false};
  const int receiver = list.receivers[edge - 1];
  const int begin = list.receiver_offsets[receiver], end = list.receiver_offsets[receiver + 1];
  if (edge < end && end - begin > kLongReceiver) return {receiver, edge, true};
  return {receiver + 1, end, false};
}
/// Before part `part`. A part that begins inside a receiver has edges of that one alone: it ends where the
/// receiver ends, and the next part has what is left of the share.
__device__ inline EdgeBoundary edge_boundary(const EdgeList& list, int part) {
  const EdgeShares shares(list);
  if (part > shares.parts) {
    const int64_t owned = list.owned_count == nullptr ? list.owned_capacity : *list.owned_count;
    return {static_cast<int>(owned), shares.edges, false};
  }
  const int edge = shares.first(part);
  if (part > 0) {
    const EdgeBoundary before = share_boundary(list, shares.first(part - 1));
    const int end = before.inside ? list.receiver_offsets[before.receiver + 1] : edge + 1;
    if (end <= edge) return {before.receiver + 1, end, false};
  }
  return share_boundary(list, edge);
}
__device__ inline int edge_part() { return static_cast<int>(blockIdx.x) * kFusedWarps + warp_index(); }
/// The calling warp's. The warps have every owned receiver that is not divided once, also those without
/// edges, whose sum is 0.
__device__ inline EdgeRange edge_range(const EdgeList& list) {
  EdgeBoundary begin{}, end{};
#pragma unroll 1
  for (int which = 0; which < 2; ++which) {
    begin = end;
    end = edge_boundary(list, edge_part() + which);
  }
  const int from = begin.receiver, to = begin.inside ? begin.receiver : end.receiver;
  return {uniform(from), uniform(to), uniform(begin.edge), uniform(end.edge)};
}

/// Sums rows by receiver, tile by tile, and stores each sum once it is complete. The sum of the current
/// receiver continues over tiles: lane l has columns 64 run + 2 l and the next. `waiting`: in between it
/// waits in shared memory, where the multiplications need the registers.
///
/// The tile passes through StagedRows, eight rows at a time: `stage` is [8, StagedRows<W>::kRow] floats per
/// warp, and behind them, if it waits, the W of the current sum.
template <class T, int W, bool waiting>
class ReceiverSums {
 public:
  static constexpr int kStageFloats = StagedRows<W>::kFloats + (waiting ? W : 0);
  /// `stage` is the warp's own, 8-byte aligned; `out` is [owned_nodes, W].
  __device__ ReceiverSums(float* stage, T* out, const EdgeRange& range)
      : stage_{stage}, out_(out), receiver_(range.receiver_begin), end_(range.receiver_end) {
    if constexpr (waiting) keep_sums();
  }

  /// Adds the tile's first `count` rows (none if it is negative); lane i < count passes the receiver of row
  /// i, which must not decrease from call to call.
  template <int bands, int groups>
  __device__ void add(Sums<bands, groups>& rows, int receiver, int count) {
    if constexpr (waiting) fetch_sums();
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
    if constexpr (waiting) keep_sums();
  }
  /// Stores the last sum, and zeros for the receivers without edges behind it. Adds the sums of a divided
  /// receiver if this warp is the last one to store its own. All threads of the block call.
  __device__ void finish(const EdgeList& list) {
    if constexpr (waiting) fetch_sums();
    store_sums_before(end_);
    int divided = -1;
#pragma unroll 1
    for (int which = 0; which < 2; ++which) {
      const EdgeBoundary boundary = edge_boundary(list, edge_part() + which);
      if (boundary.inside) divided = boundary.receiver;
    }
    if (divided >= 0) {
#pragma unroll
      for (int run = 0; run < kRuns; ++run) partial(list, edge_part())[run] = sums_[run];
    }
    __threadfence();
    __syncthreads();  // the block's sums are stored, and other blocks see them once they see its tickets
    if (divided >= 0) add_partials(list, divided);
  }

 private:
  static constexpr int kBatch = 4;
  static constexpr int kRuns = W / 64;  // runs of 64 columns, of which a lane has two neighbours each
  using Two = TwoFloats;
  struct alignas(4) Stored {
    T a, b;
  };

  /// The lane's own place, which no other lane reads.
  __device__ Two& kept_sum(int run) const {
    return *reinterpret_cast<Two*>(stage_.v + StagedRows<W>::kFloats + 64 * run + 2 * lane_index());
  }
  __device__ void keep_sums() const {
#pragma unroll
    for (int run = 0; run < kRuns; ++run) kept_sum(run) = sums_[run];
  }
  __device__ void fetch_sums() {
#pragma unroll
    for (int run = 0; run < kRuns; ++run) sums_[run] = kept_sum(run);
  }

  /// Stores the sums of all receivers before `receiver` and starts the next from 0. The branch is uniform:
  /// all lanes have the same receivers. A store is 128 contiguous bytes per run.
  __device__ void store_sums_before(int receiver) {
#pragma unroll 1
    for (; receiver_ < receiver; ++receiver_) {
      store_sum(receiver_);
#pragma unroll
      for (int run = 0; run < kRuns; ++run) sums_[run] = {};
    }
  }
  __device__ void store_sum(int receiver) {
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      T* to = out_ + int64_t{receiver} * W + 64 * run + 2 * lane_index();
      *reinterpret_cast<Stored*>(to) = {to_storage<T>(sums_[run].a), to_storage<T>(sums_[run].b)};
    }
  }

  /// The lane's sums of a part's divided receiver.
  __device__ static Two* partial(const EdgeList& list, int part) {
    return reinterpret_cast<Two*>(list.partials + int64_t{part} * W) + kRuns * lane_index();
  }
  /// Adds all parts' sums of a divided receiver, if this lane is the last to come. Each lane for itself,
  /// since no other one reads its columns.
  __device__ void add_partials(const EdgeList& list, int receiver) {
    const EdgeShares shares(list);
    int first = shares.part_of(list.receiver_offsets[receiver]);
    if (!edge_boundary(list, first + 1).inside) ++first;  // the receiver begins where that part ends
    const int last = shares.part_of(list.receiver_offsets[receiver + 1] - 1);
    const unsigned stored = atomicAdd(list.tickets + 32 * first + lane_index(), 1u);
    if (stored != static_cast<unsigned>(last - first)) return;
    __threadfence();
#pragma unroll
    for (int run = 0; run < kRuns; ++run) sums_[run] = {};
#pragma unroll 1
    for (int part = first; part <= last; ++part) {
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        sums_[run].a += partial(list, part)[run].a;
        sums_[run].b += partial(list, part)[run].b;
      }
    }
    store_sum(receiver);
  }
  template <int bands, int groups>
  __device__ void stage(Sums<bands, groups>& rows, int band, int half) {
#pragma unroll
    for (int group = 0; group < groups; ++group) {
      EightFloats mine;
#pragma unroll
      for (int i = 0; i < 8; ++i) mine.v[i] = rows.at(band, half, group, i);
      stage_.put(mine, 32 * group);
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
          values[row][run] = stage_.get(batch + row, 64 * run + 2 * lane_index());
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

  StagedRows<W> stage_;
  T* out_;
  int receiver_, end_;
  Two sums_[kRuns] = {};
};

}  // namespace meshgrad::cuda
