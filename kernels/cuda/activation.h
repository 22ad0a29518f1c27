// SPDX-License-Identifier: Apache-2.0
// Activations and their derivatives, in f32. GELU is the exact one, x Phi(x), not the tanh approximation:
//   silu(x) = x s(x)                    silu'(x) = s (1 + x (1 - s)), s(x) = 1 / (1 + exp(-x))
//   gelu(x) = x erfc(-x / sqrt(2)) / 2  gelu'(x) = Phi(x) + x phi(x), phi(x) = exp(-x^2 / 2) / sqrt(2 pi)
#pragma once
#include <meshgrad/kernels/activation.h>
#include <meshgrad/kernels/cuda/device.h>

namespace meshgrad::cuda {

__device__ inline float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::relu:
      return x < 0.0f ? 0.0f : x;  // not fmaxf: a NaN stays a NaN, so that a diverged run is noticed
    case Activation::silu:
      return x / (1.0f + expf(-x));
    case Activation::gelu:
      return 0.5f * x * erfcf(-0.70710678f * x);  // erfc: 1 + erf cancels for negative x
    case Activation::tanh:
      return tanhf(x);
    case Activation::elu:
      return x > 0.0f ? x : expm1f(x);
    case Activation::leaky_relu:
      return x > 0.0f ? x : static_cast<float>(kLeakySlope) * x;
    case Activation::none:
      break;
  }
  return x;
}

__device__ inline float activation_slope(Activation activation, float x) {
  switch (activation) {
    case Activation::relu:
      return x > 0.0f ? 1.0f : 0.0f;  // 0 at 0, as in PyTorch
    case Activation::silu: {
      const float sigmoid = 1.0f / (1.0f + expf(-x));
      return sigmoid * (1.0f + x * (1.0f - sigmoid));
    }
    case Activation::gelu:
      return 0.5f * erfcf(-0.70710678f * x) + x * 0.39894228f * expf(-0.5f * x * x);  // 1 / sqrt(2 pi)
    case Activation::tanh: {
      const float y = tanhf(x);
      return 1.0f - y * y;
    }
    case Activation::elu:
      return x > 0.0f ? 1.0f : expf(x);
    case Activation::leaky_relu:
      return x > 0.0f ? 1.0f : static_cast<float>(kLeakySlope);
    case Activation::none:
      break;
  }
  return 1.0f;
}

}  // namespace meshgrad::cuda
