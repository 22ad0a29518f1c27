// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/fused/fused_layers.h>

namespace meshgrad::cuda {
namespace {

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

template <class T, int W, bool narrow>
__global__ void __launch_bounds__(kFusedThreads, 1) mlp_forward_kernel(MlpForwardArgs<T> args) {
  constexpr int kBands = TileShape<W>::kBands;
  const FusedShared<W> shared(args.matrix_words, 0);
  TileMlp<T, W, narrow> mlp(args.layers, shared);
  const TileDeal<W> deal(args.count, args.capacity);
  for (int round = 0; round < deal.rounds; ++round) {
    const auto tile = deal.tile(round);
    typename TileMlp<T, W, narrow>::Wide z;
    typename TileMlp<T, W, narrow>::WideOperand h;
    mlp.first_layer(z, h, args.inputs, tile);
    mlp.hidden_layers(
        z, h, [](int, auto&) {}, [](int, auto&) {});
    if (!mlp.has_narrow_output()) {
      mlp.finish(z);
      if (args.residual != nullptr) add_rows(z, args.residual, tile.rows());
      store_rows(z, args.out, tile.rows());
    } else {
      Sums<kBands, 1> y;
      mlp.narrow_layer(y, h);
      store_narrow_rows(y, args.out, args.layers.out, tile.rows());
    }
  }
}

}  // namespace

bool fused_covers(const MlpForward& args) {
  if (!layers_covered(args.inputs, args.weights, args.saved, [](int64_t) { return 0; })) return false;
  const bool wide = args.out.width() == args.inputs.front().weight.width();
  return few_enough(args.rows.capacity) && (wide ? aligned(args.out) : !args.residual.defined()) &&
         aligned(args.residual);
}

void fused_mlp_forward(const MlpForward& args, Runtime&, const Stream& stream) {
  if (args.rows.capacity == 0) return;
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
    launch("mlp_forward", narrow ? mlp_forward_kernel<T, W, true> : mlp_forward_kernel<T, W, false>,
           {.blocks = gpu::multiprocessors(stream.device().index),
            .threads = kFusedThreads,
            .shared_bytes = shared_bytes(W, kernel_args.matrix_words, 0)},
           stream, kernel_args);
  });
}

}  // namespace meshgrad::cuda
