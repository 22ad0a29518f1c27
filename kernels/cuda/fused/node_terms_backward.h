// SPDX-License-Identifier: Apache-2.0
// dS[s] = sum of d_z_1 over the edges that s sends, d_h (+)= dS W_s^T + dR W_r^T, and all weight gradients of
// the edge update, in one launch and that of the sum of slices.
//
// Blocks are assigned to slices of rows as in weight_gradients.cu. A block of job 0, the sender weight's
// gradient d_W_s += h^T dS, has a slice of the nodes. It computes dS and d_h of these nodes first and then
// its slice of the weight gradient, which needs dS of no other block: no barrier over the grid. Blocks of the
// other jobs run at the same time, since their operands are complete: one launch instead of two, without an
// idle tail between them.
//
// In dS, a warp has a tile of 16 consecutive nodes. In sender order their edges are one contiguous list, so
// it walks that list with many gathered rows in flight and stores a sum where a node's edges end. After a
// __syncwarp it reads these sums back as the operand of dS W_s^T. Nodes that send very many edges are summed
// before, each by the whole block.
#pragma once
#include <meshgrad/kernels/cuda/fused/node_terms_tile.h>
#include <meshgrad/kernels/cuda/fused/weight_gradient_units.h>

namespace meshgrad::cuda {

static_assert(gradients::kThreads == kFusedThreads);

template <class T>
struct NodeTermsBackwardArgs {
  gradients::Args gradients;  ///< job 0: the sender's weight
  const T* weights[2];
  const T* d_first;
  const T* d_receiver_terms;
  T* d_sender_terms;
  T* d_nodes;                ///< null: only dS is needed
  const int32_t* offsets;    ///< Graph::sender_offsets
  const int32_t* order;      ///< Graph::sender_order
  const int64_t* counts[2];  ///< of nodes, of owned nodes
  int capacities[2];
  bool accumulate;
};

namespace node_tiles {

/// A node that sends more edges is summed by a whole block. The number fixes the order of a sum and so its
/// bits.
inline constexpr int kLongSegment = 512;

template <int W>
inline constexpr int kBackwardBlocks = W == 256 ? 1 : 2;

/// A lane's columns of a row, W / 32 lane and the next ones: 4, 8 or 16 bytes, one access; the warp reads the
/// whole row, contiguous.
template <class T, int W>
struct alignas(W / 32 * sizeof(T)) LaneRow {
  T v[W / 32];
};

/// Adds the rows order[begin] .. order[end - 1] to `sum`, the lane's columns; after the row at position p
/// calls on_row(p + 1, sum), which may store the sum and reset it. Lane i loads the index at chunk + i, one
/// coalesced load per 32 rows, and a shuffle passes it to all lanes.
///
/// kPrefetch rows are loaded before the first of them is added: a gathered row takes several hundred cycles,
/// and the additions of one sum depend on each other.
template <class T, int W, class OnRow>
__device__ void sum_rows(const T* rows, const int32_t* order, int begin, int end, float (&sum)[W / 32],
                         const OnRow& on_row) {
  constexpr int kPrefetch = W == 256 ? 8 : 16;  // rows in flight: 16 or 32 registers per lane
  const int lane = lane_index();
  for (int chunk = begin; chunk < end; chunk += 32) {
    const int mine = chunk + lane < end ? order[chunk + lane] : 0;
    for (int first = 0; first < 32 && chunk + first < end; first += kPrefetch) {
      LaneRow<T, W> row[kPrefetch];
#pragma unroll
      for (int i = 0; i < kPrefetch; ++i) {
        const int64_t from = __shfl_sync(0xffffffffu, mine, first + i);
        if (chunk + first + i < end) row[i] = reinterpret_cast<const LaneRow<T, W>*>(rows + from * W)[lane];
      }
#pragma unroll
      for (int i = 0; i < kPrefetch; ++i) {
        if (chunk + first + i >= end) break;
        for (int c = 0; c < W / 32; ++c) sum[c] += to_float(row[i].v[c]);
        on_row(chunk + first + i + 1, sum);
      }
    }
  }
}

/// Rounds dS of a node to storage.
template <class T, int W>
__device__ void store_sum(const NodeTermsBackwardArgs<T>& args, int node, const float (&sum)[W / 32]) {
  LaneRow<T, W> rounded;
  for (int c = 0; c < W / 32; ++c) rounded.v[c] = to_storage<T>(sum[c]);
  reinterpret_cast<LaneRow<T, W>*>(args.d_sender_terms + int64_t{node} * W)[lane_index()] = rounded;
}

/// dS of one node by the whole block: each warp sums about an eighth of its edges, then the first warp adds
/// the warps' sums in order. `shares` is [kFusedWarps, W]; a lane reads and writes its own columns.
template <class T, int W>
__device__ void sum_long_segment(const NodeTermsBackwardArgs<T>& args, int node, int begin, int end) {
  MESHGRAD_SHARED(float, shares, kFusedWarps* W);
  constexpr int kColumns = W / 32;
  const int length = end - begin, share = length / kFusedWarps + 1;
  const int from = begin + min(share * warp_index(), length);
  float sum[kColumns] = {};
  sum_rows<T, W>(args.d_first, args.order, from, min(from + share, end), sum, [](int, float(&)[kColumns]) {});
  float* const mine = shares + lane_index() * kColumns;
  for (int c = 0; c < kColumns; ++c) mine[warp_index() * W + c] = sum[c];
  __syncthreads();  // the warps' sums are complete
  if (warp_index() == 0) {
    for (int w = 1; w < kFusedWarps; ++w) {
      for (int c = 0; c < kColumns; ++c) sum[c] += mine[w * W + c];
    }
    store_sum<T, W>(args, node, sum);
  }
  __syncthreads();  // and read, before the next node's overwrite them
}

inline constexpr int kSumRows = 16;  ///< nodes of a warp's tile in backward: one band of an mma tile

/// Lane i receives the offset of the edges of the tile's node i, for i = 0 .. kSumRows: lane i + 1 has their
/// end. Nodes behind `end` get the offset of `end`, so that they have no edges.
__device__ inline int tile_offset(const int32_t* offsets, int first, int end) {
  return first < end ? offsets[min(first + min(lane_index(), kSumRows), end)] : 0;
}
/// Bit i: node i of the tile sends more than kLongSegment edges. The same in all lanes.
__device__ inline unsigned long_segments(int offset) {
  const int next = __shfl_down_sync(0xffffffffu, offset, 1);
  return __ballot_sync(0xffffffffu, lane_index() < kSumRows && next - offset > kLongSegment);
}

/// dS of the nodes first .. end - 1 that send many edges, by the whole block. Looks for them in parallel
/// first, since a mesh has none; then all warps find the same nodes in the same order, since sum_long_segment
/// has barriers.
template <class T, int W>
__device__ void sum_long_segments(const NodeTermsBackwardArgs<T>& args, int first, int end) {
  bool any = false;
  for (int node = first + kSumRows * warp_index(); node < end; node += kSumRows * kFusedWarps) {
    any = long_segments(tile_offset(args.offsets, node, end)) != 0 || any;
  }
  if (__syncthreads_or(any ? 1 : 0) == 0) return;
  for (int node = first; node < end; node += kSumRows) {
    const int offset = tile_offset(args.offsets, node, end);
    const unsigned found = long_segments(offset);
    for (int i = 0; i < kSumRows; ++i) {
      const int begin_edge = __shfl_sync(0xffffffffu, offset, i);
      const int end_edge = __shfl_sync(0xffffffffu, offset, i + 1);
      if ((found >> i & 1u) != 0) sum_long_segment<T, W>(args, node + i, begin_edge, end_edge);
    }
  }
}

/// dS of the other nodes of one warp's tile. Long segments divide the tile into runs of nodes whose edges are
/// contiguous; each run is one call of sum_rows.
template <class T, int W>
__device__ void sum_short_segments(const NodeTermsBackwardArgs<T>& args, int first, int end_node) {
  const int offset = tile_offset(args.offsets, first, end_node);
  const unsigned skip = long_segments(offset);
  const int rows = min(kSumRows, end_node - first);
  for (int i = 0; i < rows; ++i) {
    if ((skip >> i & 1u) != 0) continue;
    int last = i + 1;
    while (last < rows && (skip >> last & 1u) == 0) ++last;
    // Nodes i .. last - 1 send the edges begin .. end - 1, contiguous in sender order.
    const int begin = __shfl_sync(0xffffffffu, offset, i), end = __shfl_sync(0xffffffffu, offset, last);
    int node_end = __shfl_sync(0xffffffffu, offset, i + 1);
    // Stores all sums that end at `position`: several where nodes send nothing.
    const auto store_finished = [&](int position, float(&sum)[W / 32]) {
      while (i < last && position == node_end) {
        store_sum<T, W>(args, first + i, sum);
        for (float& x : sum) x = 0.0f;
        ++i;
        node_end = __shfl_sync(0xffffffffu, offset, min(i + 1, kSumRows));
      }
    };
    float sum[W / 32] = {};
    store_finished(begin, sum);  // nodes without edges at the start of the run
    sum_rows<T, W>(args.d_first, args.order, begin, end, sum, store_finished);
  }
}

/// d_nodes of one warp's tile: d_h (+)= dS W_s^T + dR W_r^T. Halo nodes, at and behind `owned`, have no dR.
template <class T, int W, class Weights>
__device__ void multiply_tile(const NodeTermsBackwardArgs<T>& args, Weights& slabs, int first, int nodes,
                              int owned) {
  const LaneRows<1> rows = rows_from<1>(first, nodes);
  Operand<1, W / 32> d_terms[2];
  load_tile(d_terms[0], args.d_sender_terms, first, nodes);
  load_tile(d_terms[1], args.d_receiver_terms, first, owned);
#pragma unroll 1
  for (int column = 0; column < W; column += 32) {
    Sums<1, 1> sums;
    sums.clear();
    if (args.accumulate) add_columns<T, W>(sums, args.d_nodes, rows, column);
    multiply_transposed_slice<T>(sums, d_terms[0], 0, slabs.acquire(column / 16));
    multiply_transposed_slice<T>(sums, d_terms[1], 0, slabs.acquire(column / 16 + 1));
    store_columns<T, W>(sums, args.d_nodes, rows, column);
  }
}

/// d_sender_terms and d_nodes of the nodes first .. end - 1. All threads of the block.
template <class T, int W>
__device__ void compute_node_gradients(const NodeTermsBackwardArgs<T>& args, int first, int end) {
  sum_long_segments<T, W>(args, first, end);
  constexpr int kBlockRows = kSumRows * kFusedWarps;
  if (args.d_nodes == nullptr) {
    for (int node = first + kSumRows * warp_index(); node < end; node += kBlockRows) {
      sum_short_segments<T, W>(args, node, end);
    }
    return;
  }
  const int owned = min(end, rows_of(args.capacities[1], args.counts[1]));
  Slabs<T, W, RowSlabs<W>> slabs(args.weights[0], args.weights[1], dynamic_shared<uint32_t>());
  // All warps run equally many rounds, some on no rows: acquire() has barriers at width 256.
  for (int round = first; round < end; round += kBlockRows) {
    const int node = round + kSumRows * warp_index();
    sum_short_segments<T, W>(args, node, end);
    __syncwarp();  // dS, stored by other lanes of this warp, is loaded again
    multiply_tile<T, W>(args, slabs, node, end, owned);
  }
}

/// Blocks of job 0 compute dS and d_h of a slice in their tile 0 and then all 128 x 128 tiles of the slice
/// (four at width 256); the blocks of its other tiles have nothing to do, since dS of the slice is known to
/// that block only.
template <class T, int W>
__device__ void run_backward_block(const NodeTermsBackwardArgs<T>& args) {
  constexpr int kFirstJobTiles = W > gradients::kTile ? gradients::kMaxTiles : 1;
  gradients::run_block(args.gradients, [&](const gradients::Unit& unit) {
    if (unit.job == 0) {
      if (unit.tile > 0) return;
      compute_node_gradients<T, W>(args, static_cast<int>(unit.begin), static_cast<int>(unit.end));
      if (args.gradients.jobs[0].d_weight == nullptr) return;
      // dS of other warps is read, and the shared memory of the weights is reused for stages.
      __syncthreads();
    }
    const int first = unit.tile, tiles = unit.job == 0 ? kFirstJobTiles : 1;
#pragma unroll 1
    for (int tile = first; tile < first + tiles; ++tile) {
      if (tile > first) __syncthreads();  // the last tile's stages have been multiplied
      gradients::add_unit<T>(args.gradients, unit, tile);
    }
  });
}

}  // namespace node_tiles
}  // namespace meshgrad::cuda
