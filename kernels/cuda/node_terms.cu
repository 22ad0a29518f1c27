// SPDX-License-Identifier: Apache-2.0
// Each warp goes its own way through tiles of nodes, dealt out tile by tile over all warps of the device so
// that a small mesh keeps it busy too. Backward, a warp walks the edges that its tile's nodes send as one
// list, many rows ahead, and ends a sum where a node's edges end; what it wrote is the product's operand.
// Nodes that send very much come first, with a block's warps on each.
#include <meshgrad/kernels/cuda/node_terms.h>
#include <meshgrad/kernels/cuda/tile_weights.h>

namespace meshgrad::cuda {
namespace {

/// A node that sends more edges is summed by a whole block.
constexpr int kLongSegment = 512;

/// The weights in the pieces in which a tile uses them, one for every 32 columns of a result: all of them in
/// shared memory, or, of 256 x 256, two at a time, which the block's warps then go through in step.
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
      fetch(k);
      if (kResident) deposit(k);
    }
    __syncthreads();
  }
  /// Slab k of 0, 1, .. kCount - 1, over and over.
  __device__ const uint32_t* acquire(int k) {
    if constexpr (kResident) return shared_ + k * kWords;
    deposit(k % 2);  // nobody reads slab k - 2 any more: all have come by the barrier of slab k - 1
    __syncthreads();
    fetch((k + 1) % kCount);
    return shared_ + k % 2 * kWords;
  }

 private:
  static constexpr int kVectors = kWords / 4 / kFusedThreads;
  static constexpr int kRowVectors = Order::kColumns / 8;
  __device__ void fetch(int k) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = i * kFusedThreads + static_cast<int>(threadIdx.x);
      ahead_[i] = load_pairs(Order::matrix(k) == 0 ? sender_ : receiver_, W, Order::row(k) + at / kRowVectors,
                             Order::column(k) + at % kRowVectors * 8);
    }
  }
  __device__ void deposit(int place) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = i * kFusedThreads + static_cast<int>(threadIdx.x);
      place_weight<Order::kColumns>(shared_ + place * kWords, at / kRowVectors, at % kRowVectors * 8,
                                    ahead_[i]);
    }
  }
  const T* sender_;
  const T* receiver_;
  uint32_t* shared_;
  Vector<uint32_t> ahead_[kVectors];
};

/// Forward: 32 columns, first all of the sender's weight.
template <int W>
struct ColumnSlabs {
  static constexpr int kColumns = 32;
  static constexpr int matrix(int k) { return k / (W / 32); }
  static constexpr int row(int) { return 0; }
  static constexpr int column(int k) { return k % (W / 32) * 32; }
};
/// Backward: 32 rows of the one weight, the same of the other.
template <int W>
struct RowSlabs {
  static constexpr int kColumns = W;
  static constexpr int matrix(int k) { return k % 2; }
  static constexpr int row(int k) { return k / 2 * 32; }
  static constexpr int column(int) { return 0; }
};

/// Adds 32 columns of x, from `column` on.
template <class T, int W, int bands>
__device__ void add_columns(Sums<bands, 1>& sums, const T* x, const LaneRows<bands>& rows, int column) {
#pragma unroll
  for (int band = 0; band < bands; ++band) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Eight values = unpack<T>(load_pairs(x, W, rows.v[band][half], column + lane_column()));
#pragma unroll
      for (int i = 0; i < 8; ++i) sums.at(band, half, 0, i) += values.v[i];
    }
  }
}
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

/// Rows first, first + 1, .. below end; zeros behind them, where other warps may be writing.
template <class T, int bands, int groups>
__device__ void load_tile(Operand<bands, groups>& a, const T* x, int first, int end) {
  if (first < end) {
    load_operand(a, x + int64_t{first} * 32 * groups, lane_rows<bands>(0, end - first));
  } else {
    a = {};
  }
}

__device__ int rows_of(int capacity, const int64_t* count) {
  return count == nullptr ? capacity : static_cast<int>(*count);
}

template <class T>
struct ForwardArgs {
  const T* weights[2];  ///< sender's, receiver's
  const T* nodes;
  T* terms[2];
  const int64_t* counts[2];  ///< of nodes, of owned nodes
  int capacities[2];
};

constexpr int kTermRows = 32;  ///< nodes of a warp's tile, forward

template <class T, int W>
__global__ void __launch_bounds__(kFusedThreads, W == 256 ? 1 : 2)
    node_terms_forward_kernel(ForwardArgs<T> args) {
  constexpr int kGroups = W / 32;
  using Order = ColumnSlabs<W>;
  Slabs<T, W, Order> slabs(args.weights[0], args.weights[1], dynamic_shared<uint32_t>());
  const int nodes = rows_of(args.capacities[0], args.counts[0]);
  const auto blocks = static_cast<int>(gridDim.x);
  // The same number of rounds for all warps of a block: they may go in step.
  for (int tile = static_cast<int>(blockIdx.x); tile * kTermRows < nodes; tile += blocks * kFusedWarps) {
    const int first = (tile + blocks * warp_index()) * kTermRows;
    Operand<2, kGroups> a;
    load_tile(a, args.nodes, first, nodes);
#pragma unroll 1
    for (int k = 0; k < slabs.kCount; ++k) {
      const uint32_t* const slab = slabs.acquire(k);
      Sums<2, 1> sums;
      sums.clear();
#pragma unroll
      for (int group = 0; group < kGroups; ++group) multiply_slice<T>(sums, a, group, slab + group * 16 * 32);
      const bool sender = Order::matrix(k) == 0;
      const int end = sender ? nodes : rows_of(args.capacities[1], args.counts[1]);
      store_columns<T, W>(sums, sender ? args.terms[0] : args.terms[1], lane_rows<2>(first, end),
                          Order::column(k));
    }
  }
}

template <class T>
struct BackwardArgs {
  const T* weights[2];
  const T* d_first;
  const T* d_receiver_terms;
  T* d_sender_terms;
  T* d_nodes;  ///< null: only the sums are wanted
  const int32_t* offsets;
  const int32_t* order;
  const int64_t* counts[2];
  int capacities[2];
  bool accumulate;
};

/// A lane's share of a row of W values.
template <class T, int W>
struct alignas(W / 32 * sizeof(T)) Few {
  T v[W / 32];
};

/// A lane's share of the sum of the rows order[begin], order[begin + 1], ...; after each of them calls
/// done(position behind it, sum), which may end the sum and begin another.
template <class T, int W, class Done>
__device__ void sum_rows(const T* rows, const int32_t* order, int begin, int end, float (&sum)[W / 32],
                         const Done& done) {
  constexpr int kAhead = W == 256 ? 8 : 16;  // rows on their way
  const int lane = lane_index();
  for (int chunk = begin; chunk < end; chunk += 32) {
    const int mine = chunk + lane < end ? order[chunk + lane] : 0;
    for (int first = 0; first < 32 && chunk + first < end; first += kAhead) {
      Few<T, W> row[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int64_t from = __shfl_sync(0xffffffffu, mine, first + i);
        if (chunk + first + i < end) row[i] = reinterpret_cast<const Few<T, W>*>(rows + from * W)[lane];
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (chunk + first + i >= end) break;
        for (int c = 0; c < W / 32; ++c) sum[c] += to_float(row[i].v[c]);
        done(chunk + first + i + 1, sum);
      }
    }
  }
}

template <class T, int W>
__device__ void store_sum(const BackwardArgs<T>& args, int node, const float (&sum)[W / 32]) {
  Few<T, W> rounded;
  for (int c = 0; c < W / 32; ++c) rounded.v[c] = to_storage<T>(sum[c]);
  reinterpret_cast<Few<T, W>*>(args.d_sender_terms + int64_t{node} * W)[lane_index()] = rounded;
}

/// One node by the whole block: each warp a fixed share of its edges, the shares added in order.
template <class T, int W>
__device__ void sum_long_segment(const BackwardArgs<T>& args, int node, int begin, int end) {
  MESHGRAD_SHARED(float, shares, kFusedWarps* W);
  constexpr int kColumns = W / 32;
  const int length = end - begin, share = length / kFusedWarps + 1;
  const int from = begin + min(share * warp_index(), length);
  float sum[kColumns] = {};
  sum_rows<T, W>(args.d_first, args.order, from, min(from + share, end), sum, [](int, float(&)[kColumns]) {});
  float* const mine = shares + lane_index() * kColumns;
  for (int c = 0; c < kColumns; ++c) mine[warp_index() * W + c] = sum[c];
  __syncthreads();
  if (warp_index() == 0) {
    for (int w = 1; w < kFusedWarps; ++w) {
      for (int c = 0; c < kColumns; ++c) sum[c] += mine[w * W + c];
    }
    store_sum<T, W>(args, node, sum);
  }
  __syncthreads();
}

constexpr int kSumRows = 16;  ///< nodes of a warp's tile, backward

/// Lane i gets where the edges of the tile's node i begin, and of the next behind the last.
__device__ inline int tile_offset(const int32_t* offsets, int first, int end) {
  return first < end ? offsets[min(first + min(lane_index(), kSumRows), end)] : 0;
}
/// One bit a node that sends more than a warp should sum.
__device__ inline unsigned long_segments(int offset) {
  const int next = __shfl_down_sync(0xffffffffu, offset, 1);
  return __ballot_sync(0xffffffffu, lane_index() < kSumRows && next - offset > kLongSegment);
}

/// All long segments of this block's tiles.
template <class T, int W>
__device__ void sum_long_segments(const BackwardArgs<T>& args, int nodes) {
  const auto block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  const int tiles = (nodes + kSumRows - 1) / kSumRows;
  bool any = false;
  for (int tile = block + blocks * warp_index(); tile < tiles; tile += blocks * kFusedWarps) {
    any = long_segments(tile_offset(args.offsets, tile * kSumRows, nodes)) != 0 || any;
  }
  if (__syncthreads_or(any ? 1 : 0) == 0) return;
  for (int tile = block; tile < tiles; tile += blocks) {
    const int offset = tile_offset(args.offsets, tile * kSumRows, nodes);
    const unsigned found = long_segments(offset);
    for (int i = 0; i < kSumRows; ++i) {
      const int begin = __shfl_sync(0xffffffffu, offset, i), end = __shfl_sync(0xffffffffu, offset, i + 1);
      if ((found >> i & 1u) != 0) sum_long_segment<T, W>(args, tile * kSumRows + i, begin, end);
    }
  }
}

/// The other segments of one warp's tile.
template <class T, int W>
__device__ void sum_short_segments(const BackwardArgs<T>& args, int first, int nodes) {
  const int offset = tile_offset(args.offsets, first, nodes);
  const unsigned skip = long_segments(offset);
  const int rows = min(kSumRows, nodes - first);
  for (int i = 0; i < rows; ++i) {
    if ((skip >> i & 1u) != 0) continue;
    int last = i + 1;
    while (last < rows && (skip >> last & 1u) == 0) ++last;
    // Nodes i .. last - 1 send the edges from `begin` on, without a gap.
    const int begin = __shfl_sync(0xffffffffu, offset, i), end = __shfl_sync(0xffffffffu, offset, last);
    int node_end = __shfl_sync(0xffffffffu, offset, i + 1);
    const auto end_sums = [&](int position, float(&sum)[W / 32]) {
      while (i < last && position == node_end) {
        store_sum<T, W>(args, first + i, sum);
        for (float& x : sum) x = 0.0f;
        ++i;
        node_end = __shfl_sync(0xffffffffu, offset, min(i + 1, kSumRows));
      }
    };
    float sum[W / 32] = {};
    end_sums(begin, sum);
    sum_rows<T, W>(args.d_first, args.order, begin, end, sum, end_sums);
  }
}

/// d_nodes of one warp's tile.
template <class T, int W, class Weights>
__device__ void multiply_tile(const BackwardArgs<T>& args, Weights& slabs, int first, int nodes, int owned) {
  const LaneRows<1> rows = lane_rows<1>(first, nodes);
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

template <class T, int W>
__global__ void __launch_bounds__(kFusedThreads, W == 256 ? 1 : 2)
    node_terms_backward_kernel(BackwardArgs<T> args) {
  const int nodes = rows_of(args.capacities[0], args.counts[0]);
  const int owned = rows_of(args.capacities[1], args.counts[1]);
  const auto block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  sum_long_segments<T, W>(args, nodes);
  if (args.d_nodes == nullptr) {
    for (int tile = block + blocks * warp_index(); tile * kSumRows < nodes; tile += blocks * kFusedWarps) {
      sum_short_segments<T, W>(args, tile * kSumRows, nodes);
    }
    return;
  }
  Slabs<T, W, RowSlabs<W>> slabs(args.weights[0], args.weights[1], dynamic_shared<uint32_t>());
  for (int tile = block; tile * kSumRows < nodes; tile += blocks * kFusedWarps) {
    const int first = (tile + blocks * warp_index()) * kSumRows;
    sum_short_segments<T, W>(args, first, nodes);
    __syncwarp();  // what other lanes wrote is read
    multiply_tile<T, W>(args, slabs, first, nodes, owned);
  }
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

}  // namespace

bool node_terms_cover(DType dtype, int64_t node_width, int64_t hidden) {
  return (dtype == DType::f16 || dtype == DType::bf16) && node_width == hidden &&
         (hidden == 64 || hidden == 128 || hidden == 256);
}

void node_terms_forward(const NodeTerms& terms, const Graph& graph, const Tensor& sender_terms,
                        const Tensor& receiver_terms, Runtime&, const Stream& stream) {
  dispatch(terms.nodes.dtype(), terms.nodes.width(), [&]<class T, int W>() {
    ForwardArgs<T> args{};
    args.weights[0] = terms.sender_weight.data<T>();
    args.weights[1] = terms.receiver_weight.data<T>();
    args.nodes = terms.nodes.data<T>();
    args.terms[0] = sender_terms.data<T>();
    args.terms[1] = receiver_terms.data<T>();
    set_rows(args, graph);
    const int64_t blocks = persistent_blocks(stream, graph.nodes, kTermRows, W == 256 ? 1 : 2);
    launch("node_terms_forward", node_terms_forward_kernel<T, W>,
           {blocks, kFusedThreads, Slabs<T, W, ColumnSlabs<W>>::kBytes}, stream, args);
  });
}

void node_terms_backward(const NodeTermsBackward& backward, Runtime&, const Stream& stream) {
  dispatch(backward.d_sender_terms.dtype(), backward.d_sender_terms.width(), [&]<class T, int W>() {
    const Graph& graph = *backward.graph;
    BackwardArgs<T> args{};
    args.d_first = backward.d_first.data<T>();
    args.d_sender_terms = backward.d_sender_terms.data<T>();
    args.offsets = graph.sender_offsets.data<int32_t>();
    args.order = graph.sender_order.data<int32_t>();
    args.accumulate = backward.accumulate;
    set_rows(args, graph);
    int shared_bytes = 0;
    if (backward.d_nodes.defined()) {
      args.weights[0] = backward.sender_weight.data<T>();
      args.weights[1] = backward.receiver_weight.data<T>();
      args.d_receiver_terms = backward.d_receiver_terms.data<T>();
      args.d_nodes = backward.d_nodes.data<T>();
      shared_bytes = Slabs<T, W, RowSlabs<W>>::kBytes;
    }
    const int64_t blocks = persistent_blocks(stream, graph.nodes, kSumRows, W == 256 ? 1 : 2);
    launch("node_terms_backward", node_terms_backward_kernel<T, W>, {blocks, kFusedThreads, shared_bytes},
           stream, args);
  });
}

}  // namespace meshgrad::cuda
