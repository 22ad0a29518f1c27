// SPDX-License-Identifier: Apache-2.0
// The general path: one launch an op, any width.
#include <meshgrad/kernels/cuda/fused/fused.h>
#include <meshgrad/kernels/cuda/unfused_mlp.h>
#include <meshgrad/kernels/tables.h>

namespace meshgrad::cuda {
namespace {

/// z_1 and the sums after it; the last one only if `last`.
void run(const Layers& layers, const PerInput<MlpInput>& inputs, const std::vector<Tensor>& z, bool last) {
  if (z.size() > 1 || last) {
    for (size_t i = 0; i < inputs.size(); ++i)
      add_input(layers, inputs[i], i == 0 ? layers.weights.first_bias : Tensor(), z[0], i > 0);
  }
  run_layers(layers, z, last);
}

void forward(const MlpForward& args, Runtime& runtime, const Stream& stream) {
  if (args.rows.capacity == 0) return;
  if (fused_covers(args)) return fused_mlp_forward(args, runtime, stream);
  const Layers layers{args.rows, args.out.dtype(), args.weights, runtime, stream};
  std::vector<Tensor> z = places_of_sums(layers, args.inputs[0].weight.width(), args.saved);
  const bool direct = args.weights.norm == Norm::none && !args.residual.defined();
  if (direct) z.back() = args.out;
  run(layers, args.inputs, z, true);
  if (!direct) finish(layers, z.back(), args.residual, args.out);
}

void backward(const MlpBackward& args, Runtime& runtime, const Stream& stream) {
  if (args.rows.capacity == 0) return;
  if (fused_covers(args)) return fused_mlp_backward(args, runtime, stream);
  const Layers layers{args.rows, args.d_out.dtype(), args.weights, runtime, stream};
  // Only a complete record is used: forward gives the same bits again.
  const bool complete = saved_is_complete(args.weights, args.saved);
  const std::vector<Tensor> z =
      places_of_sums(layers, args.inputs[0].weight.width(), complete ? args.saved : MlpSaved{});
  if (!complete) run(layers, args.inputs, z, args.weights.norm != Norm::none);
  const Tensor d_z = layers_backward(layers, z, args.d_out, args.d_weights);

  Tensor bias = args.d_weights.first_bias;
  for (size_t i = 0; i < args.inputs.size(); ++i) {
    linear_kernels.backward({.rows = args.rows,
                             .d_y = d_z,
                             .x = args.inputs[i].x,
                             .weight = args.inputs[i].weight,
                             .d_x = args.d_inputs[i],
                             .accumulate_d_x = args.accumulate[i],
                             .d_weight = args.d_first_weights[i],
                             .d_bias = bias},
                            runtime, stream);
    bias = Tensor();  // the sum of d_z's columns belongs to one input
  }
}

}  // namespace

const MlpKernels mlp_kernels{.saving_helps = [](const MlpForward& args) { return !fused_covers(args); },
                             .forward = forward,
                             .backward = backward};

}  // namespace meshgrad::cuda
