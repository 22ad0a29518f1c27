// SPDX-License-Identifier: Apache-2.0
// Backward of layer l, from the last to the second, with h_l = f(z_l):
//   d_W_l += h_{l-1}^T d_z_l,  d_b_l += column sums of d_z_l,  d_z_{l-1} = (d_z_l W_l^T) * f'(z_{l-1})
// d_h becomes d_z in place, so at most two [rows, width] gradients are alive.
#include <meshgrad/kernels/cuda/norm.h>
#include <meshgrad/kernels/cuda/unfused_mlp.h>
#include <meshgrad/kernels/tables.h>

namespace meshgrad::cuda {
namespace {

/// h = f(z), in workspace.
Tensor activated(const Layers& layers, const Tensor& z) {
  const Tensor h = layers.scratch(z.width(), "hidden");
  elementwise_kernels.activation_forward({layers.weights.activation, z, h}, layers.stream);
  return h;
}

/// d_z of the last layer: through the norm, or d_out itself. With a single layer it is a copy of d_out, since
/// an input's gradient may be the same memory as d_out and is written while other inputs still need d_z.
Tensor output_gradient(const Layers& layers, const Tensor& z_last, const Tensor& d_out,
                       const MlpWeightGradients& gradients) {
  if (layers.weights.norm == Norm::none && layers.weights.layers() > 1) return d_out;
  const Tensor d_z = layers.scratch(d_out.width(), "d_z");
  if (layers.weights.norm == Norm::none) {
    segment_sum_kernels.gather({.rows = layers.rows, .index = {}, .x = d_out, .out = d_z}, layers.stream);
  } else {
    norm_rows_backward({.norm = layers.weights.norm,
                        .rows = layers.rows,
                        .x = z_last,
                        .gain = layers.weights.gain,
                        .d_y = d_out,
                        .epsilon = layers.weights.epsilon,
                        .d_x = d_z,
                        .d_gain = gradients.gain,
                        .d_bias = gradients.norm_bias},
                       layers.runtime, layers.stream);
  }
  return d_z;
}

}  // namespace

int64_t Layers::width(size_t layer) const { return weights.weights[layer - 1].width(); }

Tensor Layers::scratch(int64_t columns, std::string_view name) const {
  return Tensor::empty(runtime, {rows.capacity, columns}, dtype, Tag::workspace, name);
}

std::vector<Tensor> preactivation_buffers(const Layers& layers, int64_t first_width, const MlpSaved& saved) {
  const size_t last = layers.weights.weights.size();
  std::vector<Tensor> z;
  for (size_t layer = 0; layer <= last; ++layer) {
    Tensor buffer;
    if (layer < last && layer < saved.pre_activations.size()) buffer = saved.pre_activations[layer];
    if (layer == last && layers.weights.norm != Norm::none) buffer = saved.pre_norm;
    if (!buffer.defined()) buffer = layers.scratch(layer == 0 ? first_width : layers.width(layer), "z");
    z.push_back(buffer);
  }
  return z;
}

void add_input(const Layers& layers, const MlpInput& input, const Tensor& bias, const Tensor& z,
               bool accumulate) {
  linear_kernels.forward({.rows = layers.rows,
                          .x = input.x,
                          .weight = input.weight,
                          .bias = bias,
                          .y = z,
                          .accumulate = accumulate},
                         layers.runtime, layers.stream);
}

void run_layers(const Layers& layers, const std::vector<Tensor>& z, bool last) {
  const size_t end = last ? z.size() : z.size() - 1;
  for (size_t layer = 1; layer < end; ++layer) {
    add_input(layers, {activated(layers, z[layer - 1]), layers.weights.weights[layer - 1]},
              layers.weights.biases[layer - 1], z[layer], false);
  }
}

void norm_and_residual(const Layers& layers, const Tensor& z_last, const Tensor& residual,
                       const Tensor& out) {
  if (layers.weights.norm != Norm::none) {
    norm_rows({.norm = layers.weights.norm,
               .rows = layers.rows,
               .x = z_last,
               .gain = layers.weights.gain,
               .bias = layers.weights.norm_bias,
               .epsilon = layers.weights.epsilon,
               .y = out},
              residual, layers.stream);
    return;
  }
  const auto add = [&](const Tensor& x, bool accumulate) {  // segments of one row: a copy or an addition
    segment_sum_kernels.segment_sum(
        {.segments = layers.rows, .offsets = {}, .order = {}, .x = x, .out = out, .accumulate = accumulate},
        layers.stream);
  };
  const bool in_place = residual.defined() && residual.raw() == out.raw();
  if (residual.defined() && !in_place) add(residual, false);
  add(z_last, residual.defined());
}

Tensor layers_backward(const Layers& layers, const std::vector<Tensor>& z, const Tensor& d_out,
                       const MlpWeightGradients& gradients) {
  const MlpWeights& weights = layers.weights;
  Tensor d_z = output_gradient(layers, z.back(), d_out, gradients);
  for (size_t layer = z.size() - 1; layer > 0; --layer) {
    const Tensor d_h = layers.scratch(z[layer - 1].width(), "d_h");
    LinearBackward step{.rows = layers.rows,
                        .d_y = d_z,
                        .x = {},
                        .weight = weights.weights[layer - 1],
                        .d_x = d_h,
                        .d_weight = gradients.weights[layer - 1],
                        .d_bias = gradients.biases[layer - 1]};
    // h is recomputed from z instead of saved as well: an elementwise launch instead of a matrix in memory.
    if (step.d_weight.defined()) step.x = activated(layers, z[layer - 1]);
    linear_kernels.backward(step, layers.runtime, layers.stream);
    elementwise_kernels.activation_backward(
        {.activation = weights.activation, .x = z[layer - 1], .d_y = d_h, .d_x = d_h}, layers.stream);
    d_z = d_h;
  }
  return d_z;
}

}  // namespace meshgrad::cuda
