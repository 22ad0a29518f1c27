// SPDX-License-Identifier: Apache-2.0
// Row-wise LayerNorm and RMSNorm with the residual of an MLP; forward and backward are one pass over memory
// each. With scale = 1 / sqrt(var(x) + epsilon), xn = (x - mean(x)) scale and g = d_y gain:
//
//   y   = xn gain + bias + residual
//   d_x = scale (g - mean(g) - xn mean(g xn))
//   d_gain += sum over rows of d_y xn,  d_bias += sum over rows of d_y
//
// RMSNorm has no mean: mean(x) and mean(g) are 0 there, and var(x) is the mean of x^2.
// Ba et al., "Layer Normalization", 2016; Zhang & Sennrich, "Root Mean Square Layer Normalization", 2019.
#pragma once
#include <meshgrad/kernels/elementwise.h>

namespace meshgrad::cuda {

/// The residual may be undefined; y may be the same memory as the residual or x.
void norm_rows(const NormForward& args, const Tensor& residual, const Stream& stream);

/// As ElementwiseKernels::norm_backward; d_gain may be undefined too.
void norm_rows_backward(const NormBackward& args, Runtime& runtime, const Stream& stream);

}  // namespace meshgrad::cuda
