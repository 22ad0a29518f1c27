// SPDX-License-Identifier: Apache-2.0
// S = h W_s and R = h W_r: a warp holds a tile of 32 nodes' h as operand registers and multiplies it by both
// weights, 32 columns of a result at a time. Tiles are assigned round-robin to all warps of the device,
// blocks first, so that a small mesh occupies all multiprocessors too.
#include <meshgrad/kernels/cuda/fused/node_terms_tile.h>

namespace meshgrad::cuda {
namespace {

using namespace node_tiles;

template <class T>
struct ForwardArgs {
  const T* weights[2];  ///< sender's, receiver's
  const T* nodes;
  T* terms[2];
  const int64_t* counts[2];  ///< of nodes, of owned nodes
  int capacities[2];
  int32_t* tickets;
  int ticket_count;
};

constexpr int kTermRows = 32;  ///< nodes of a warp's tile in forward

/// Two blocks per multiprocessor up to width 128: 32 accumulators and 64 operand registers fit into the 128
/// registers of a thread, and 64 KiB of weights per block into shared memory.
template <class T, int W>
__global__ void __launch_bounds__(kFusedThreads, W == 256 ? 1 : 2)
    node_terms_forward_kernel(ForwardArgs<T> args) {
  constexpr int kGroups = W / 32;
  using Order = ColumnSlabs<W>;
  Slabs<T, W, Order> slabs(args.weights[0], args.weights[1], dynamic_shared<uint32_t>());
  const int nodes = rows_of(args.capacities[0], args.counts[0]);
  const auto blocks = static_cast<int>(gridDim.x);
  const int thread = static_cast<int>(blockIdx.x * kFusedThreads + threadIdx.x);
  for (int i = thread; i < args.ticket_count; i += blocks * kFusedThreads) args.tickets[i] = 0;
  // The loop variable is the tile of the block's first warp, so all warps run equally many rounds: acquire()
  // has barriers at width 256.
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
      store_columns<T, W>(sums, sender ? args.terms[0] : args.terms[1], rows_from<2>(first, end),
                          Order::column(k));
    }
  }
}

}  // namespace

bool node_terms_support(DType dtype, int64_t node_width, int64_t hidden) {
  return (dtype == DType::f16 || dtype == DType::bf16) && node_width == hidden &&
         (hidden == 64 || hidden == 128 || hidden == 256);
}

void node_terms_forward(const NodeTerms& terms, const Graph& graph, const Tensor& sender_terms,
                        const Tensor& receiver_terms, const Tensor& tickets, const Stream& stream) {
  dispatch(terms.nodes.dtype(), terms.nodes.width(), [&]<class T, int W>() {
    ForwardArgs<T> args{};
    args.weights[0] = terms.sender_weight.data<T>();
    args.weights[1] = terms.receiver_weight.data<T>();
    args.nodes = terms.nodes.data<T>();
    args.terms[0] = sender_terms.data<T>();
    args.terms[1] = receiver_terms.data<T>();
    set_rows(args, graph);
    if (tickets.defined()) {
      args.tickets = tickets.data<int32_t>();
      args.ticket_count = static_cast<int>(tickets.elements());
    }
    const int64_t blocks = persistent_blocks(stream, graph.nodes, kTermRows, W == 256 ? 1 : 2);
    launch("node_terms_forward", node_terms_forward_kernel<T, W>,
           {blocks, kFusedThreads, Slabs<T, W, ColumnSlabs<W>>::kBytes}, stream, args);
  });
}

}  // namespace meshgrad::cuda
