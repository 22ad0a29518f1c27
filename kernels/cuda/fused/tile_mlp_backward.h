// SPDX-License-Identifier: Apache-2.0
// The backward pass through an MLP's layers on a warp's tile. Forward is recomputed first; of its hidden
// activations only the relu masks are saved, one bit per value in shared memory. Per layer l, from the last:
//
//   d_z_l  to memory in 16 bits, with h_{l-1} the operand of the weight gradient (weight_gradients.h)
//   d_b_l  += column sums of d_z_l, in f32
//   d_z_{l-1} = (d_z_l W_l^T) * mask_{l-1}
//
// Weight gradients are another kernel, because their f32 accumulators (three matrices of 128 x 128 are 192
// KiB) do not fit into the registers beside the tile.
#pragma once
#include <meshgrad/kernels/cuda/fused/tile_mlp.h>

namespace meshgrad::cuda {

/// The backward workspace as a kernel argument: operands of the weight-gradient kernel and column sums. A
/// null matrix is not needed.
template <class T>
struct BackwardPointers {
  T* hidden[kMaxFusedLayers - 1];  ///< h_1, h_2, ...: [rows, W]
  T* d_z[kMaxFusedLayers];         ///< d_z_1, d_z_2, ...: [rows, W]
  uint32_t all_bits;               ///< see store_operand
  float* partials;                 ///< [blocks, kFusedVectors, W]: column sums of each block
};

template <class T, int W, bool narrow>
struct TileMlpBackward {
  using Mlp = TileMlp<T, W, narrow>;
  using Wide = typename Mlp::Wide;
  using WideOperand = typename Mlp::WideOperand;
  static constexpr int kBands = Mlp::kBands;
  static constexpr int kGroups = Mlp::kGroups;
  static constexpr int kSumWords = kFusedVectors * W;
  static constexpr int kMaskWords = ReluMask<kBands, kGroups>::kWarpWords;
  /// Shared memory of a warp: column sums [kFusedVectors, W], then the masks of up to three hidden layers.
  static constexpr int kWarpWords = kSumWords + (kMaxFusedLayers - 1) * kMaskWords;

  Mlp& mlp;
  const BackwardPointers<T>& workspace;
  float* sums;      ///< the warp's column sums [kFusedVectors, W]: gradients of biases, gain and norm bias
  uint32_t* masks;  ///< [hidden layers, ReluMask words]

  __device__ TileMlpBackward(Mlp& forward, const BackwardPointers<T>& to, float* warp_words)
      : mlp(forward),
        workspace(to),
        sums(warp_words),
        masks(reinterpret_cast<uint32_t*>(warp_words + kSumWords)) {
    for (int i = lane_index(); i < kSumWords; i += 32) sums[i] = 0.0f;
    __syncwarp();
  }

  /// Forward again, from z_1 to z_last (in z) or, with a narrow output, to the last hidden activation (in h).
  /// The same operations in the same order as in the forward kernel, so the same bits. Saves the masks and
  /// stores the hidden activations that weight gradients need.
  __device__ void recompute(Wide& z, WideOperand& h, const TileRows<kBands>& tile) {
    mlp.hidden_layers(
        z, h, [&](int layer, Wide& before) { save_mask(before, masks + (layer - 1) * kMaskWords); },
        [&](int layer, WideOperand& after) {
          if (workspace.hidden[layer - 1] != nullptr)
            store_operand(after, workspace.hidden[layer - 1], tile.rows(), workspace.all_bits);
        });
  }

  /// Replaces z_last by its gradient. With xn the normalised row and g = d_y gain (norm.h):
  ///   d_z = scale (g - mean(g) - xn mean(g xn)), or d_y itself without a norm.
  /// `d_y(band, half, group)` returns the lane's eight columns of d_y. It is called twice, for the means and
  /// for the result: holding d_y as well as xn would need as many registers again.
  template <class Gradient>
  __device__ void output_gradient(Wide& z, const Gradient& d_y) {
    const Norm norm = mlp.layers.norm;
    RowValues<kBands> scale{}, mean{}, projection{};
    if (norm != Norm::none) {
      scale = normalize(z, norm, mlp.layers.epsilon);
      norm_sums(z, d_y, mean, projection);
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const EightFloats gain = lane_values(mlp.vector(kFusedGain), group);
#pragma unroll
      for (int band = 0; band < kBands; ++band)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const EightFloats from = d_y(band, half, group);
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            float& x = z.at(band, half, group, i);
            x = norm == Norm::none ? from.v[i]
                                   : scale.v[band][half] * (from.v[i] * gain.v[i] - mean.v[band][half] -
                                                            x * projection.v[band][half]);
          }
        }
    }
  }

  /// From the d_z of `layer` (in z; layers count from 0 here) to d_z_1, in z as f32 and in d_z rounded.
  /// Column sums are of the values before rounding.
  __device__ void hidden_layers_backward(Wide& z, WideOperand& d_z, int layer, const TileRows<kBands>& tile) {
    add_column_sums(z, sums + W * layer);
#pragma unroll 1
    for (;; --layer) {
      to_operand<T>(z, d_z);
      if (workspace.d_z[layer] != nullptr)
        store_operand(d_z, workspace.d_z[layer], tile.rows(), workspace.all_bits);
      if (layer == 0) return;
      z.clear();
      multiply_transposed<T>(z, d_z, mlp.weights, mlp.matrix(layer));
      apply_mask(z, masks + (layer - 1) * kMaskWords);
      add_column_sums(z, sums + W * (layer - 1));
    }
  }
  /// d_z of the layer before a narrow last one (in z), from d_y [rows, out]; no norm there, so d_z_last is
  /// d_y.
  __device__ void narrow_layer_backward(Wide& z, const T* d_y, const TileRows<kBands>& tile) {
    const int layer = mlp.layers.layers - 1;
    Operand<kBands, 1> d_z;
    load_narrow_operand(d_z, d_y, mlp.layers.out, tile.rows());
    EightFloats bias{};
#pragma unroll
    for (int band = 0; band < kBands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 8; ++i) bias.v[i] += unpack<T>(d_z.pair(band, half, 0, i / 2), i % 2);
    add_column_sums(bias, sums + W * layer);
    z.clear();
    multiply_transposed<T>(z, d_z, mlp.weights, mlp.matrix(layer));
    apply_mask(z, masks + (layer - 1) * kMaskWords);
  }

  /// Writes the block's column sums to its row of the partials, adding the warps' in order. `warp_stride` is
  /// the distance of two warps' words in shared memory. All threads of the block call.
  __device__ void write_column_sums(int warp_stride) {
    __syncthreads();  // the other warps' sums are complete
    const float* first = sums - warp_stride * warp_index();
    for (int i = static_cast<int>(threadIdx.x); i < kSumWords; i += kFusedThreads) {
      float sum = 0.0f;
      for (int warp = 0; warp < kFusedWarps; ++warp) sum += first[warp * warp_stride + i];
      workspace.partials[int64_t{blockIdx.x} * kSumWords + i] = sum;
    }
  }

 private:
  /// Per row mean(g) and mean(g xn) (`projection`), with xn in z; per column the gradients of gain, sum of
  /// d_y xn, and of the norm's bias, sum of d_y. RMSNorm has no mean(g) term.
  template <class Gradient>
  __device__ void norm_sums(Wide& z, const Gradient& d_y, RowValues<kBands>& mean,
                            RowValues<kBands>& projection) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const EightFloats gain = lane_values(mlp.vector(kFusedGain), group);
      EightFloats d_gain{}, d_bias{};
#pragma unroll
      for (int band = 0; band < kBands; ++band)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const EightFloats from = d_y(band, half, group);
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const float x = z.at(band, half, group, i);
            const float scaled = from.v[i] * gain.v[i];
            d_gain.v[i] += from.v[i] * x;
            d_bias.v[i] += from.v[i];
            mean.v[band][half] += scaled;
            projection.v[band][half] += scaled * x;
          }
        }
      add_column_sums(d_gain, sums + W * kFusedGain + 32 * group);
      add_column_sums(d_bias, sums + W * kFusedNormBias + 32 * group);
    }
    sum_quads(mean);
    sum_quads(projection);
    const float share = 1.0f / W;
#pragma unroll
    for (int band = 0; band < kBands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        mean.v[band][half] *= mlp.layers.norm == Norm::layer ? share : 0.0f;
        projection.v[band][half] *= share;
      }
  }
};

}  // namespace meshgrad::cuda
