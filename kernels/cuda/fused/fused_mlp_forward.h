// SPDX-License-Identifier: Apache-2.0
// MLP forward over rows, in one launch: y = norm(mlp(x_1, x_2, x_3)) + residual. One block per multiprocessor
// with all weights in shared memory (streamed at width 256); each of its warps takes tiles of rows through
// all layers in registers. Memory traffic is one read of inputs and residual and one write of the output.
#pragma once
#include <meshgrad/kernels/cuda/fused/fused_layers.h>

namespace meshgrad::cuda {

template <class T>
struct MlpForwardArgs {
  FusedLayers<T> layers;
  int matrix_words;
  const int64_t* count;  ///< null: capacity
  int64_t capacity;
  const T* inputs[kMaxFusedInputs];
  const T* residual;  ///< null: none
  T* out;
};

/// One block per multiprocessor, so that a thread has 255 registers. Below width 256 there is no barrier
/// after the weights are loaded: while one warp waits for its rows, the others multiply.
template <class T, int W, bool narrow, bool smooth>
__global__ void __launch_bounds__(kFusedThreads, kFusedBlocks<W>) mlp_forward_kernel(MlpForwardArgs<T> args) {
  constexpr int kBands = TileShape<W>::kBands;
  const FusedShared<W> shared(args.matrix_words, 0);
  TileMlp<T, W, narrow, smooth> mlp(args.layers, shared);
  const RoundRobinTiles<W> tiles(args.count, args.capacity);
  for (int round = 0; round < tiles.rounds; ++round) {
    const auto tile = tiles.tile(round);
    WideSums<W> z;
    WideOperand<W> h;
    start(z, mlp.vector(0));
    mlp.forward(
        z, h, tile, [&](int input, auto& x) { load_operand(x, args.inputs[input], tile.rows()); },
        [&](int input) { return args.inputs[input]; },
        [&](int, auto& from, auto& to) { mlp.activate_hidden(from, to); });
    if (!mlp.has_narrow_output()) {
      mlp.apply_norm(z);
      if (args.residual != nullptr) add_rows(z, args.residual, tile);
      store_rows(z, args.out, tile.rows());
    } else {  // a decoder: few columns, no norm and no residual
      Sums<kBands, 1> y;
      mlp.narrow_layer(y, h);
      store_narrow_rows(y, args.out, args.layers.out, tile.rows());
    }
  }
}

template <bool smooth>
void launch_mlp_forward(const MlpForward& args, const Stream& stream) {
  const int64_t width = args.inputs.front().weight.width();
  const bool narrow = any_narrow(args.inputs, args.weights);
  dispatch_fused(args.out.dtype(), width, [&]<class T, int W>() {
    MlpForwardArgs<T> kernel_args{.layers = fused_layers<T>(args.inputs, args.weights),
                                  .matrix_words = matrix_words(args.inputs, args.weights),
                                  .count = args.rows.count,
                                  .capacity = args.rows.capacity,
                                  .inputs = {},
                                  .residual = args.residual.data_or_null<T>(),
                                  .out = args.out.data<T>()};
    for (size_t i = 0; i < args.inputs.size(); ++i)
      kernel_args.inputs[i] = args.inputs[i].x.template data<T>();
    launch("mlp_forward",
           narrow ? mlp_forward_kernel<T, W, true, smooth> : mlp_forward_kernel<T, W, false, smooth>,
           {.blocks = fused_blocks(stream, W),
            .threads = kFusedThreads,
            .shared_bytes = shared_bytes(W, kernel_args.matrix_words, 0)},
           stream, kernel_args);
  });
}

}  // namespace meshgrad::cuda
