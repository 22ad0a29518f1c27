// SPDX-License-Identifier: Apache-2.0
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
  T* d_inputs[kMaxFusedInputs];  ///< null: not wanted
  bool accumulate[kMaxFusedInputs];
  FusedLeavings<T> leavings;
};

/// An input's gradient from d_z_1.
template <class T, int W, bool narrow>
__device__ void store_input_gradient(TileMlp<T, W, narrow>& mlp, typename TileMlp<T, W, narrow>::Wide& d_x,
                                     const typename TileMlp<T, W, narrow>::WideOperand& d_z, int input, T* to,
                                     bool accumulate, const TileRows<TileMlp<T, W, narrow>::kBands>& tile) {
  if (!mlp.has_narrow_input(input)) {
    d_x.clear();
    multiply_transposed<T>(d_x, d_z, mlp.weights, input);
    if (accumulate) add_rows(d_x, to, tile.rows());
    store_rows(d_x, to, tile.rows());
  } else {
    Sums<TileMlp<T, W, narrow>::kBands, 1> few;
    few.clear();
    multiply_transposed<T>(few, d_z, mlp.weights, input);
    store_narrow_rows(few, to, mlp.layers.weights.matrices[input].rows, tile.rows(), accumulate);
  }
}

template <class T, int W, bool narrow>
__global__ void __launch_bounds__(kFusedThreads, 1) mlp_backward_kernel(MlpBackwardArgs<T> args) {
  using Backward = TileMlpBackward<T, W, narrow>;
  const FusedShared<W> shared(args.matrix_words, Backward::kWarpWords);
  TileMlp<T, W, narrow> mlp(args.layers, shared);
  Backward backward(mlp, args.leavings, shared.warp);
  const TileDeal<W> deal(args.count, args.capacity);
  for (int round = 0; round < deal.rounds; ++round) {
    const auto tile = deal.tile(round);
    typename Backward::Wide z;
    typename Backward::WideOperand h;
    mlp.first_layer(z, h, args.inputs, tile);
    backward.recompute(z, h, tile);
    if (!mlp.has_narrow_output()) {
      const auto rows = tile.rows();
      backward.last_gradient(z, [&](int band, int half, int group) {
        return unpack<T>(load_pairs(args.d_out, W, rows.v[band][half], 32 * group + lane_column()));
      });
    } else {
      backward.before_narrow(z, args.d_out, tile);
    }
    backward.layers_before(z, h, mlp.wide_layers() - 1, tile);
#pragma unroll 1
    for (int input = 0; input < args.layers.inputs; ++input) {
      if (args.d_inputs[input] == nullptr) continue;
      store_input_gradient(mlp, z, h, input, args.d_inputs[input], args.accumulate[input], tile);
    }
  }
  backward.write_column_sums(Backward::kWarpWords);
}

int backward_warp_words(int64_t width) {
  if (width == 64) return TileMlpBackward<half, 64, false>::kWarpWords;
  return width == 128 ? TileMlpBackward<half, 128, false>::kWarpWords
                      : TileMlpBackward<half, 256, false>::kWarpWords;
}

bool overwrites_d_out(const MlpBackward& args) {
  return std::any_of(args.d_inputs.begin(), args.d_inputs.end(),
                     [&](const Tensor& d_x) { return d_x.defined() && d_x.raw() == args.d_out.raw(); });
}

}  // namespace

bool fused_covers(const MlpBackward& args) {
  if (!layers_covered(args.inputs, args.weights, args.saved, backward_warp_words)) return false;
  const int64_t width = args.inputs.front().weight.width();
  const bool wide = args.d_out.width() == width;
  bool covered = few_enough(args.rows.capacity) && (wide ? aligned(args.d_out) : !overwrites_d_out(args));
  for (size_t i = 0; i < args.inputs.size(); ++i) {
    covered = covered && (args.inputs[i].weight.rows() != width || aligned(args.d_inputs[i]));
  }
  return covered;
}

void fused_mlp_backward(const MlpBackward& args, Runtime& runtime, const Stream& stream) {
  if (args.rows.capacity == 0) return;
  const int64_t width = args.inputs.front().weight.width();
  const int64_t blocks = gpu::multiprocessors(stream.device().index);
  BackwardLeavings leavings(args.rows.capacity, width, args.d_out.dtype(), args.weights, args.d_weights,
                            blocks, runtime);
  // Without a norm the last layer's d_z is d_out itself, if that is still there afterwards.
  const bool d_out_serves = args.weights.norm == Norm::none && !overwrites_d_out(args);
  if (d_out_serves) leavings.d_z.back() = Tensor();
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
                                   .leavings = leavings.pointers<T>()};
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
  if (d_out_serves) leavings.d_z.back() = args.d_out;
  std::vector<WeightGradientJob> jobs;
  for (size_t i = 0; i < args.inputs.size(); ++i) {
    if (args.d_first_weights[i].defined())
      jobs.push_back({args.inputs[i].x, leavings.d_z.front(), args.d_first_weights[i], args.rows});
  }
  leavings.add_jobs(jobs, args.d_weights, args.rows);
  weight_gradients(jobs, leavings.column_sums(args.d_weights), runtime, stream);
}

}  // namespace meshgrad::cuda
