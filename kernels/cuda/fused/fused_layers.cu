// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/fused/fused_layers.h>

namespace meshgrad::cuda {

BackwardWorkspace::BackwardWorkspace(int64_t rows, int64_t width, DType dtype, const MlpWeights& weights,
                                     const MlpWeightGradients& gradients, int64_t blocks, Runtime& runtime) {
  const auto rows_of = [&](std::string_view name) {
    return Tensor::empty(runtime, {rows, width}, dtype, Tag::workspace, name);
  };
  d_z.push_back(rows_of("d_z"));
  for (size_t i = 0; i < weights.weights.size(); ++i) {
    const bool wanted = gradients.weights[i].defined();
    hidden.push_back(wanted ? rows_of("hidden") : Tensor());
    // A narrow layer is the last one and has no norm: its d_z is d_out, which the caller adds.
    d_z.push_back(wanted && weights.weights[i].width() == width ? rows_of("d_z") : Tensor());
  }
  partials =
      Tensor::empty(runtime, {blocks, kFusedVectors * width}, DType::f32, Tag::workspace, "column sums");
}

void BackwardWorkspace::add_jobs(std::vector<WeightGradientJob>& jobs, const MlpWeightGradients& gradients,
                                 const Rows& rows) const {
  for (size_t i = 0; i < gradients.weights.size(); ++i) {
    if (gradients.weights[i].defined()) jobs.push_back({hidden[i], d_z[i + 1], gradients.weights[i], rows});
  }
}

std::vector<ColumnSumJob> BackwardWorkspace::column_sums(const MlpWeightGradients& gradients) const {
  const int64_t width = partials.width() / kFusedVectors;  // a block's row is [kFusedVectors, width]
  std::vector<ColumnSumJob> jobs;
  const auto add = [&](int64_t vector, const Tensor& target) {
    if (target.defined()) jobs.push_back({partials, vector * width, target});
  };
  add(0, gradients.first_bias);
  for (size_t i = 0; i < gradients.biases.size(); ++i) add(static_cast<int64_t>(i) + 1, gradients.biases[i]);
  add(kFusedGain, gradients.gain);
  add(kFusedNormBias, gradients.norm_bias);
  return jobs;
}

}  // namespace meshgrad::cuda
