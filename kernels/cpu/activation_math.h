// SPDX-License-Identifier: Apache-2.0
// Activation functions and their derivatives of one value. The vector code calls these lane by lane for what
// has no short vector form (exp, erf, tanh).
#pragma once
#include <meshgrad/kernels/activation.h>

namespace meshgrad::cpu {

/// act(x). relu is written so that a NaN stays one: NaN <= 0 is false.
template <class T>
inline T activation_value(Activation activation, T x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x <= T(0) ? T(0) : x;
    case Activation::silu:
      return x / (T(1) + std::exp(-x));
    case Activation::gelu:
      return x * T(0.5) * (T(1) + std::erf(x * T(0.5 * std::numbers::sqrt2)));
    case Activation::tanh:
      return std::tanh(x);
    case Activation::elu:
      return x > T(0) ? x : std::expm1(x);
    case Activation::leaky_relu:
      return x > T(0) ? x : x * T(kLeakySlope);
  }
  return x;
}

/// act'(x). silu: s (1 + x (1 - s)) with s = sigmoid(x). gelu: Phi(x) + x phi(x), the normal distribution and
/// its density. At 0 relu's derivative is 0, elu's 1 and leaky_relu's its slope, as PyTorch defines them.
template <class T>
inline T activation_slope(Activation activation, T x) {
  switch (activation) {
    case Activation::none:
      return T(1);
    case Activation::relu:
      return x > T(0) ? T(1) : T(0);
    case Activation::silu: {
      const T s = T(1) / (T(1) + std::exp(-x));
      return s * (T(1) + x * (T(1) - s));
    }
    case Activation::gelu: {
      const T phi = std::exp(T(-0.5) * x * x) * T(0.5 * std::numbers::inv_sqrtpi * std::numbers::sqrt2);
      return T(0.5) * (T(1) + std::erf(x * T(0.5 * std::numbers::sqrt2))) + x * phi;
    }
    case Activation::tanh: {
      const T y = std::tanh(x);
      return T(1) - y * y;
    }
    case Activation::elu:
      return x > T(0) ? T(1) : std::exp(x);
    case Activation::leaky_relu:
      return x > T(0) ? T(1) : T(kLeakySlope);
  }
  return T(1);
}

}  // namespace meshgrad::cpu
