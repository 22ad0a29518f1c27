// SPDX-License-Identifier: Apache-2.0
// edge_backward: from the gradients of e' and of the receivers' sums to those of e, S and R, and the operands
// of the weight gradients.
#pragma once
#include <meshgrad/kernels/cuda/fused/fused_edges.h>

namespace meshgrad::cuda {

template <class T>
struct EdgeBackwardArgs {
  EdgeInputs<T> inputs;
  const T* d_edges_out;  ///< null: zero
  const T* d_aggregate;
  T* d_edges;           ///< null: not needed
  T* d_receiver_terms;  ///< [owned_nodes, W]
  BackwardPointers<T> workspace;
};

/// Whether registers hold a tile's rows of d_edges_out from the norm to the end, so that they are read once.
/// Streamed weights need the registers.
template <int W, bool streamed>
inline constexpr bool kHoldsGradient = W == 128 && !streamed;

/// A band of d_y = d_aggregate[receiver] + d_edges_out, rounded to storage like any sum of gradients; `own`
/// gets the rows of d_edges_out.
template <class T, int W>
__device__ LoadedRows<TileShape<W>::kGroups> output_gradient(const EdgeBackwardArgs<T>& args,
                                                             const EdgeTile<W>& tile, int band,
                                                             LoadedRows<TileShape<W>::kGroups>& own) {
  LoadedRows<TileShape<W>::kGroups> d_y;
  d_y.load(args.d_aggregate, tile.receivers().band(band));
  if (args.d_edges_out == nullptr || tile.edges.empty()) return d_y;
  own.load(args.d_edges_out, tile.edges.existing().band(band));
  d_y.template add<T>(own);
  return d_y;
}
template <class T, int W>
__device__ void prefetch_gradients(const EdgeBackwardArgs<T>& args, const EdgeTile<W>& next) {
  if (next.edges.empty()) return;
  prefetch_row<W>(args.d_aggregate, next.receiver);
  if (args.d_edges_out != nullptr) prefetch_row<W>(args.d_edges_out, next.edge());
}
/// Stores d_e = d_z_1 W_e^T (in z) and, with a residual, the gradient of e'. d_edges may be the same memory
/// as d_edges_out: a lane reads the values that it overwrites, before it does so.
template <bool held, class T, int W>
__device__ void store_edge_gradient(const EdgeBackwardArgs<T>& args, const EdgeTile<W>& tile,
                                    LoadedRows<TileShape<W>::kGroups> (&more)[TileShape<W>::kBands],
                                    WideSums<W>& z) {
  if (args.inputs.residual && !tile.edges.empty()) {
    constexpr int kBands = TileShape<W>::kBands;
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
      if (!held && args.d_edges_out != nullptr)
        more[band].load(args.d_edges_out, tile.edges.existing().band(band));
      if (args.inputs.aggregate_after_residual) {
        LoadedRows<TileShape<W>::kGroups> sum;
        sum.load(args.d_aggregate, tile.receivers().band(band));
        more[band].template add<T>(sum);
      }
    }
    __syncwarp();  // lanes without a row read the last one, too, before its lane stores it
#pragma unroll
    for (int band = 0; band < kBands; ++band) add_loaded<T>(z, band, more[band]);
  }
  store_rows(z, args.d_edges, tile.edges.rows());
}

/// Recomputes forward up to z_last, then goes through d_y = d_aggregate[receiver] + d_edges_out, the norm and
/// the layers to d_z_1. dR is its sum over each receiver's edges, with the ReceiverSums of forward. dS needs
/// sender order: d_z_1 of all edges is stored in the workspace, from which node_terms_backward sums it.
template <class T, int W, bool smooth, bool streamed>
__global__ void __launch_bounds__(kFusedThreads, kFusedBlocks<W>)
    edge_backward_kernel(EdgeBackwardArgs<T> args) {
  using Backward = EdgeMlpBackward<T, W, smooth, streamed>;
  const EdgeInputs<T>& in = args.inputs;
  const int layers_words = Backward::warp_words(in.layers.layers);
  const int warp_words = layers_words + BackwardSums<T, W>::kStageFloats;
  const FusedShared<W> shared(in.matrix_words, warp_words);
  EdgeMlp<T, W, smooth, streamed> mlp(in.layers, shared);
  float* const stage = shared.warp + layers_words;
  Backward backward(mlp, args.workspace, shared.warp, stage);
  const EdgeRange range = edge_range(in.list);
  const int rounds = rounds_of<kBackwardTogether<W, streamed>>(
      (range.edge_end - range.edge_begin + EdgeTile<W>::kRows - 1) / EdgeTile<W>::kRows, stage, warp_words);
  BackwardSums<T, W> sums(stage, args.d_receiver_terms, range);
  EdgeTile<W> next(in.list, range, 0);
  for (int round = 0; round < rounds; ++round) {
    if constexpr (kBackwardTogether<W, streamed>) __syncthreads();
    // With half of the registers, the tile's indices are loaded twice instead of kept.
    const EdgeTile<W> tile = kFusedBlocks<W> > 1 ? EdgeTile<W>(in.list, range, round) : next;
    next = EdgeTile<W>(in.list, range, round + 1);
    if (!streamed && tile.edges.empty()) continue;
    WideSums<W> z;
    WideOperand<W> h;
    if constexpr (kFusedBlocks<W> == 2) {
      prefetch_rows(in, next);
      prefetch_gradients(args, next);
    }
    gather<T, W>(mlp, in, tile, z, h);
    if constexpr (kFusedBlocks<W> == 1) prefetch_rows(in, next);
    forward_layers<T, W>(mlp, tile, z, h, [&](int layer, auto& from, auto& to) {
      backward.activate_hidden(layer, from, to, tile.edges);
    });
    if constexpr (kFusedBlocks<W> == 1) prefetch_gradients(args, next);
    LoadedRows<TileShape<W>::kGroups> own[TileShape<W>::kBands]{};
    backward.output_gradient(z, tile.edges, [&](int band) {
      LoadedRows<TileShape<W>::kGroups> forgotten;
      return output_gradient(args, tile, band, kHoldsGradient<W, streamed> ? own[band] : forgotten);
    });
    backward.backward(z, h, in.layers.layers - 1, tile.edges, args.d_edges != nullptr,
                      [&](auto& d_z) { sums.add(d_z, tile.receiver, tile.count()); });
    if (args.d_edges != nullptr) store_edge_gradient<kHoldsGradient<W, streamed>>(args, tile, own, z);
  }
  sums.finish(in.list);
  backward.write_column_sums(warp_words);
}

template <bool smooth>
void launch_edge_backward(const EdgeUpdateBackward& args, const NodeTermTensors& terms,
                          const DividedSumTensors& divided, const NodeTermTensors& d_terms,
                          const BackwardWorkspace& workspace, const FusedShape& shape, const Stream& stream) {
  const int64_t width = args.edges.weight.width();
  dispatch_fused(args.d_aggregate.dtype(), width, shape.place, [&]<class T, int W, bool streamed>() {
    EdgeBackwardArgs<T> kernel_args{};  // and no initialisers: see simt::Call
    kernel_args.inputs = edge_inputs<T>(args, terms, divided, shape);
    kernel_args.d_edges_out = args.d_edges_out.data_or_null<T>();
    kernel_args.d_aggregate = args.d_aggregate.data<T>();
    kernel_args.d_edges = args.d_edges.data_or_null<T>();
    kernel_args.d_receiver_terms = d_terms.receiver.data<T>();
    kernel_args.workspace = workspace.pointers<T>();
    launch("edge_backward", edge_backward_kernel<T, W, smooth, streamed>, shape, stream, kernel_args);
  });
}

}  // namespace meshgrad::cuda
