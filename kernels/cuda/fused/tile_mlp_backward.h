// SPDX-License-Identifier: Apache-2.0
// The backward pass through an MLP's layers on a warp's tile. Forward is recomputed first; of its hidden
// activations only the derivatives are saved: of relu one bit per value in shared memory, of smooth
// activations 16 bits in global memory (tile_activation.h). Per layer l, from the last:
//
//   d_z_l  to memory in 16 bits, with h_{l-1} the operand of the weight gradient (weight_gradients.h)
//   d_b_l  += column sums of d_z_l, in f32
//   d_z_{l-1} = (d_z_l W_l^T) * activation'(z_{l-1})
//
// Weight gradients are another kernel, because their f32 accumulators (three matrices of 128 x 128 are 192
// KiB) do not fit into the registers beside the tile.
#pragma once
#include <meshgrad/kernels/cuda/fused/tile_columns.h>
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
  T* slopes;                       ///< [warps, hidden layers, Slopes]: derivatives; null with relu
};

/// `staged`: column sums pass through shared memory that the kernel has anyway.
template <class T, int W, bool narrow, bool smooth, bool streamed, bool staged = false>
struct TileMlpBackward {
  using Mlp = TileMlp<T, W, narrow, smooth, streamed>;
  using Wide = typename Mlp::Wide;
  using WideOperand = typename Mlp::WideOperand;
  static constexpr int kBands = Mlp::kBands;
  static constexpr int kGroups = Mlp::kGroups;
  using Band = LoadedRows<kGroups>;
  static constexpr int kMaskWords = ReluMask<kBands, kGroups>::kWarpWords;
  /// Shared memory of a warp: column sums of the biases, then of gain and norm bias, then the relu masks of
  /// the hidden layers. At width 256, where a block has the memory anyway, with places for the most layers: a
  /// constant costs no register.
  __host__ __device__ static constexpr int layers_of(int layers) {
    return W == 256 ? kMaxFusedLayers : layers;
  }
  __host__ __device__ static constexpr int sum_words(int layers) { return (layers_of(layers) + 2) * W; }
  __host__ __device__ static constexpr int warp_words(int layers) {
    return sum_words(layers) + (smooth ? 0 : (layers_of(layers) - 1) * kMaskWords);
  }

  Mlp& mlp;
  const BackwardPointers<T>& workspace;
  float* sums;          ///< the warp's column sums [layers + 2, W]: gradients of biases, gain and norm bias
  uint32_t* masks;      ///< [hidden layers, ReluMask words]; unused if smooth
  StagedRows<W> stage;  ///< unused unless staged

  __device__ TileMlpBackward(Mlp& forward, const BackwardPointers<T>& to, float* warp_memory,
                             float* stage_words = nullptr)
      : mlp(forward),
        workspace(to),
        sums(warp_memory),
        masks(reinterpret_cast<uint32_t*>(warp_memory + sum_words(forward.layers.layers))),
        stage{stage_words} {
    for (int i = lane_index(); i < sum_words(forward.layers.layers); i += 32) sums[i] = 0.0f;
    __syncwarp();
  }

  /// The activation when forward() runs again for backward, with the same operations in the same order as in
  /// the forward kernel, so the same bits. Saves the derivatives, and stores h if a weight gradient needs it.
  __device__ void activate_hidden(int layer, Wide& z, WideOperand& h, const TileRows<kBands>& tile) {
    if constexpr (smooth) {
      activate_smooth<T, true>(z, h, mlp.layers.smooth, slopes(layer));
    } else {
      activate_relu<T>(z, h);
      save_mask<T>(h, masks + (layer - 1) * kMaskWords);
    }
    if (workspace.hidden[layer - 1] != nullptr)
      store_operand<true>(h, workspace.hidden[layer - 1], tile.rows(), workspace.all_bits);
  }

  /// Replaces z_last by its gradient. With xn the normalised row and g = d_y gain (norm.h):
  ///   d_z = scale (g - mean(g) - xn mean(g xn))
  ///
  /// Without a norm, where the code should be small (`staged`), gain and scale are 1 and both means count as
  /// 0. `load_d_y(band)` returns the band's rows of d_y; each is loaded once, and missing ones count as 0.
  /// Band by band, since beside the accumulators there are not registers for d_y of both.
  template <class Load>
  __device__ void output_gradient(Wide& z, const TileRows<kBands>& tile, const Load& load_d_y) {
    const Norm norm = mlp.layers.norm;
    Band d_y = load_d_y(0);
    RowValues<kBands> scale;
#pragma unroll
    for (int band = 0; band < kBands; ++band) scale.v[band][0] = scale.v[band][1] = 1.0f;
    if (norm != Norm::none) scale = normalize(z, norm, mlp.layers.epsilon);
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
      if (band > 0) d_y = load_d_y(band);
      if (!tile.full()) d_y.clear_missing(tile.rows().band(band));
      if (staged || norm != Norm::none) {
        band_through_norm(z, band, d_y, scale);
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int group = 0; group < kGroups; ++group)
#pragma unroll
            for (int i = 0; i < 8; ++i)
              z.at(band, half, group, i) = unpack<T>(d_y.v[half][group].v[i / 2], i % 2);
      }
    }
  }

  /// From the d_z of `layer` (in z; layers count from 0 here) to d_z_1, rounded in d_z, and on_first(z) gets
  /// it in f32. Then, if `input_gradient` (there is one input, of width W), to that input's gradient in z.
  /// Column sums are of the values before rounding. One loop, as in forward.
  template <class OnFirst>
  __device__ void backward(Wide& z, WideOperand& d_z, int layer, const TileRows<kBands>& tile,
                           bool input_gradient, const OnFirst& on_first) {
#pragma unroll 1
    for (;; --layer) {
      add_bias_gradient(z, sums + W * layer);
      to_operand<T>(z, d_z);
      if (workspace.d_z[layer] != nullptr)
        store_operand<true>(d_z, workspace.d_z[layer], tile.rows(), workspace.all_bits);
      if (layer == 0) {
        on_first(z);
        if (!input_gradient) return;
      }
      z.clear();
      multiply_transposed<T>(z, d_z, mlp.weights, mlp.matrix(layer));
      if (layer == 0) return;
      through_activation(z, layer);
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
    through_activation(z, layer);
  }

  /// Writes the block's column sums to its row of the partials, adding the warps' in order. `warp_stride` is
  /// the distance of two warps' words in shared memory. All threads of the block call.
  __device__ void write_column_sums(int warp_stride) {
    __syncthreads();  // the other warps' sums are complete
    const float* first = sums - warp_stride * warp_index();
    const int layers = layers_of(mlp.layers.layers);
    for (int i = static_cast<int>(threadIdx.x); i < sum_words(layers); i += kFusedThreads) {
      float sum = 0.0f;
      for (int warp = 0; warp < kFusedWarps; ++warp) sum += first[warp * warp_stride + i];
      const int vector = i / W < layers ? i / W : i / W - layers + kFusedGain;
      workspace.partials[(int64_t{blockIdx.x} * kFusedVectors + vector) * W + i % W] = sum;
    }
  }

 private:
  /// The sums of gain; those of the norm's bias come after them.
  __device__ float* norm_sums_begin() const { return sums + W * layers_of(mlp.layers.layers); }
  /// Through the stage, whose rows have room for two groups of each at a time, at width 64 for one.
  __device__ void add_norm_gradients(const EightFloats& d_gain, const EightFloats& d_bias, int group) {
    constexpr int kTogether = W == 64 ? 1 : 2;
    float* const total = norm_sums_begin() + 32 * (group - kTogether + 1) + 2 * lane_index();
    stage.put(d_gain, 32 * (group % kTogether));
    stage.put(d_bias, 32 * (group % kTogether + kTogether));
    if constexpr (W == 64) {
      stage.template add_columns<1>(lane_index() < 16 ? total : total + W - 32, 0);
    } else {
      if (group % 2 == 1) stage.template add_columns<2>(total, W);
    }
  }
  __device__ void add_bias_gradient(Wide& z, float* total) {
    if constexpr (!staged) {
      add_column_sums(z, total);
    } else {
      constexpr int kRuns = W == 64 ? 1 : 2;
#pragma unroll
      for (int first = 0; first < kGroups; first += 2 * kRuns) {
#pragma unroll
        for (int i = 0; i < 2 * kRuns; ++i) stage.put(own_column_sums(z, first + i), 32 * i);
        stage.template add_columns<kRuns>(total + 32 * first + 2 * lane_index(), 64);
      }
    }
  }
  /// The lane's derivatives of the activation before a layer.
  __device__ Vector<uint32_t>* slopes(int layer) const {
    const int warp = static_cast<int>(blockIdx.x) * kFusedWarps + warp_index();
    const int64_t first = int64_t{warp} * (mlp.layers.layers - 1) + layer - 1;
    return reinterpret_cast<Vector<uint32_t>*>(workspace.slopes) +
           first * Slopes<kBands, kGroups>::kWarpVectors + lane_index();
  }
  /// d_z from d_h, of the activation before a layer.
  __device__ void through_activation(Wide& z, int layer) {
    if constexpr (smooth) {
      apply_slopes<T>(z, slopes(layer));
    } else {
      apply_mask(z, masks + (layer - 1) * kMaskWords);
    }
  }
  /// d_z of a band, with xn in z. Per row mean(g) and mean(g xn), `projection`; RMSNorm has no mean(g) term.
  __device__ void band_through_norm(Wide& z, int band, const Band& d_y, const RowValues<kBands>& scale) {
    RowValues<1> mean{}, projection{};
    norm_sums(z, band, d_y, mean, projection);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const EightFloats gain = lane_values(mlp.vector(kFusedGain), group);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const EightFloats from = unpack<T>(d_y.v[half][group]);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& x = z.at(band, half, group, i);
          x = scale.v[band][half] * (from.v[i] * gain.v[i] - mean.v[0][half] - x * projection.v[0][half]);
        }
      }
    }
  }
  /// The sums over a band: by row those above, by column the gradients of gain, sum of d_y xn, and of the
  /// norm's bias, sum of d_y.
  __device__ void norm_sums(Wide& z, int band, const Band& d_y, RowValues<1>& mean,
                            RowValues<1>& projection) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const EightFloats gain = lane_values(mlp.vector(kFusedGain), group);
      EightFloats d_gain{}, d_bias{};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const EightFloats from = unpack<T>(d_y.v[half][group]);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float x = z.at(band, half, group, i);
          const float scaled = from.v[i] * gain.v[i];
          d_gain.v[i] += from.v[i] * x;
          d_bias.v[i] += from.v[i];
          mean.v[0][half] += scaled;
          projection.v[0][half] += scaled * x;
        }
      }
      if constexpr (staged) {
        add_norm_gradients(d_gain, d_bias, group);
      } else {
        add_column_sums(d_gain, norm_sums_begin() + 32 * group);
        add_column_sums(d_bias, norm_sums_begin() + W + 32 * group);
      }
    }
    sum_quads(mean);
    sum_quads(projection);
    const float share = 1.0f / W;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      mean.v[0][half] = mlp.layers.norm == Norm::layer ? share * mean.v[0][half] : 0.0f;
      projection.v[0][half] = mlp.layers.norm != Norm::none ? share * projection.v[0][half] : 0.0f;
    }
  }
};

}  // namespace meshgrad::cuda
