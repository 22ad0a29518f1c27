// SPDX-License-Identifier: Apache-2.0
// The layers of an MLP after its first one, one launch per operation: shared by the general paths of mlp and
// message_passing, whose first layers differ. Every intermediate is rounded to storage, so that saved and
// recomputed activations have the same bits. z[0] .. z.back() are the pre-activations z_1 .. z_last of mlp.h.
#pragma once
#include <meshgrad/kernels/mlp.h>

namespace meshgrad::cuda {

/// One MLP call. The referenced arguments outlive it.
struct Layers {
  Rows rows;
  DType dtype = DType::f32;
  const MlpWeights& weights;
  Runtime& runtime;
  const Stream& stream;

  int64_t width(size_t layer) const;
  Tensor scratch(int64_t columns, std::string_view name) const;
};

/// Buffers for all pre-activations: the tensors of `saved`, or workspace where it has none.
std::vector<Tensor> preactivation_buffers(const Layers& layers, int64_t first_width, const MlpSaved& saved);

/// Computes z[1] .. z.back() from z[0]; without `last`, all but z.back().
void run_layers(const Layers& layers, const std::vector<Tensor>& z, bool last = true);

/// out = norm(z_last) + residual, or z_last + residual without a norm. The residual may be undefined.
void norm_and_residual(const Layers& layers, const Tensor& z_last, const Tensor& residual, const Tensor& out);

/// Accumulates the gradients of all layers after the first and returns d_z_1, which no other tensor shares.
/// d_out is only read.
Tensor layers_backward(const Layers& layers, const std::vector<Tensor>& z, const Tensor& d_out,
                       const MlpWeightGradients& gradients);

/// z (+)= x W + bias for one input of an MLP's first layer; the bias may be undefined.
void add_input(const Layers& layers, const MlpInput& input, const Tensor& bias, const Tensor& z,
               bool accumulate);

}  // namespace meshgrad::cuda
