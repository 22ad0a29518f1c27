// SPDX-License-Identifier: Apache-2.0
// The activation between two layers of a warp's tile, and its derivative for backward: relu on the operand's
// packed pairs with one bit per value, or a smooth activation with 16 bits per value.
#pragma once
#include <meshgrad/kernels/cuda/fused/tile.h>

namespace meshgrad::cuda {

/// Rounds z to storage as the operand h of the next layer, with relu. A NaN stays a NaN, so that a diverged
/// run is noticed.
template <class T, int bands, int groups>
__device__ void activate_relu(Sums<bands, groups>& z, Operand<bands, groups>& h) {
#pragma unroll
  for (int group = 0; group < groups; ++group)
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          h.pair(band, half, group, i) =
              pack_relu<T>(z.at(band, half, group, 2 * i), z.at(band, half, group, 2 * i + 1));
}

/// The derivative of relu instead of a recomputed z: mask[word][lane] in shared memory, so that a warp writes
/// and reads 32 different banks. Each lane reads only what it wrote: no barrier. The bits j and 16 + j of
/// word w belong to the halves of pair 16 w + j, in the order of Operand::v. It is the derivative at the
/// rounded z, as if z had been stored. The bit of a NaN is set, so that its gradient is not hidden.
template <int bands, int groups>
struct ReluMask {
  static constexpr int kWords = bands * groups / 2;
  static constexpr int kWarpWords = 32 * kWords;
};
/// From h = relu(z).
template <class T, int bands, int groups>
__device__ void save_mask(const Operand<bands, groups>& h, uint32_t* mask) {
#pragma unroll
  for (int word = 0; word < ReluMask<bands, groups>::kWords; ++word) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int k = 16 * word + i;
      const uint32_t pair = h.v[k / (8 * groups)][k / 4 % (2 * groups)][k % 4];
      bits |= nonzero_halves<T>(pair, i);
    }
    mask[32 * word + lane_index()] = bits;
  }
}
/// Register i of an operand's step holds columns of accumulators 2 (i % 2) and the next of the step's column
/// tile i / 2: see the fragments of multiply_add.
template <int bands, int groups>
__device__ void apply_mask(Sums<bands, groups>& sums, const uint32_t* mask) {
#pragma unroll
  for (int word = 0; word < ReluMask<bands, groups>::kWords; ++word) {
    const uint32_t bits = mask[32 * word + lane_index()];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int k = 16 * word + i % 16;
      float(&tile)[4] = sums.v[k / (8 * groups)][2 * (k / 4 % (2 * groups)) + k % 4 / 2];
      if ((bits & (1u << i)) == 0) tile[2 * (k % 2) + i / 16] = 0.0f;
    }
  }
}

/// The smooth activations, by the logistic function s(u) = 1 / (1 + exp(-u)):
///
///   silu(x) = x s(x)    tanh(x) = 2 s(2 x) - 1    gelu(x) = x Phi(x), with Phi(x) = s(x p(x^2))
///
/// In one form, y = w s + offset with w = a x + b, and dy/dx = a s + w ds/dx. The density ds/dx of gelu is
/// the normal one, otherwise it is rate s (1 - s). The polynomial p is fitted to ln(Phi(x) / Phi(-x)) / x for
/// |x| <= 5.5: Phi has a relative error of 9e-6, and beyond 5.5 gelu an absolute one of 2e-7.
struct SmoothActivation {
  float a, b, rate, offset;
  bool gelu;
};
inline SmoothActivation smooth_activation(Activation activation) {
  if (activation == Activation::tanh) return {0.0f, 2.0f, 2.0f, -1.0f, false};
  return {1.0f, 0.0f, 1.0f, 0.0f, activation == Activation::gelu};
}
/// x p(x^2) of gelu.
__device__ inline float normal_logit(float x) {
  const float square = fminf(x * x, 5.5f * 5.5f);
  float p = 9.91221548e-13f;
  p = fmaf(p, square, -1.56428606e-10f);
  p = fmaf(p, square, 1.06296092e-8f);
  p = fmaf(p, square, -4.04551008e-7f);
  p = fmaf(p, square, 9.24436978e-6f);
  p = fmaf(p, square, -1.16157110e-4f);
  p = fmaf(p, square, -5.88355549e-5f);
  p = fmaf(p, square, 7.26793615e-2f);
  p = fmaf(p, square, 1.59575027f);
  return x * p;
}
/// Replaces x by y; with `slopes`, returns dy/dx. Eight values at a time, so that their latencies overlap.
template <bool slopes>
__device__ EightFloats evaluate(const SmoothActivation& f, EightFloats& x) {
  constexpr float kLog2E = 1.44269504f;
  EightFloats s, density, slope{};
#pragma unroll
  for (int i = 0; i < 8; ++i) s.v[i] = f.rate * x.v[i];
  if (f.gelu) {
#pragma unroll
    for (int i = 0; i < 8; ++i) s.v[i] = normal_logit(x.v[i]);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) s.v[i] = fast_reciprocal(1.0f + fast_exp2(-kLog2E * s.v[i]));
  if constexpr (slopes) {
#pragma unroll
    for (int i = 0; i < 8; ++i) density.v[i] = f.rate * s.v[i] * (1.0f - s.v[i]);
    if (f.gelu) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        density.v[i] = 0.39894228f * fast_exp2(-0.5f * kLog2E * x.v[i] * x.v[i]);  // 1 / sqrt(2 pi)
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float w = fmaf(f.a, x.v[i], f.b);
    if constexpr (slopes) slope.v[i] = fmaf(w, density.v[i], f.a * s.v[i]);
    x.v[i] = fmaf(w, s.v[i], f.offset);
  }
  return slope;
}
/// Derivatives of a tile, in 16 bits like the values: in global memory, because beside the weights there is
/// no room for them in shared memory. slopes[vector][lane]; each lane reads only what it wrote. The same
/// addresses serve all rounds, so they stay in the L2 cache: 8.7 MB of an H200's 50 at width 128 and three
/// layers.
template <int bands, int groups>
struct Slopes {
  static constexpr int kWarpVectors = 32 * bands * 2 * groups;
};
/// Rounds the activation of z to storage as the operand h of the next layer. `slopes` is the lane's first
/// vector, and unused without `save`.
template <class T, bool save, int bands, int groups>
__device__ void activate_smooth(Sums<bands, groups>& z, Operand<bands, groups>& h, const SmoothActivation& f,
                                Vector<uint32_t>* slopes) {
#pragma unroll
  for (int group = 0; group < groups; ++group)
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        EightFloats x;
#pragma unroll
        for (int i = 0; i < 8; ++i) x.v[i] = z.at(band, half, group, i);
        const EightFloats slope = evaluate<save>(f, x);
        Vector<uint32_t> words;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          h.pair(band, half, group, i) = pack<T>(x.v[2 * i], x.v[2 * i + 1]);
          words.v[i] = pack<T>(slope.v[2 * i], slope.v[2 * i + 1]);
        }
        if constexpr (save) slopes[32 * (2 * (bands * group + band) + half)] = words;
      }
}
/// Multiplies a gradient by the derivatives that activate_smooth() saved.
template <class T, int bands, int groups>
__device__ void apply_slopes(Sums<bands, groups>& sums, const Vector<uint32_t>* slopes) {
#pragma unroll
  for (int group = 0; group < groups; ++group)
#pragma unroll
    for (int band = 0; band < bands; ++band)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const EightFloats slope = unpack<T>(slopes[32 * (2 * (bands * group + band) + half)]);
#pragma unroll
        for (int i = 0; i < 8; ++i) sums.at(band, half, group, i) *= slope.v[i];
      }
}

}  // namespace meshgrad::cuda
