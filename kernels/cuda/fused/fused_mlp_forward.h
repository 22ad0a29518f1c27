// SPDX-License-Identifier: Apache-2.0
// MLP forward over rows, in one launch: y = norm(mlp(x_1, x_2, x_3)) + residual. One block per multiprocessor
// with all weights in shared memory, or streamed; each of its warps takes tiles of rows through
// all layers in registers. Memory traffic is one read of inputs and residual and one write of the output.
//
// Of a block's nodes, y may go on to the node terms of the next block, S = y W_s and R = y W_r, before it
// leaves the registers: the same operand and the same order of additions as in node_terms_forward, so the
// same bits.
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
  uint32_t all_bits;  ///< see store_operand
  T* node_terms[2];   ///< out times the last two of the matrices, if they are not the MLP's
  int32_t* tickets;   ///< zeroed, for the next edge update
  int ticket_count;
};

/// At width 256 registers are short, so that node terms have a launch of their own there.
template <int W, bool narrow>
inline constexpr bool kMakesNodeTerms = !narrow && W < 256;

/// One block per multiprocessor, so that a thread has 255 registers. With resident weights there is no
/// barrier after they are loaded: while one warp waits for its rows, the others multiply.
template <class T, int W, bool narrow, bool smooth, bool streamed>
__global__ void __launch_bounds__(kFusedThreads, kFusedBlocks<W>) mlp_forward_kernel(MlpForwardArgs<T> args) {
  constexpr int kBands = TileShape<W>::kBands;
  const FusedShared<W> shared(args.matrix_words, 0);
  TileMlp<T, W, narrow, smooth, streamed> mlp(args.layers, shared);
  const RoundRobinTiles<W, streamed> tiles(args.count, args.capacity);
  if constexpr (kMakesNodeTerms<W, narrow>) {
    const auto threads = static_cast<int>(gridDim.x) * kFusedThreads;
    for (int i = static_cast<int>(blockIdx.x * kFusedThreads + threadIdx.x); i < args.ticket_count;
         i += threads)
      args.tickets[i] = 0;
  }
  for (int round = 0; round < tiles.rounds; ++round) {
    const auto tile = tiles.tile(round);
    WideSums<W> z;
    WideOperand<W> h;
    start(z, mlp.vector(0));
    const auto finish_output = [&] {
      mlp.apply_norm(z);
      if (args.residual != nullptr) add_rows(z, args.residual, tile);
    };
    mlp.template forward<kMakesNodeTerms<W, narrow>>(
        z, h, tile, [&](int input, auto& x) { load_operand(x, args.inputs[input], tile.rows()); },
        [&](int input) { return args.inputs[input]; },
        [&](int layer, auto& from, auto& to) {
          const int behind = layer - args.layers.layers;
          if (!kMakesNodeTerms<W, narrow> || behind < 0) {
            mlp.activate_hidden(from, to);
          } else if (behind == 0) {
            finish_output();
            to_operand<T>(from, to);
            store_operand(to, args.out, tile.rows(), args.all_bits);
          } else {
            store_rows(from, behind == 1 ? args.node_terms[0] : args.node_terms[1], tile.rows());
          }
        });
    if constexpr (!kMakesNodeTerms<W, narrow>) {
      if (!mlp.has_narrow_output()) {
        finish_output();
        store_rows(z, args.out, tile.rows());
      } else {  // a decoder: few columns, no norm and no residual
        Sums<kBands, 1> y;
        mlp.narrow_layer(y, h);
        store_narrow_rows(y, args.out, args.layers.out, tile.rows());
      }
    }
  }
}

template <bool smooth>
void launch_mlp_forward(const MlpForward& args, const Stream& stream) {
  const int64_t width = args.inputs.front().weight.width();
  const bool narrow = any_narrow(args.inputs, args.weights);
  const bool with_terms = args.node_terms != nullptr && args.node_terms->sender.defined();
  const NodeTermsAhead* const terms = with_terms ? args.node_terms : nullptr;
  const FusedShape shape =
      fused_shape(stream.device().index, args.inputs, args.weights, 0, with_terms ? 2 : 0);
  dispatch_fused(args.out.dtype(), width, shape.place, [&]<class T, int W, bool streamed>() {
    MlpForwardArgs<T> kernel_args{.layers = fused_layers<T>(args.inputs, args.weights, terms),
                                  .matrix_words = shape.matrix_words,
                                  .count = args.rows.count,
                                  .capacity = args.rows.capacity,
                                  .inputs = {},
                                  .residual = args.residual.data_or_null<T>(),
                                  .out = args.out.data<T>(),
                                  .all_bits = 0xffffffffu};
    if (with_terms) {
      kernel_args.node_terms[0] = terms->sender.template data<T>();
      kernel_args.node_terms[1] = terms->receiver.template data<T>();
      kernel_args.tickets = terms->tickets.template data<int32_t>();
      kernel_args.ticket_count = static_cast<int>(terms->tickets.elements());
    }
    for (size_t i = 0; i < args.inputs.size(); ++i)
      kernel_args.inputs[i] = args.inputs[i].x.template data<T>();
    launch("mlp_forward",
           narrow ? mlp_forward_kernel<T, W, true, smooth, streamed>
                  : mlp_forward_kernel<T, W, false, smooth, streamed>,
           shape, stream, kernel_args);
  });
}

}  // namespace meshgrad::cuda
