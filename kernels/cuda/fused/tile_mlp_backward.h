// SPDX-License-Identifier: Apache-2.0
// The way back through an MLP's layers on a warp's tile, from recomputed hidden activations. What the weight
// gradients need goes to memory in 16 bits; biases' and norm parameters' gradients are summed here.
#pragma once
#include <meshgrad/kernels/cuda/fused/tile_mlp.h>

namespace meshgrad::cuda {

/// Where a backward kernel leaves what the weight gradients are made of; null: not wanted.
template <class T>
struct FusedLeavings {
  T* hidden[kMaxFusedLayers - 1];  ///< h_1, h_2, ...: [rows, W]
  T* d_z[kMaxFusedLayers];         ///< d_z_1, d_z_2, ...: [rows, W]
  uint32_t all_bits;               ///< see store_operand
  float* partials;                 ///< [blocks, kFusedVectors * W]: column sums
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
  /// Of shared memory, a warp's.
  static constexpr int kWarpWords = kSumWords + (kMaxFusedLayers - 1) * kMaskWords;

  Mlp& mlp;
  const FusedLeavings<T>& leavings;
  float* sums;  ///< the warp's column sums, by vector
  uint32_t* masks;

  __device__ TileMlpBackward(Mlp& forward, const FusedLeavings<T>& to, float* warp_words)
      : mlp(forward),
        leavings(to),
        sums(warp_words),
        masks(reinterpret_cast<uint32_t*>(warp_words + kSumWords)) {
    for (int i = lane_index(); i < kSumWords; i += 32) sums[i] = 0.0f;
    __syncwarp();
  }

  /// From z_1 to z_last (in z), or with a narrow last layer to the last hidden activations (in h).
  __device__ void recompute(Wide& z, WideOperand& h, const TileRows<kBands>& tile) {
    mlp.hidden_layers(
        z, h, [&](int layer, Wide& before) { save_mask(before, masks + (layer - 1) * kMaskWords); },
        [&](int layer, WideOperand& after) {
          if (leavings.hidden[layer - 1] != nullptr)
            store_operand(after, leavings.hidden[layer - 1], tile.rows(), leavings.all_bits);
        });
  }

  /// z_last to its gradient. `d_y(band, half, group)` gives the lane's eight of y's, and is asked twice.
  template <class Gradient>
  __device__ void last_gradient(Wide& z, const Gradient& d_y) {
    const Norm norm = mlp.layers.norm;
    RowValues<kBands> scale{}, mean{}, along{};
    if (norm != Norm::none) {
      scale = normalize(z, norm, mlp.layers.epsilon);
      norm_sums(z, d_y, mean, along);
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const Eight gain = lane_values(mlp.vector(kFusedGain), group);
#pragma unroll
      for (int band = 0; band < kBands; ++band)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Eight from = d_y(band, half, group);
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            float& x = z.at(band, half, group, i);
            x = norm == Norm::none ? from.v[i]
                                   : scale.v[band][half] * (from.v[i] * gain.v[i] - mean.v[band][half] -
                                                            x * along.v[band][half]);
          }
        }
    }
  }

  /// From d_z_last (in z), layer `layer`, to d_z_1 (in z, and rounded in d_z).
  __device__ void layers_before(Wide& z, WideOperand& d_z, int layer, const TileRows<kBands>& tile) {
    add_column_sums(z, sums + W * layer);
#pragma unroll 1
    for (;; --layer) {
      to_operand<T>(z, d_z);
      if (leavings.d_z[layer] != nullptr)
        store_operand(d_z, leavings.d_z[layer], tile.rows(), leavings.all_bits);
      if (layer == 0) return;
      z.clear();
      multiply_transposed<T>(z, d_z, mlp.weights, mlp.matrix(layer));
      apply_mask(z, masks + (layer - 1) * kMaskWords);
      add_column_sums(z, sums + W * (layer - 1));
    }
  }
  /// d_z of the layer before a narrow last one, from d_y [rows, out].
  __device__ void before_narrow(Wide& z, const T* d_y, const TileRows<kBands>& tile) {
    const int layer = mlp.layers.layers - 1;
    Operand<kBands, 1> d_z;
    load_narrow_operand(d_z, d_y, mlp.layers.out, tile.rows());
    Eight bias{};
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

  /// The block's column sums, its warps' in order. `warp_stride` is the distance of their shared memory.
  __device__ void write_column_sums(int warp_stride) {
    __syncthreads();
    const float* first = sums - warp_stride * warp_index();
    for (int i = static_cast<int>(threadIdx.x); i < kSumWords; i += kFusedThreads) {
      float sum = 0.0f;
      for (int warp = 0; warp < kFusedWarps; ++warp) sum += first[warp * warp_stride + i];
      leavings.partials[int64_t{blockIdx.x} * kSumWords + i] = sum;
    }
  }

 private:
  /// Per row the means of d_y gain, and of the same times the normalised row; per column the gradients of
  /// gain and the norm's bias.
  template <class Gradient>
  __device__ void norm_sums(Wide& z, const Gradient& d_y, RowValues<kBands>& mean, RowValues<kBands>& along) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const Eight gain = lane_values(mlp.vector(kFusedGain), group);
      Eight d_gain{}, d_bias{};
#pragma unroll
      for (int band = 0; band < kBands; ++band)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Eight from = d_y(band, half, group);
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const float x = z.at(band, half, group, i);
            const float scaled = from.v[i] * gain.v[i];
            d_gain.v[i] += from.v[i] * x;
            d_bias.v[i] += from.v[i];
            mean.v[band][half] += scaled;
            along.v[band][half] += scaled * x;
          }
        }
      add_column_sums(d_gain, sums + W * kFusedGain + 32 * group);
      add_column_sums(d_bias, sums + W * kFusedNormBias + 32 * group);
    }
    sum_quads(mean);
    sum_quads(along);
    const float share = 1.0f / W;
#pragma unroll
    for (int band = 0; band < kBands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        mean.v[band][half] *= mlp.layers.norm == Norm::layer ? share : 0.0f;
        along.v[band][half] *= share;
      }
  }
};

}  // namespace meshgrad::cuda
