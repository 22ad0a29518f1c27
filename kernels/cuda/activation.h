// SPDX-License-Identifier: Apache-2.0
// Activations and their slopes, in f32.
#pragma once
#include <meshgrad/kernels/activation.h>
#include <meshgrad/kernels/cuda/device.h>

namespace meshgrad::cuda {

__device__ inline float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::relu:
      return x < 0.0f ? 0.0f : x;  // a NaN stays one
    case Activation::silu:
      return x / (1.0f + expf(-x));
    case Activation::gelu:
      return 0.5f * x * erfcf(-0.70710678f * x);  // 1 + erf would cancel left of 0
    case Activation::tanh:
      return tanhf(x);
    case Activation::none:
      break;
  }
  return x;
}

__device__ inline float activation_slope(Activation activation, float x) {
  switch (activation) {
    case Activation::relu:
      return x > 0.0f ? 1.0f : 0.0f;
    case Activation::silu: {
      const float sigmoid = 1.0f / (1.0f + expf(-x));
      return sigmoid * (1.0f + x * (1.0f - sigmoid));
    }
    case Activation::gelu:
      return 0.5f * erfcf(-0.70710678f * x) + x * 0.39894228f * expf(-0.5f * x * x);
    case Activation::tanh: {
      const float y = tanhf(x);
      return 1.0f - y * y;
    }
    case Activation::none:
      break;
  }
  return 1.0f;
}

}  // namespace meshgrad::cuda
