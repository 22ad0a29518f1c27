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

/// Words of shared memory for all weights.
int matrix_words(std::span<const MlpInput> inputs, const MlpWeights& weights, int further) {
  const int64_t width = inputs.front().weight.width();
  int words = further * resident_words(width, width);
  for (const MlpInput& input : inputs) words += resident_words(input.weight.rows(), input.weight.width());
  for (const Tensor& weight : weights.weights) words += resident_words(weight.rows(), weight.width());
  return words;
}
/// For the two slices of StreamedWeights.
int slice_words(int64_t width) { return static_cast<int>(2 * 16 * width); }
/// Bytes of dynamic shared memory per block, in the layout of FusedShared.
int shared_bytes(int64_t width, int matrices, int warp_words) {
  return static_cast<int>(4 * (kFusedVectors * width + matrices + kFusedWarps * warp_words));
}

/// As many as registers allow.
int most_blocks_of_multiprocessor(int64_t width) {
  return width == 64 ? kFusedBlocks<64> : kFusedBlocks<128>;
}

}  // namespace

WeightPlace weight_place(int64_t width, const FusedBytes& needed, int available, int capability) {
  if (capability < kFusedCapability) return WeightPlace::none;
  if (width != 256 && needed.resident <= available) return WeightPlace::resident;
  if (width != 64 && needed.streamed <= available) return WeightPlace::streamed;
  return WeightPlace::none;
}

FusedShape fused_shape(int device, std::span<const MlpInput> inputs, const MlpWeights& weights,
                       int warp_words, int further) {
  const int64_t width = inputs.front().weight.width();
  const int resident = matrix_words(inputs, weights, further);
  const FusedBytes needed{shared_bytes(width, resident, warp_words),
                          shared_bytes(width, slice_words(width), warp_words)};
  FusedShape shape;
  shape.place = weight_place(width, needed, gpu::shared_bytes(device), gpu::compute_capability(device));
  // Where no place is found, the smaller size is what is missing.
  const bool streamed = width != 64 && shape.place != WeightPlace::resident;
  shape.matrix_words = streamed ? slice_words(width) : resident;
  shape.threads = kFusedThreads;
  shape.shared_bytes = streamed ? needed.streamed : needed.resident;
  const gpu::MultiprocessorMemory memory = gpu::multiprocessor_memory(device);
  shape.blocks_of_multiprocessor = std::min(most_blocks_of_multiprocessor(width),
                                            memory.bytes / (shape.shared_bytes + memory.reserved_per_block));
  shape.blocks = int64_t{shape.blocks_of_multiprocessor} * gpu::multiprocessors(device);
  return shape;
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
  std::string reason = why_widths_unsupported(inputs, weights);
  if (!reason.empty()) return reason;
  const int device = first.device().index, capability = gpu::compute_capability(device);
  if (capability < kFusedCapability)
    return "compute capability " + std::to_string(capability / 10) + "." + std::to_string(capability % 10) +
           ", less than 8.0";
  const FusedShape shape =
      fused_shape(device, inputs, weights, warp_words(width, layers, is_smooth(weights)));
  if (shape.place == WeightPlace::none)
    return std::to_string(shape.shared_bytes) +
           " bytes of shared memory per thread block, and the device has " +
           std::to_string(gpu::shared_bytes(device));
  // The last reason: activations are saved where one of the others keeps a call from the fused kernels.
  return nothing_saved(saved) ? "" : "saved activations";
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
