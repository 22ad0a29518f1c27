// SPDX-License-Identifier: Apache-2.0
// The fused MLP. A task of forward is one tile of rows; a task of backward is a slab of rows, for each of
// which it sums weight gradients of its own.
#include <meshgrad/kernels/cpu/mlp_tile.h>
#include <meshgrad/kernels/tables.h>

#include <algorithm>

namespace meshgrad::cpu {
namespace {

template <class S>
void forward(const MlpForward& args, Runtime& runtime, const Stream& stream) {
  const MlpTile<S> mlp(args.inputs, args.weights, args.saved, MlpTile<S>::Direction::forward, runtime);
  const int64_t rows = args.rows.value();
  const int64_t out = mlp.out_width();
  stream.parallel_for((rows + kTileRows<S> - 1) / kTileRows<S>, [&](int64_t tile) {
    TileScratch<S> s = mlp.scratch();
    const int64_t row = tile * kTileRows<S>;
    const int64_t count = std::min(kTileRows<S>, rows - row);
    mlp.begin_tile(row, count, {}, s);
    const Gemm<S> last = mlp.forward_to_last(row, count, mlp.first_start(), s);
    NormResult<S> result{.out = args.out.data<S>() + row * out};
    if (args.residual.defined()) result.residual = args.residual.data<S>() + row * out;
    mlp.finish(row, last, result, s);
  });
}

template <class S>
void backward(const MlpBackward& args, Runtime& runtime, const Stream& stream) {
  MlpTile<S> mlp(args.inputs, args.weights, args.saved, MlpTile<S>::Direction::backward, runtime);
  PerInput<bool> wanted;
  for (const Tensor& d_weight : args.d_first_weights) wanted.push_back(d_weight.defined());
  mlp.plan_gradients(wanted);
  const int64_t rows = args.rows.value();
  const int64_t out = mlp.out_width();
  const int64_t slabs = gradient_slabs(rows);
  const int64_t slab_rows = (rows + slabs - 1) / slabs;
  const Tensor gradients = mlp.allocate_gradient_slabs(slabs, runtime);
  stream.parallel_for(slabs, [&](int64_t slab) {
    TileScratch<S> s = mlp.scratch();
    SlabGradients sums = mlp.begin_slab(gradients, slab);
    const int64_t end = std::min(rows, (slab + 1) * slab_rows);
    for (int64_t row = slab * slab_rows; row < end; row += kTileRows<S>) {
      const int64_t count = std::min(kTileRows<S>, end - row);
      mlp.begin_tile(row, count, args.d_out, s);
      mlp.load_or_recompute_hidden(row, count, mlp.first_start(), s);
      row_ops<S>().load(count, out, args.d_out.data<S>() + row * out, out, s.a, mlp.tile_row());
      const LayerGradient<S> d_z1 = mlp.backward(row, count, s, sums);
      for (size_t i = 0; i < args.inputs.size(); ++i) {
        if (!args.d_inputs[i].defined()) continue;
        const int64_t in = args.d_inputs[i].width();
        S* to = args.d_inputs[i].data<S>() + row * in;
        gemm_ops<S>().stored(mlp.input_gradient(i, count, d_z1),
                             {to, in, args.accumulate[i] ? to : nullptr, in});
      }
    }
    mlp.end_slab(sums);
  });
  mlp.reduce(gradients, args.d_first_weights, args.d_weights, stream);
}

}  // namespace

const MlpKernels mlp_kernels{
    .saves_hidden = [](const MlpForward&) { return true; },
    .forward =
        [](const MlpForward& args, Runtime& runtime, const Stream& stream) {
          dispatch_gemm_storage(args.out.dtype(), [&]<class S>() { forward<S>(args, runtime, stream); });
        },
    .backward =
        [](const MlpBackward& args, Runtime& runtime, const Stream& stream) {
          dispatch_gemm_storage(args.d_out.dtype(), [&]<class S>() { backward<S>(args, runtime, stream); });
        },
};

}  // namespace meshgrad::cpu
