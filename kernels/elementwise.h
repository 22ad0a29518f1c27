// SPDX-License-Identifier: Apache-2.0
// elementwise: activations, dropout, biases, linear combinations, conversions, and the row-wise norms of the
// op-by-op path.
//
// dtypes: the tensors of a call share one storage dtype (f32, f16 or bf16; f64 on the CPU). gain, bias and
// their gradients have its accumulation dtype (accumulator_of), in which sums and statistics are computed.
// Aliasing: an output may alias an input of the same shape. Deterministic: the order of every sum depends on
// only the sizes and the device. Throws InvalidArgument for a shape or dtype that does not fit.
#pragma once
#include <meshgrad/engine/tensor.h>
#include <meshgrad/kernels/activation.h>
#include <meshgrad/kernels/dropout.h>
#include <meshgrad/kernels/work.h>

namespace meshgrad {

/// y = act(x), tensors of one shape.
struct ActivationForward {
  Activation activation = Activation::relu;
  Tensor x, y;
};
/// d_x = d_y * act'(x), or d_x += with `accumulate`. For relu, `x` may be the forward output: both are
/// positive in the same places.
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
/// With x' = (x - mean) * scale and g = d_y * gain: d_x = scale * (g - mean(g) - x' * mean(g * x')), the term
/// mean(g) being absent with rms. d_x is written, or added to; d_gain and d_bias are always added to.
struct NormBackward {
  Norm norm = Norm::layer;
  Rows rows;
  Tensor x, gain, d_y;  ///< x and d_y: [rows, width]
  double epsilon = 1e-5;
  Tensor d_x;  ///< [rows, width]
  bool accumulate = false;
  Tensor d_gain, d_bias;  ///< [width]; d_bias may be undefined
};
/// y = x / (1 - rate) where the key keeps the value, else 0. As a map from d_y to d_x it is its own gradient.
struct Dropout {
  Rows rows;
  DropoutKey key;
  Tensor x, y;              ///< [rows, width]
  bool accumulate = false;  ///< y += instead of y =
};
/// y = x + bias, row by row.
struct AddBiasForward {
  Tensor x;     ///< [rows, width]
  Tensor bias;  ///< [width]
  Tensor y;     ///< [rows, width]
};
/// d_bias += column sums of d_y.
struct AddBiasBackward {
  Rows rows;
  Tensor d_y;     ///< [rows, width]
  Tensor d_bias;  ///< [width]
};
/// y = the larger of a and b, of which a NaN is the larger.
struct MaximumForward {
  Tensor a, b, y;  ///< of one shape
};
/// d_a = d_y where y is a, else 0; d_b = d_y elsewhere. Of equal values a is the larger. A gradient may be
/// undefined; it is written, or added to.
struct MaximumBackward {
  Tensor a, b, d_y, d_a, d_b;
  bool accumulate_d_a = false, accumulate_d_b = false;
};
/// y = a x + b y, element by element, computed in the accumulation dtype.
struct Axpby {
  double a = 1.0;
  Tensor x;
  double b = 1.0;
  Tensor y;
};

/// to = from, rounded to nearest even. From f64 (CPU only) to 16 bits it rounds twice, through f32.
struct Cast {
  Tensor from, to;  ///< floating dtypes, equal numbers of elements
};

Work work_of(const ActivationForward& args);
Work work_of(const ActivationBackward& args);
Work work_of(const NormForward& args);
Work work_of(const NormBackward& args);
Work work_of(const Dropout& args);
Work work_of(const AddBiasForward& args);
Work work_of(const AddBiasBackward& args);
Work work_of(const MaximumForward& args);
Work work_of(const MaximumBackward& args);
Work work_of(const Axpby& args);
Work work_of(const Cast& args);

struct ElementwiseKernels {
  void (*activation_forward)(const ActivationForward&, const Stream&);
  void (*activation_backward)(const ActivationBackward&, const Stream&);
  void (*norm_forward)(const NormForward&, Runtime&, const Stream&);
  void (*norm_backward)(const NormBackward&, Runtime&, const Stream&);
  void (*dropout)(const Dropout&, const Stream&);
  void (*add_bias_forward)(const AddBiasForward&, const Stream&);
  void (*add_bias_backward)(const AddBiasBackward&, Runtime&, const Stream&);
  void (*maximum_forward)(const MaximumForward&, const Stream&);
  void (*maximum_backward)(const MaximumBackward&, const Stream&);
  void (*axpby)(const Axpby&, const Stream&);
  void (*cast)(const Cast&, const Stream&);
};

namespace kernels {
void activation_forward(const ActivationForward& args, const Stream& stream);
void activation_backward(const ActivationBackward& args, const Stream& stream);
void norm_forward(const NormForward& args, Runtime& runtime, const Stream& stream);
void norm_backward(const NormBackward& args, Runtime& runtime, const Stream& stream);
void dropout(const Dropout& args, const Stream& stream);
void add_bias_forward(const AddBiasForward& args, const Stream& stream);
void add_bias_backward(const AddBiasBackward& args, Runtime& runtime, const Stream& stream);
void maximum_forward(const MaximumForward& args, const Stream& stream);
void maximum_backward(const MaximumBackward& args, const Stream& stream);
void axpby(const Axpby& args, const Stream& stream);
void cast(const Cast& args, const Stream& stream);
}  // namespace kernels

}  // namespace meshgrad
