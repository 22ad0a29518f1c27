// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/cuda/fused/fused_layers.h>

#include <algorithm>

namespace meshgrad::cuda {
namespace {

bool nothing_saved(const MlpSaved& saved) {
  bool nothing = !saved.pre_norm.defined();
  for (const Tensor& z : saved.pre_activations) nothing = nothing && !z.defined();
  return nothing;
}

std::string why_widths_unsupported(std::span<const MlpInput> inputs, const MlpWeights& weights) {
  const int64_t width = inputs.front().weight.width();
  for (const MlpInput& input : inputs) {
    const int64_t in = input.weight.rows();
    if (in != width && (in < 1 || in > 32)) {
      return "an input of width " + std::to_string(in) + ", neither the hidden width nor at most 32";
    }
    if (!aligned(input.weight) || (in == width && !aligned(input.x))) return kUnaligned;
  }
  for (size_t i = 0; i < weights.weights.size(); ++i) {
    const Tensor& weight = weights.weights[i];
    const bool last = i + 1 == weights.weights.size();
    if (weight.rows() != width || (!last && weight.width() != width)) return "hidden widths that differ";
    if (!aligned(weight)) return kUnaligned;
  }
  const int64_t out = weights.weights.back().width();
  if (out == width) return {};
  if (out < 1 || out > 32)
    return "an output of width " + std::to_string(out) + ", neither the hidden width nor at most 32";
  return weights.norm == Norm::none ? "" : "a norm of a narrow output";
}

/// As many as registers allow.
int most_blocks_of_multiprocessor(int64_t width) {
  return width == 64 ? kFusedBlocks<64> : kFusedBlocks<128>;
}

}  // namespace

int fused_blocks_of_multiprocessor(int device, int64_t width, int shared_bytes) {
  const gpu::MultiprocessorMemory memory = gpu::multiprocessor_memory(device);
  return std::min(most_blocks_of_multiprocessor(width),
                  memory.bytes / (shared_bytes + memory.reserved_per_block));
}

LaunchShape fused_shape(const Stream& stream, int64_t width, int matrices, int warp_words) {
  const int device = stream.device().index, bytes = shared_bytes(width, matrices, warp_words);
  const int64_t blocks = fused_blocks_of_multiprocessor(device, width, bytes);
  return {.blocks = blocks * gpu::multiprocessors(device), .threads = kFusedThreads, .shared_bytes = bytes};
}

int64_t most_fused_blocks(const Stream& stream, int64_t width) {
  return int64_t{gpu::multiprocessors(stream.device().index)} * most_blocks_of_multiprocessor(width);
}

std::string why_unsupported(std::span<const MlpInput> inputs, const MlpWeights& weights,
                            const MlpSaved& saved,
                            int (*warp_words)(int64_t width, int layers, bool smooth)) {
  if (inputs.empty() || inputs.size() > kMaxFusedInputs)
    return std::to_string(inputs.size()) + " inputs, not 1 to " + std::to_string(kMaxFusedInputs);
  const Tensor& first = inputs.front().weight;
  const int64_t width = first.width();
  const int layers = weights.layers();
  if (first.dtype() != DType::f16 && first.dtype() != DType::bf16) return "values of 32 bits";
  if (width != 64 && width != 128 && width != 256)
    return "hidden width " + std::to_string(width) + ", not 64, 128 or 256";
  if (layers < 2 || layers > kMaxFusedLayers)
    return std::to_string(layers) + " layers, not 2 to " + std::to_string(kMaxFusedLayers);
  if (weights.activation == Activation::none) return "no activation";
  if (weights.activation == Activation::elu || weights.activation == Activation::leaky_relu)
    return "activation " + std::string(name_of(weights.activation));
  if (!nothing_saved(saved)) return "saved activations";
  std::string reason = why_widths_unsupported(inputs, weights);
  if (!reason.empty()) return reason;
  const int needed =
      shared_bytes(width, matrix_words(inputs, weights), warp_words(width, layers, is_smooth(weights)));
  const int available = gpu::shared_bytes(first.device().index);
  if (needed > available) {
    return std::to_string(needed) + " bytes of shared memory per thread block, and the device has " +
           std::to_string(available);
  }
  return {};
}

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
  if (is_smooth(weights)) {
    const int64_t tile_rows = width == 64 ? TileShape<64>::kRows : TileShape<128>::kRows;
    slopes = Tensor::empty(runtime, {blocks * kFusedWarps * (weights.layers() - 1), tile_rows * width}, dtype,
                           Tag::workspace, "derivatives of activations");
  }
  partials =
      Tensor::empty(runtime, {blocks, kFusedVectors * width}, DType::f32, Tag::workspace, "column sums");
}

BackwardWorkspace BackwardWorkspace::part(int64_t begin, int64_t end, int64_t block, int64_t blocks) const {
  BackwardWorkspace rows = *this;
  for (std::vector<Tensor>* tensors : {&rows.hidden, &rows.d_z}) {
    for (Tensor& tensor : *tensors)
      if (tensor.defined()) tensor = tensor.row_range(begin, end);
  }
  rows.partials = partials.row_range(block, block + blocks);
  return rows;
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
