// SPDX-License-Identifier: Apache-2.0
// edge_forward: S, R and e to e' and the receivers' sums.
#pragma once
#include <meshgrad/kernels/cuda/fused/fused_edges.h>

namespace meshgrad::cuda {

template <class T>
struct EdgeForwardArgs {
  EdgeInputs<T> inputs;
  T* edges_out;  ///< null: not needed
  T* aggregate;
};

/// The tile stays in `z` from the pre-activation to e'. Receivers sum y (or e') in f32, before rounding. Per
/// round: gather and first layer, hidden layers, norm, receiver sums, residual, store. With resident weights
/// there is no barrier in the loop, so while one warp waits for gathered rows the others multiply.
template <class T, int W, bool smooth, bool streamed>
__global__ void __launch_bounds__(kFusedThreads, kFusedBlocks<W>)
    edge_forward_kernel(EdgeForwardArgs<T> args) {
  const EdgeInputs<T>& in = args.inputs;
  const FusedShared<W> shared(in.matrix_words, ForwardSums<T, W>::kStageFloats);
  EdgeMlp<T, W, smooth, streamed> mlp(in.layers, shared);
  const EdgeRange range = edge_range(in.list);
  const int rounds =
      rounds_of<streamed>((range.edge_end - range.edge_begin + EdgeTile<W>::kRows - 1) / EdgeTile<W>::kRows,
                          shared.warp, ForwardSums<T, W>::kStageFloats);
  ForwardSums<T, W> sums(shared.warp, args.aggregate, range);
  EdgeTile<W> next(in.list, range, 0);
  for (int round = 0; round < rounds; ++round) {
    const EdgeTile<W> tile = next;
    next = EdgeTile<W>(in.list, range, round + 1);
    WideSums<W> z;
    WideOperand<W> h;
    gather<T, W>(mlp, in, tile, z, h);
    prefetch_rows(in, next);
    forward_layers<T, W>(mlp, tile, z, h, [&](int, auto& from, auto& to) { mlp.activate_hidden(from, to); });
    LoadedRows<TileShape<W>::kGroups> own[TileShape<W>::kBands]{};
    if (in.residual && !tile.edges.empty()) {
#pragma unroll
      for (int band = 0; band < TileShape<W>::kBands; ++band)
        own[band].load(in.edges, tile.edges.existing().band(band));
    }
    mlp.apply_norm(z);
    // The sums of the receivers and the residual, in either order: a loop, so that there is one copy of each.
#pragma unroll 1
    for (int step = 0; step < 2; ++step) {
      if ((step == 0) != in.aggregate_after_residual) {
        sums.add(z, tile.receiver, tile.count());
      } else {
#pragma unroll
        for (int band = 0; band < TileShape<W>::kBands; ++band) add_loaded<T>(z, band, own[band]);
      }
    }
    if (args.edges_out == nullptr) continue;
    store_rows(z, args.edges_out, tile.edges.rows());
  }
  sums.finish(in.list);
}

template <bool smooth>
void launch_edge_forward(const EdgeUpdateForward& args, const NodeTermTensors& terms,
                         const DividedSumTensors& divided, const FusedShape& shape, const Stream& stream) {
  const int64_t width = args.edges.weight.width();
  dispatch_fused(args.aggregate.dtype(), width, shape.place, [&]<class T, int W, bool streamed>() {
    EdgeForwardArgs<T> kernel_args{};  // and no initialisers: see simt::Call
    kernel_args.inputs = edge_inputs<T>(args, terms, divided, shape);
    kernel_args.edges_out = args.edges_out.data_or_null<T>();
    kernel_args.aggregate = args.aggregate.data<T>();
    launch("edge_forward", edge_forward_kernel<T, W, smooth, streamed>, shape, stream, kernel_args);
  });
}

}  // namespace meshgrad::cuda
