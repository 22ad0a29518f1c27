// SPDX-License-Identifier: Apache-2.0
// The host side of the fused kernels: which MLPs they support, their shared memory, and their arguments.
#pragma once
#include <meshgrad/kernels/cuda/fused/fused.h>
#include <meshgrad/kernels/cuda/fused/tile_mlp_backward.h>
#include <meshgrad/kernels/cuda/fused/weight_gradients.h>
#include <meshgrad/kernels/cuda/launch.h>

#include <limits>
#include <span>
#include <string>

namespace meshgrad::cuda {

/// True when rows can be accessed as 16-byte vectors (their width is a multiple of 16 bytes); also if
/// undefined.
inline bool aligned(const Tensor& tensor) {
  return !tensor.defined() || reinterpret_cast<uintptr_t>(tensor.raw()) % 16 == 0;
}
/// Kernels compute row numbers in 32 bits. The headroom of 2^20 is for the tile behind the last one: a round
/// advances by blocks * kFusedWarps * 32 rows, at most 2^20 with up to 4096 blocks.
inline bool fits_int32(int64_t rows) { return rows <= std::numeric_limits<int32_t>::max() - (1 << 20); }

/// Words of shared memory of a resident weight: padded to multiples of 32, two 16-bit values to a word.
inline int resident_words(int64_t rows, int64_t columns) {
  const auto padded = [](int64_t n) { return (n + 31) / 32 * 32; };
  return static_cast<int>(padded(rows) * padded(columns) / 2);
}
/// A fused kernel of a device: how its weights are placed, and its launch of as many blocks as the device
/// holds at the same time, so that each loads resident weights once.
struct FusedShape : LaunchShape {
  WeightPlace place = WeightPlace::none;
  int matrix_words = 0;  ///< of shared memory, for all weights or for two slices
  int blocks_of_multiprocessor = 0;
};
/// `warp_words` of shared memory per warp. `further` matrices are multiplied after the MLP's, as wide as the
/// hidden layers both ways.
FusedShape fused_shape(int device, std::span<const MlpInput> inputs, const MlpWeights& weights,
                       int warp_words, int further = 0);
/// The blocks of such a launch at most, whatever shared memory it needs.
int64_t most_fused_blocks(const Stream& stream, int64_t width);

/// Why a fused kernel does not support these layers, for the log: "hidden width 96, not 64, 128 or 256".
/// Empty when it does. `warp_words` returns the shared memory that the kernel needs per warp, in words.
std::string why_unsupported(std::span<const MlpInput> inputs, const MlpWeights& weights,
                            const MlpSaved& saved, int (*warp_words)(int64_t width, int layers, bool smooth));
inline constexpr const char* kUnaligned = "rows that do not start on 16 bytes, or more than 2^31 of them";

/// Calls `body.template operator()<T, W, streamed>()` for the storage type, the hidden width and whether
/// weights are streamed.
template <class Body>
void dispatch_fused(DType dtype, int64_t width, WeightPlace place, Body&& body) {
  const auto with_width = [&]<class T>() {
    if (width == 64) {
      body.template operator()<T, 64, false>();
    } else if (width == 256) {
      body.template operator()<T, 256, true>();
    } else if (place == WeightPlace::resident) {
      body.template operator()<T, 128, false>();
    } else {
      body.template operator()<T, 128, true>();
    }
  };
  if (dtype == DType::f16) {
    with_width.template operator()<half>();
  } else {
    with_width.template operator()<bfloat16>();
  }
}
/// Whether the kernels for smooth activations run, instead of those for relu.
inline bool is_smooth(const MlpWeights& weights) { return weights.activation != Activation::relu; }
/// Whether some input or the output is narrower than the hidden layers.
inline bool any_narrow(std::span<const MlpInput> inputs, const MlpWeights& weights) {
  const int64_t width = inputs.front().weight.width();
  bool any = weights.weights.back().width() != width;
  for (const MlpInput& input : inputs) any = any || input.weight.rows() != width;
  return any;
}

/// The kernel argument: pointers and sizes of all weights, those of node terms behind the MLP's, and their
/// offsets in shared memory.
template <class T>
FusedLayers<T> fused_layers(std::span<const MlpInput> inputs, const MlpWeights& weights,
                            const NodeTermsAhead* node_terms = nullptr) {
  FusedLayers<T> result{};
  int word = 0;
  const auto add = [&](const Tensor& weight) {
    WeightSet<T>& set = result.weights;
    set.matrices[set.count] = {weight.data<T>(), static_cast<int>(weight.rows()),
                               static_cast<int>(weight.width())};
    set.first_word[set.count++] = word;
    word += resident_words(weight.rows(), weight.width());
  };
  const auto values = [](const Tensor& vector) { return vector.data_or_null<float>(); };
  for (const MlpInput& input : inputs) add(input.weight);
  for (const Tensor& weight : weights.weights) add(weight);
  if (node_terms != nullptr) {
    add(node_terms->sender_weight);
    add(node_terms->receiver_weight);
  }
  result.vectors[0] = values(weights.first_bias);
  for (size_t i = 0; i < weights.biases.size(); ++i) result.vectors[i + 1] = values(weights.biases[i]);
  if (weights.norm != Norm::none) {
    result.vectors[kFusedGain] = values(weights.gain);
    result.vectors[kFusedNormBias] = values(weights.norm_bias);
  }
  result.inputs = static_cast<int>(inputs.size());
  result.layers = weights.layers();
  result.out = static_cast<int>(weights.weights.back().width());
  result.norm = weights.norm;
  result.smooth = smooth_activation(weights.activation);
  result.epsilon = static_cast<float>(weights.epsilon);
  return result;
}

/// The words that edge updates count the parts of divided receivers with.
inline Tensor divided_tickets(int64_t blocks, Runtime& runtime) {
  return Tensor::empty(runtime, {blocks * kFusedWarps * 32}, DType::i32, Tag::workspace,
                       "tickets of divided receivers");
}

/// Words of shared memory per warp of a backward kernel; the storage type does not matter, since sums are f32
/// and masks are bits.
inline int layers_warp_words(int64_t width, int layers, bool smooth) {
  const auto of = [&]<int W>() {
    return smooth ? TileMlpBackward<half, W, false, true, true>::warp_words(layers)
                  : TileMlpBackward<half, W, false, false, true>::warp_words(layers);
  };
  return width == 64    ? of.template operator()<64>()
         : width == 128 ? of.template operator()<128>()
                        : of.template operator()<256>();
}

/// The workspace that a backward kernel writes for the weight gradients, and the jobs that read it. At 1M
/// edges, width 128, three layers: 1.3 GB, five matrices of 256 MB, freed when backward of the block ends.
struct BackwardWorkspace {
  std::vector<Tensor> hidden, d_z;  ///< by layer, [rows, width] each; undefined: not needed
  Tensor partials;                  ///< [blocks, kFusedVectors * width] f32
  Tensor slopes;                    ///< [warps * hidden layers, values of a tile]; undefined with relu

  /// Allocates d_z_1 in any case, and of each later layer whose weight has a gradient its operands: the
  /// hidden activation before it and its d_z, the latter unless the layer is narrower than `width`.
  BackwardWorkspace(int64_t rows, int64_t width, DType dtype, const MlpWeights& weights,
                    const MlpWeightGradients& gradients, int64_t blocks, Runtime& runtime);
  /// For a launch of its own over these rows: its column sums come in the rows of `partials` from `block` on.
  BackwardWorkspace part(int64_t begin, int64_t end, int64_t block, int64_t blocks) const;
  template <class T>
  BackwardPointers<T> pointers() const {
    BackwardPointers<T> result{};
    for (size_t i = 0; i < hidden.size(); ++i)
      if (hidden[i].defined()) result.hidden[i] = hidden[i].template data<T>();
    for (size_t i = 0; i < d_z.size(); ++i)
      if (d_z[i].defined()) result.d_z[i] = d_z[i].template data<T>();
    result.all_bits = 0xffffffffu;
    result.partials = partials.data<float>();
    result.slopes = slopes.data_or_null<T>();
    return result;
  }
  /// Appends the jobs of the layers after the first; the first has other operands in each kernel.
  void add_jobs(std::vector<WeightGradientJob>& jobs, const MlpWeightGradients& gradients,
                const Rows& rows) const;
  std::vector<ColumnSumJob> column_sums(const MlpWeightGradients& gradients) const;
};

/// The launches, in one source file each so that they compile in parallel.
template <bool smooth>
void launch_mlp_forward(const MlpForward& args, const Stream& stream);
template <bool smooth>
void launch_mlp_backward(const MlpBackward& args, const BackwardWorkspace& workspace, const FusedShape& shape,
                         const Stream& stream);

}  // namespace meshgrad::cuda
