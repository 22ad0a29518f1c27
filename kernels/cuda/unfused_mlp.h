// SPDX-License-Identifier: Apache-2.0
// The layers of an MLP behind its first sum, one launch an op: what the general paths of mlp and
// message_passing share. Every intermediate is rounded to storage, so that what was kept and what is computed
// again are the same bits.
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

/// z[0] .. z[last], each where `saved` keeps it or in scratch memory.
std::vector<Tensor> places_of_sums(const Layers& layers, int64_t first_width, const MlpSaved& saved);

/// z[1] .. from z[0]. With `last` false the last one is left out: it has been kept.
void run_layers(const Layers& layers, const std::vector<Tensor>& z, bool last = true);

/// out = norm(z_last) + residual, or z_last + residual without a norm. The residual may be undefined.
void finish(const Layers& layers, const Tensor& z_last, const Tensor& residual, const Tensor& out);

/// Gradients behind the first layer are accumulated; returns d_z[0], in memory that nobody else holds. d_out
/// is left as it is.
Tensor layers_backward(const Layers& layers, const std::vector<Tensor>& z, const Tensor& d_out,
                       const MlpWeightGradients& gradients);

/// z += x W of an MLP's input.
void add_input(const Layers& layers, const MlpInput& input, const Tensor& bias, const Tensor& z,
               bool accumulate);

}  // namespace meshgrad::cuda
