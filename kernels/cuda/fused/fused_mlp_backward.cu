// SPDX-License-Identifier: Apache-2.0
// MLP backward over rows, in two launches. mlp_backward recomputes the hidden activations of a tile,
// propagates the gradient through its layers and stores the inputs' gradients; weight_gradients then
// multiplies the operands that it stored in the backward workspace.
#include <meshgrad/kernels/cuda/fused/fused_layers.h>

#include <algorithm>

namespace meshgrad::cuda {
namespace {

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
template <class T, int W, bool narrow>
__device__ void store_input_gradient(TileMlp<T, W, narrow>& mlp, typename TileMlp<T, W, narrow>::Wide& d_x,
                                     const typename TileMlp<T, W, narrow>::WideOperand& d_z, int input, T* to,
                                     bool accumulate, const TileRows<TileMlp<T, W, narrow>::kBands>& tile) {
  if (!mlp.has_narrow_input(input)) {
    d_x.clear();
    multiply_transposed<T>(d_x, d_z, mlp.weights, input);
    if (accumulate) {
      add_rows(d_x, to, tile);
      __syncwarp();  // lanes without a row read the last one, too, before its lane stores it
    }
    store_rows(d_x, to, tile.rows());
  } else {
    Sums<TileMlp<T, W, narrow>::kBands, 1> narrow_d_x;
    narrow_d_x.clear();
    multiply_transposed<T>(narrow_d_x, d_z, mlp.weights, input);
    store_narrow_rows(narrow_d_x, to, mlp.layers.weights.matrices[input].rows, tile.rows(), accumulate);
  }
}

/// Per round: forward again up to z_last (z) or the last hidden activation (h), the gradient of z_last, the
/// layers back to d_z_1 (z in f32, h rounded), then each input's gradient from h. Column sums over all rounds
/// of the block are in shared memory and written once at the end.
template <class T, int W, bool narrow>
__global__ void __launch_bounds__(kFusedThreads, kFusedBlocks<W>)
    mlp_backward_kernel(MlpBackwardArgs<T> args) {
  using Backward = TileMlpBackward<T, W, narrow>;
  const FusedShared<W> shared(args.matrix_words, Backward::kWarpWords);
  TileMlp<T, W, narrow> mlp(args.layers, shared);
  Backward backward(mlp, args.workspace, shared.warp);
  const RoundRobinTiles<W> tiles(args.count, args.capacity);
  for (int round = 0; round < tiles.rounds; ++round) {
    const auto tile = tiles.tile(round);
    typename Backward::Wide z;
    typename Backward::WideOperand h;
    start(z, mlp.vector(0));
    mlp.forward(
        z, h, tile, [&](int input, auto& x) { load_operand(x, args.inputs[input], tile.rows()); },
        [&](int input) { return args.inputs[input]; },
        [&](int layer, auto& hidden) { backward.keep_hidden(layer, hidden, tile); });
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
      store_input_gradient(mlp, z, h, input, args.d_inputs[input], args.accumulate[input], tile);
    }
  }
  backward.write_column_sums(Backward::kWarpWords);
}

/// Shared memory per warp in words; the storage type does not matter, since sums are f32 and masks are bits.
int backward_warp_words(int64_t width) {
  if (width == 64) return TileMlpBackward<half, 64, false>::kWarpWords;
  return width == 128 ? TileMlpBackward<half, 128, false>::kWarpWords
                      : TileMlpBackward<half, 256, false>::kWarpWords;
}

/// True when an input's gradient is the same memory as d_out, as for an input that is also the residual.
bool overwrites_d_out(const MlpBackward& args) {
  return std::any_of(args.d_inputs.begin(), args.d_inputs.end(),
                     [&](const Tensor& d_x) { return d_x.defined() && d_x.raw() == args.d_out.raw(); });
}

}  // namespace

std::string why_not_fused(const MlpBackward& args) {
  std::string reason = why_unsupported(args.inputs, args.weights, args.saved, backward_warp_words);
  if (!reason.empty()) return reason;
  const int64_t width = args.inputs.front().weight.width();
  const bool wide = args.d_out.width() == width;
  if (!wide && overwrites_d_out(args)) return "an input gradient in the memory of a narrow output's";
  bool fits = fits_int32(args.rows.capacity) && (!wide || aligned(args.d_out));
  for (size_t i = 0; i < args.inputs.size(); ++i) {
    fits = fits && (args.inputs[i].weight.rows() != width || aligned(args.d_inputs[i]));
  }
  return fits ? "" : kUnaligned;
}

void fused_mlp_backward(const MlpBackward& args, Runtime& runtime, const Stream& stream) {
  if (args.rows.capacity == 0) return;
  const int64_t width = args.inputs.front().weight.width();
  const int64_t blocks = fused_blocks(stream, width);
  BackwardWorkspace workspace(args.rows.capacity, width, args.d_out.dtype(), args.weights, args.d_weights,
                              blocks, runtime);
  // Without a norm the last layer's d_z is d_out itself, unless this kernel overwrites d_out.
  const bool d_out_is_d_z = args.weights.norm == Norm::none && !overwrites_d_out(args);
  if (d_out_is_d_z) workspace.d_z.back() = Tensor();
  const bool narrow = any_narrow(args.inputs, args.weights);
  dispatch_fused(args.d_out.dtype(), width, [&]<class T, int W>() {
    MlpBackwardArgs<T> kernel_args{.layers = fused_layers<T>(args.inputs, args.weights),
                                   .matrix_words = matrix_words(args.inputs, args.weights),
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
    launch(
        "mlp_backward", narrow ? mlp_backward_kernel<T, W, true> : mlp_backward_kernel<T, W, false>,
        {.blocks = blocks,
         .threads = kFusedThreads,
         .shared_bytes = shared_bytes(W, kernel_args.matrix_words, TileMlpBackward<T, W, false>::kWarpWords)},
        stream, kernel_args);
  });
  if (d_out_is_d_z) workspace.d_z.back() = args.d_out;
  std::vector<WeightGradientJob> jobs;
  for (size_t i = 0; i < args.inputs.size(); ++i) {
    if (args.d_first_weights[i].defined())
      jobs.push_back({args.inputs[i].x, workspace.d_z.front(), args.d_first_weights[i], args.rows});
  }
  workspace.add_jobs(jobs, args.d_weights, args.rows);
  weight_gradients(jobs, workspace.column_sums(args.d_weights), runtime, stream);
}

}  // namespace meshgrad::cuda
