// SPDX-License-Identifier: Apache-2.0
// MLP backward over rows, in three launches. mlp_backward recomputes the hidden activations of a tile,
// propagates the gradient through its layers and stores the inputs' gradients; weight_gradients then
// multiplies the operands that it stored in the backward workspace, and adds the slices of the products.
#pragma once
#include <meshgrad/kernels/cuda/fused/fused_layers.h>

namespace meshgrad::cuda {

template <class T>
struct MlpBackwardArgs {
  FusedLayers<T> layers;
  int matrix_words;
  const int64_t* count;  ///< null: capacity
  int64_t capacity;
  const T* inputs[kMaxFusedInputs];
  const T* d_out;
  T* d_inputs[kMaxFusedInputs];  ///< null: not needed
  bool accumulate[kMaxFusedInputs];
  BackwardPointers<T> workspace;
};

/// d_x (+)= d_z_1 W^T for one input; `d_x` is scratch registers.
template <class T, int W, class Mlp>
__device__ void store_input_gradient(Mlp& mlp, WideSums<W>& d_x, const WideOperand<W>& d_z, int input, T* to,
                                     bool accumulate, const TileRows<TileShape<W>::kBands>& tile) {
  if (!mlp.has_narrow_input(input)) {
    d_x.clear();
    multiply_transposed<T>(d_x, d_z, mlp.weights, input);
    if (accumulate) {
      add_rows(d_x, to, tile);
      __syncwarp();  // lanes without a row read the last one, too, before its lane stores it
    }
    store_rows(d_x, to, tile.rows());
  } else {
    Sums<TileShape<W>::kBands, 1> narrow_d_x;
    narrow_d_x.clear();
    multiply_transposed<T>(narrow_d_x, d_z, mlp.weights, input);
    store_narrow_rows(narrow_d_x, to, mlp.layers.weights.matrices[input].rows, tile.rows(), accumulate);
  }
}

/// Per round: forward again up to z_last (z) or the last hidden activation (h), the gradient of z_last, the
/// layers back to d_z_1 (z in f32, h rounded), then each input's gradient from h. Column sums over all rounds
/// of the block are in shared memory and written once at the end.
template <class T, int W, bool narrow, bool smooth, bool streamed>
__global__ void __launch_bounds__(kFusedThreads, kFusedBlocks<W>)
    mlp_backward_kernel(MlpBackwardArgs<T> args) {
  using Backward = TileMlpBackward<T, W, narrow, smooth, streamed>;
  const int warp_words = Backward::warp_words(args.layers.layers);
  const FusedShared<W> shared(args.matrix_words, warp_words);
  TileMlp<T, W, narrow, smooth, streamed> mlp(args.layers, shared);
  Backward backward(mlp, args.workspace, shared.warp);
  const RoundRobinTiles<W, kBackwardTogether<W, streamed>> tiles(args.count, args.capacity);
  for (int round = 0; round < tiles.rounds; ++round) {
    if constexpr (kBackwardTogether<W, streamed>) __syncthreads();
    const auto tile = tiles.tile(round);
    if (!streamed && tile.empty()) continue;
    WideSums<W> z;
    WideOperand<W> h;
    start(z, mlp.vector(0));
    mlp.forward(
        z, h, tile, [&](int input, auto& x) { load_operand(x, args.inputs[input], tile.rows()); },
        [&](int input) { return args.inputs[input]; },
        [&](int layer, auto& from, auto& to) { backward.activate_hidden(layer, from, to, tile); });
    if (!mlp.has_narrow_output()) {
      // d_out may be the same memory as a d_input, which is stored below: by then d_out has been read.
      backward.output_gradient(z, tile, [&](int band) {
        typename Backward::Band d_y{};
        if (!tile.empty()) d_y.load(args.d_out, tile.existing().band(band));
        return d_y;
      });
    } else {
      backward.narrow_layer_backward(z, args.d_out, tile);
    }
    backward.backward(z, h, mlp.wide_layers() - 1, tile, false, [](auto&) {});
#pragma unroll 1
    for (int input = 0; input < args.layers.inputs; ++input) {
      if (args.d_inputs[input] == nullptr) continue;
      store_input_gradient<T, W>(mlp, z, h, input, args.d_inputs[input], args.accumulate[input], tile);
    }
  }
  backward.write_column_sums(warp_words);
}

template <bool smooth>
void launch_mlp_backward(const MlpBackward& args, const BackwardWorkspace& workspace, const FusedShape& shape,
                         const Stream& stream) {
  const int64_t width = args.inputs.front().weight.width();
  const bool narrow = any_narrow(args.inputs, args.weights);
  dispatch_fused(args.d_out.dtype(), width, shape.place, [&]<class T, int W, bool streamed>() {
    MlpBackwardArgs<T> kernel_args{.layers = fused_layers<T>(args.inputs, args.weights),
                                   .matrix_words = shape.matrix_words,
                                   .count = args.rows.count,
                                   .capacity = args.rows.capacity,
                                   .inputs = {},
                                   .d_out = args.d_out.data<T>(),
                                   .d_inputs = {},
                                   .accumulate = {},
                                   .workspace = workspace.pointers<T>()};
    for (size_t i = 0; i < args.inputs.size(); ++i) {
      kernel_args.inputs[i] = args.inputs[i].x.template data<T>();
      if (args.d_inputs[i].defined()) kernel_args.d_inputs[i] = args.d_inputs[i].template data<T>();
      kernel_args.accumulate[i] = args.accumulate[i];
    }
    launch("mlp_backward",
           narrow ? mlp_backward_kernel<T, W, true, smooth, streamed>
                  : mlp_backward_kernel<T, W, false, smooth, streamed>,
           shape, stream, kernel_args);
  });
}

}  // namespace meshgrad::cuda
