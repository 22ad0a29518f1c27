// SPDX-License-Identifier: Apache-2.0
// elementwise: activations, sums, conversions, and the row-wise norms of the op-by-op path. Outputs may alias
// inputs of the same shape. The tensors of a call share one storage dtype (f32, f16 or bf16; f64 on the CPU);
// gain, bias and their gradients have its accumulator's (accumulator_of), in which sums and statistics run.
// Deterministic: the order of every sum depends on the sizes and the device alone. Throws InvalidArgument on
// a shape or dtype that does not fit.
#pragma once
#include <meshgrad/engine/tensor.h>
#include <meshgrad/kernels/activation.h>

namespace meshgrad {

/// y = act(x)
struct ActivationForward {
  Activation activation = Activation::relu;
  Tensor x, y;
};
/// d_x = d_y * act'(x); accumulate: d_x +=. relu's x may be its output: they are positive alike.
struct ActivationBackward {
  Activation activation = Activation::relu;
  Tensor x, d_y, d_x;
  bool accumulate = false;
};
/// y = norm(x) * gain + bias, row by row. Norm::layer uses the biased variance.
struct NormForward {
  Norm norm = Norm::layer;
  Rows rows;
  Tensor x;     ///< [rows, width]
  Tensor gain;  ///< [width]
  Tensor bias;  ///< [width]; undefined with rms
  double epsilon = 1e-5;
  Tensor y;  ///< [rows, width]
};
/// d_x is written, or added to; d_gain and d_bias are accumulated into.
struct NormBackward {
  Norm norm = Norm::layer;
  Rows rows;
  Tensor x, gain, d_y;
  double epsilon = 1e-5;
  Tensor d_x;
  bool accumulate = false;
  Tensor d_gain, d_bias;
};
/// y = a x + b y, element by element.
struct Axpby {
  double a = 1.0;
  Tensor x;
  double b = 1.0;
  Tensor y;
};

/// to = from, rounded to nearest even; f64, which only the CPU has, becomes 16 bits by way of f32.
struct Cast {
  Tensor from, to;  ///< as many elements
};

struct ElementwiseKernels {
  void (*activation_forward)(const ActivationForward&, const Stream&);
  void (*activation_backward)(const ActivationBackward&, const Stream&);
  void (*norm_forward)(const NormForward&, Runtime&, const Stream&);
  void (*norm_backward)(const NormBackward&, Runtime&, const Stream&);
  void (*axpby)(const Axpby&, const Stream&);
  void (*cast)(const Cast&, const Stream&);
};

void activation_forward(const ActivationForward& args, const Stream& stream);
void activation_backward(const ActivationBackward& args, const Stream& stream);
void norm_forward(const NormForward& args, Runtime& runtime, const Stream& stream);
void norm_backward(const NormBackward& args, Runtime& runtime, const Stream& stream);
void axpby(const Axpby& args, const Stream& stream);
void cast(const Cast& args, const Stream& stream);

}  // namespace meshgrad
