// SPDX-License-Identifier: Apache-2.0
// MLPs by the fused kernels where these support the call, otherwise by the general path: one launch per
// operation, any width, activation and storage type.
#include <meshgrad/kernels/cuda/fused/fused.h>
#include <meshgrad/kernels/cuda/unfused_mlp.h>
#include <meshgrad/kernels/tables.h>

namespace meshgrad::cuda {
namespace {

/// Computes the pre-activations z[0] .. z.back(); without `last`, all but z.back(), which backward needs only
/// for the norm.
void forward_layers(const Layers& layers, const PerInput<MlpInput>& inputs, const std::vector<Tensor>& z,
                    bool last) {
  if (z.size() > 1 || last) {
    for (size_t i = 0; i < inputs.size(); ++i)
      add_input(layers, inputs[i], i == 0 ? layers.weights.first_bias : Tensor(), z[0], i > 0);
  }
  run_layers(layers, z, last);
}

void forward(const MlpForward& args, Runtime& runtime, const Stream& stream) {
  if (args.rows.capacity == 0) return;
  if (fused_supports(args, "MLP forward", args.out.dtype(), runtime))
    return fused_mlp_forward(args, runtime, stream);
  const Layers layers{args.rows, args.out.dtype(), args.weights, runtime, stream};
  std::vector<Tensor> z = preactivation_buffers(layers, args.inputs[0].weight.width(), args.saved);
  const bool direct = args.weights.norm == Norm::none && !args.residual.defined();  // the output is z.back()
  if (direct) z.back() = args.out;
  forward_layers(layers, args.inputs, z, true);
  if (!direct) norm_and_residual(layers, z.back(), args.residual, args.out);
}

void backward(const MlpBackward& args, Runtime& runtime, const Stream& stream) {
  if (args.rows.capacity == 0) return;
  if (fused_supports(args, "MLP backward", args.d_out.dtype(), runtime))
    return fused_mlp_backward(args, runtime, stream);
  const Layers layers{args.rows, args.d_out.dtype(), args.weights, runtime, stream};
  // Saved activations are used if all of them are there; otherwise all are recomputed, to the same bits.
  const bool complete = saved_is_complete(args.weights, args.saved);
  const std::vector<Tensor> z =
      preactivation_buffers(layers, args.inputs[0].weight.width(), complete ? args.saved : MlpSaved{});
  if (!complete) forward_layers(layers, args.inputs, z, args.weights.norm != Norm::none);
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
    bias = Tensor();  // the inputs share one bias: its gradient is added once
  }
}

}  // namespace

const MlpKernels mlp_kernels{.saves_hidden = [](const MlpForward& args) { return !fused_supports(args); },
                             .forward = forward,
                             .backward = backward};

}  // namespace meshgrad::cuda
