// SPDX-License-Identifier: Apache-2.0
// Activation functions and row norms of an MLP.
// GELU: Hendrycks, Gimpel 2016; SiLU: Elfwing, Uchibe, Doya 2018; ELU: Clevert, Unterthiner, Hochreiter 2016;
// leaky relu: Maas, Hannun, Ng 2013; LayerNorm: Ba, Kiros, Hinton 2016; RMSNorm: Zhang, Sennrich 2019.
#pragma once
#include <meshgrad/engine/error.h>

#include <cmath>
#include <numbers>
#include <string_view>

#pragma GCC visibility push(default)
namespace meshgrad {

/// relu: max(x, 0). silu: x / (1 + exp(-x)). gelu: x Phi(x), with the exact normal distribution (erf). tanh.
/// elu: x, or exp(x) - 1 for negative x. leaky_relu: x, or kLeakySlope x for negative x. none: the identity.
enum class Activation : uint8_t { none, relu, silu, gelu, tanh, elu, leaky_relu };
constexpr std::string_view name_of(Activation activation) {
  constexpr std::string_view kNames[] = {"none", "relu", "silu", "gelu", "tanh", "elu", "leaky_relu"};
  return kNames[static_cast<int>(activation)];
}
inline constexpr double kLeakySlope = 0.2;

/// Over each row of `width` values. layer: (x - mean) / sqrt(variance + epsilon), with the biased variance.
/// rms: x / sqrt(mean of squares + epsilon).
enum class Norm : uint8_t { none, layer, rms };
constexpr std::string_view name_of(Norm norm) {
  constexpr std::string_view kNames[] = {"none", "layer", "rms"};
  return kNames[static_cast<int>(norm)];
}

}  // namespace meshgrad
#pragma GCC visibility pop
