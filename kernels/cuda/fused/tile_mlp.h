// SPDX-License-Identifier: Apache-2.0
// The layers of an MLP on a warp's tile: what the fused kernels of nodes and edges have in common.
#pragma once
#include <meshgrad/kernels/cuda/fused/tile_weights.h>

namespace meshgrad::cuda {

inline constexpr int kMaxFusedInputs = 3;
inline constexpr int kMaxFusedLayers = 4;
inline constexpr int kFusedGain = kMaxFusedLayers;          ///< vectors: the layers' biases, then gain
inline constexpr int kFusedNormBias = kMaxFusedLayers + 1;  ///< and the norm's bias
inline constexpr int kFusedVectors = kMaxFusedLayers + 2;

/// An MLP of hidden width W as a kernel's argument. Matrices: one an input, then those of layers 1, 2, ...
template <class T>
struct FusedLayers {
  WeightSet<T> weights;
  const float* vectors[kFusedVectors];  ///< null: zeros
  int inputs, layers;
  int out;
  Norm norm;
  float epsilon;
};

/// Shared memory of a block, in words of 4 bytes: vectors, matrices (or the ring), then each warp's own.
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

/// Biases and norm parameters, zero-padded to W.
template <class T, int W>
__device__ void load_vectors(const FusedLayers<T>& layers, float* shared) {
  for (int i = static_cast<int>(threadIdx.x); i < kFusedVectors * W; i += kFusedThreads) {
    const int which = i / W;
    const int width = which >= layers.layers - 1 ? layers.out : W;
    const float* from = layers.vectors[which];
    shared[i] = from != nullptr && i % W < width ? from[i % W] : 0.0f;
  }
}

/// Rounds of a warp with `mine` tiles: the block's most where streamed weights keep its warps in step.
template <int W>
__device__ int rounds_of(int mine) {
  if constexpr (W == 256) {
    MESHGRAD_SHARED(int, rounds, kFusedWarps);
    const int warp = warp_index();
    if (lane_index() == 0) rounds[warp] = mine;
    __syncthreads();
    for (int i = 0; i < kFusedWarps; ++i) mine = max(mine, rounds[i]);
  }
  return uniform(mine);
}

/// The tiles of a warp when rows are independent: in turn to all blocks first, so that few rows keep as many
/// multiprocessors busy as there are.
template <int W>
struct TileDeal {
  static constexpr int kRows = TileShape<W>::kRows;
  int end, first, stride, rounds;
  __device__ TileDeal(const int64_t* count, int64_t capacity) {
    end = uniform(static_cast<int>(count == nullptr ? capacity : *count));
    const int parts = static_cast<int>(gridDim.x) * kFusedWarps;
    const int part = warp_index() * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
    const int tiles = (end + kRows - 1) / kRows;
    first = part * kRows;
    stride = parts * kRows;
    rounds = rounds_of<W>(part < tiles ? (tiles - part + parts - 1) / parts : 0);
  }
  __device__ TileRows<TileShape<W>::kBands> tile(int round) const { return {first + round * stride, end}; }
};

/// An MLP bound to a kernel's shared memory. `narrow`: some input or the output may be narrower than W; code
/// for that would take registers that the wide ones need.
template <class T, int W, bool narrow>
struct TileMlp {
  static constexpr bool kNarrow = narrow;
  static constexpr int kBands = TileShape<W>::kBands;
  static constexpr int kGroups = TileShape<W>::kGroups;
  using Wide = Sums<kBands, kGroups>;
  using WideOperand = Operand<kBands, kGroups>;

  const FusedLayers<T>& layers;
  const float* vectors;
  FusedWeights<T, W, narrow> weights;

  __device__ TileMlp(const FusedLayers<T>& args, const FusedShared<W>& shared)
      : layers(args), vectors(shared.vectors), weights(args.weights, shared.matrices) {
    load_vectors<T, W>(args, shared.vectors);
    __syncthreads();
  }
  __device__ const float* vector(int which) const { return vectors + W * which; }
  /// The matrix of a layer after the first.
  __device__ int matrix(int layer) const { return layers.inputs + layer - 1; }
  /// Layers whose sums are W wide: all, or all but the last.
  __device__ int wide_layers() const { return layers.layers - (has_narrow_output() ? 1 : 0); }
  __device__ bool has_narrow_output() const { return narrow && layers.out != W; }
  __device__ bool has_narrow_input(int input) const {
    return narrow && layers.weights.matrices[input].rows != W;
  }

  /// z_1 of all inputs, each of width W or at most 32.
  __device__ void first_layer(Wide& z, WideOperand& a, const T* const* inputs, const TileRows<kBands>& tile) {
    start(z, vector(0));
#pragma unroll 1
    for (int input = 0; input < layers.inputs; ++input) {
      if (!has_narrow_input(input)) {
        load_operand(a, inputs[input], tile.rows());
        multiply<T>(z, a, weights, input);
      } else {
        Operand<kBands, 1> x;
        load_narrow_operand(x, inputs[input], layers.weights.matrices[input].rows, tile.rows());
        multiply<T>(z, x, weights, input);
      }
    }
  }
  /// From z_1 to the last sums of width W; `keep(layer, z)` sees every z_layer that goes through relu, and
  /// `keep_operand(layer, h)` what comes out of it.
  template <class Keep, class KeepOperand>
  __device__ void hidden_layers(Wide& z, WideOperand& h, const Keep& keep, const KeepOperand& keep_operand) {
    const int wide = wide_layers();
#pragma unroll 1
    for (int layer = 1;; ++layer) {
      if (layer == layers.layers) return;
      keep(layer, z);
      relu(z);
      to_operand<T>(z, h);
      keep_operand(layer, h);
      if (layer == wide) return;
      start(z, vector(layer));
      multiply<T>(z, h, weights, matrix(layer));
    }
  }
  /// z_last of width at most 32, from the last hidden layer.
  __device__ void narrow_layer(Sums<kBands, 1>& z, const WideOperand& h) {
    const int layer = layers.layers - 1;
    start(z, vector(layer));
    multiply<T>(z, h, weights, matrix(layer));
  }
  /// z_last to y, without a residual.
  __device__ void finish(Wide& z) {
    if (layers.norm == Norm::none) return;
    normalize(z, layers.norm, layers.epsilon);
    scale_columns(z, vector(kFusedGain), vector(kFusedNormBias));
  }
};

}  // namespace meshgrad::cuda
