// SPDX-License-Identifier: Apache-2.0
// The layers of an MLP on a warp's tile, shared by the fused kernels of nodes and edges. A warp takes its
// rows through all layers without storing activations; rows of different warps are independent.
#pragma once
#include <meshgrad/kernels/cuda/fused/tile_activation.h>
#include <meshgrad/kernels/cuda/fused/tile_weights.h>

namespace meshgrad::cuda {

inline constexpr int kMaxFusedInputs = 3;
inline constexpr int kMaxFusedLayers = 4;
/// Vectors of an MLP by number: the bias of layer i (0 for the first), then the norm's gain and bias.
inline constexpr int kFusedGain = kMaxFusedLayers;
inline constexpr int kFusedNormBias = kMaxFusedLayers + 1;
inline constexpr int kFusedVectors = kMaxFusedLayers + 2;

/// An MLP of hidden width W as a kernel argument. Matrices: the first layer's, one per input, then one for
/// each later layer, then those of node terms.
template <class T>
struct FusedLayers {
  WeightSet<T> weights;
  const float* vectors[kFusedVectors];  ///< null: zeros, or ones for a gain
  int inputs, layers;
  int out;  ///< width of the output: W, or at most 32
  Norm norm;
  float epsilon;
  SmoothActivation smooth;  ///< unused with relu
};

/// Dynamic shared memory of a block, in words of 4 bytes:
///
///   [kFusedVectors, W]         biases, gain and norm bias, f32
///   [matrix_words]             weights, 16-bit; or the two slices of StreamedWeights
///   [kFusedWarps, warp_words]  each warp's own words: column sums, relu masks, staging rows
///
/// Vectors and padded matrices are multiples of 128 bytes, so each matrix starts in bank 0, for its swizzle.
template <int W>
struct FusedShared {
  static constexpr int kVectorWords = kFusedVectors * W;
  float* vectors;
  uint32_t* matrices;
  float* warp;  ///< of the calling warp
  __device__ FusedShared(int matrix_words, int warp_words) {
    vectors = dynamic_shared<float>();
    matrices = reinterpret_cast<uint32_t*>(vectors + kVectorWords);
    warp = vectors + kVectorWords + matrix_words + warp_words * warp_index();
  }
};

/// Loads biases and norm parameters, zero-padded to W. Null vectors are zeros, a null gain is 1; only those
/// of the last layer on have the width of the output.
template <class T, int W>
__device__ void load_vectors(const FusedLayers<T>& layers, float* shared) {
  for (int i = static_cast<int>(threadIdx.x); i < kFusedVectors * W; i += kFusedThreads) {
    const int which = i / W;
    const int width = which >= layers.layers - 1 ? layers.out : W;
    const float* from = layers.vectors[which];
    const float missing = which == kFusedGain ? 1.0f : 0.0f;
    shared[i] = from != nullptr && i % W < width ? from[i % W] : missing;
  }
}

/// Whether all warps of a block run as many rounds of the tile loop as the busiest one. So they must where
/// each multiplication by streamed weights has barriers: some warps multiply no rows. In backward they do at
/// width 128 too, where a barrier a round keeps the warps at nearby instructions, of which there are too many
/// for the caches next to the schedulers.
template <int W, bool streamed>
inline constexpr bool kBackwardTogether = streamed || W >= 128;

/// The most rounds of a block's warps, with `together`. The warps exchange them through the first word of
/// each one's own memory, `own`, `stride` words apart; a barrier comes before other uses of it.
template <bool together>
__device__ int rounds_of(int mine, float* own, int stride) {
  if constexpr (together) {
    int* const my_rounds = reinterpret_cast<int*>(own);
    const int* const rounds = my_rounds - stride * warp_index();
    if (lane_index() == 0) *my_rounds = mine;
    __syncthreads();
    for (int i = 0; i < kFusedWarps; ++i) mine = max(mine, rounds[stride * i]);
  }
  return uniform(mine);
}

/// The tiles of a warp when rows are independent, assigned round-robin: tile i goes to block i % blocks and
/// there to warp i / blocks % kFusedWarps. Blocks first, so that a small mesh occupies all multiprocessors
/// before any of them has a second warp at work. Depends on the real count and the device only, like all
/// assignments.
template <int W, bool together>
struct RoundRobinTiles {
  static constexpr int kRows = TileShape<W>::kRows;
  int end, first, stride, rounds;
  __device__ RoundRobinTiles(const int64_t* count, int64_t capacity) {
    end = uniform(static_cast<int>(count == nullptr ? capacity : *count));
    const int parts = static_cast<int>(gridDim.x) * kFusedWarps;
    const int part = warp_index() * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
    const int tiles = (end + kRows - 1) / kRows;
    first = part * kRows;
    stride = parts * kRows;
    // No warp of a block has more tiles than its first.
    const int most = together ? static_cast<int>(blockIdx.x) : part;
    rounds = uniform(most < tiles ? (tiles - most + parts - 1) / parts : 0);
  }
  __device__ TileRows<TileShape<W>::kBands> tile(int round) const { return {first + round * stride, end}; }
};

/// A tile of width W as accumulators, and as an operand.
template <int W>
using WideSums = Sums<TileShape<W>::kBands, TileShape<W>::kGroups>;
template <int W>
using WideOperand = Operand<TileShape<W>::kBands, TileShape<W>::kGroups>;

/// An MLP bound to a kernel's shared memory. `narrow`: some input or the output may be narrower than W.
/// `smooth`: the activation is not relu. `streamed`: weights. Template parameters, because code for these
/// cases takes registers and instruction cache that the other kernels need for their tiles.
template <class T, int W, bool narrow, bool smooth, bool streamed>
struct TileMlp {
  static constexpr bool kNarrow = narrow;
  static constexpr int kBands = TileShape<W>::kBands;
  static constexpr int kGroups = TileShape<W>::kGroups;
  using Wide = WideSums<W>;
  using WideOperand = cuda::WideOperand<W>;

  const FusedLayers<T>& layers;
  const float* vectors;
  FusedWeights<T, W, narrow, streamed> weights;

  __device__ TileMlp(const FusedLayers<T>& args, const FusedShared<W>& shared)
      : layers(args), vectors(shared.vectors), weights(args.weights, shared.matrices) {
    load_vectors<T, W>(args, shared.vectors);
    __syncthreads();  // vectors and resident weights are complete
  }
  __device__ const float* vector(int which) const { return vectors + W * which; }
  /// The matrix of a layer after the first.
  __device__ int matrix(int layer) const { return layers.inputs + layer - 1; }
  /// Layers with W outputs: all, or all but the last.
  __device__ int wide_layers() const { return layers.layers - (has_narrow_output() ? 1 : 0); }
  __device__ bool has_narrow_output() const { return narrow && layers.out != W; }
  __device__ bool has_narrow_input(int input) const {
    return narrow && layers.weights.matrices[input].rows != W;
  }

  /// From z, which starts as b_1 and what else is known of z_1, to the last pre-activation of width W, in z;
  /// with a narrow output, to the last hidden activation, in h. load_input(i, h) loads input i of width W as
  /// an operand, and narrow_input(i) returns where one of at most 32 columns is; activate_hidden(layer, z, h)
  /// computes the hidden activation h of a layer's input from z.
  ///
  /// One loop over all matrices, not unrolled: a copy of a multiplication is hundreds of instructions, and
  /// the code of a tile should fit into the instruction cache.
  ///
  /// With `goes_on`, the loop multiplies what activate_hidden makes of the output, of layer `layers`, by the
  /// further matrices of the set too, and the last call of activate_hidden is for what follows the last one.
  template <bool goes_on = false, class LoadInput, class NarrowInput, class Activate>
  __device__ void forward(Wide& z, WideOperand& h, const TileRows<kBands>& tile, const LoadInput& load_input,
                          const NarrowInput& narrow_input, const Activate& activate_hidden) {
    const int last = goes_on ? layers.weights.count - 1 : layers.inputs + layers.layers - 2;
#pragma unroll 1
    for (int matrix = 0; goes_on || matrix <= last; ++matrix) {
      const int layer = matrix - layers.inputs + 1;
      if (layer > 0) {
        activate_hidden(layer, z, h);
        if (goes_on && matrix > last) return;
        if (matrix == last && has_narrow_output()) return;
        start(z, vector(goes_on ? min(layer, kMaxFusedLayers - 1) : layer));
      } else if (!has_narrow_input(matrix)) {
        load_input(matrix, h);
      } else {
        Operand<kBands, 1> x;
        load_narrow_operand(x, narrow_input(matrix), layers.weights.matrices[matrix].rows, tile.rows());
        multiply<T>(z, x, weights, matrix);
        continue;
      }
      multiply<T>(z, h, weights, matrix);
    }
  }
  /// h = activation(z), rounded.
  __device__ void activate_hidden(Wide& z, WideOperand& h) {
    if constexpr (smooth) {
      activate_smooth<T, false>(z, h, layers.smooth, nullptr);
    } else {
      activate_relu<T>(z, h);
    }
  }
  /// z_last of width at most 32, from the last hidden activation.
  __device__ void narrow_layer(Sums<kBands, 1>& z, const WideOperand& h) {
    const int layer = layers.layers - 1;
    start(z, vector(layer));
    multiply<T>(z, h, weights, matrix(layer));
  }
  /// y = norm(z_last), or z_last itself without a norm.
  __device__ void apply_norm(Wide& z) {
    if (layers.norm == Norm::none) return;
    normalize(z, layers.norm, layers.epsilon);
    scale_columns(z, vector(kFusedGain), vector(kFusedNormBias));
  }
};

}  // namespace meshgrad::cuda
