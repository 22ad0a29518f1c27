// SPDX-License-Identifier: Apache-2.0
// Reference implementations of linear, elementwise and mlp. Gradients are returned, never added to what was
// there.
#pragma once
#include <meshgrad/kernels/activation.h>

#include "reference/matrix.h"

namespace meshgrad::reference {

/// x [rows, in] times weight [in, out], plus bias [1, out] when given.
Matrix linear(const Matrix& x, const Matrix& weight, const Matrix& bias = {});

struct LinearGradients {
  Matrix d_x, d_weight, d_bias;
};
LinearGradients linear_backward(const Matrix& x, const Matrix& weight, const Matrix& d_y);

double activate(Activation activation, double x);
/// The derivative; relu's at 0 is 0.
double activation_slope(Activation activation, double x);
Matrix activation(Activation activation, const Matrix& x);
Matrix activation_backward(Activation activation, const Matrix& x, const Matrix& d_y);

/// gain and bias are [1, width]; bias is not given with rms; neither is used with none.
Matrix norm(Norm norm, const Matrix& x, const Matrix& gain, const Matrix& bias, double epsilon);

struct NormGradients {
  Matrix d_x, d_gain, d_bias;
};
NormGradients norm_backward(Norm norm, const Matrix& x, const Matrix& gain, const Matrix& d_y,
                            double epsilon);

struct Mlp {
  std::vector<Matrix> first_weights;  ///< one per input
  Matrix first_bias;
  std::vector<Matrix> weights, biases;  ///< layers after the first
  Activation activation = Activation::relu;
  Norm norm = Norm::none;
  Matrix gain, norm_bias;
  double epsilon = 1e-5;
};

struct MlpResult {
  std::vector<Matrix> pre_activations;  ///< z of every layer but the last
  Matrix pre_norm;                      ///< z of the last layer
  Matrix out;                           ///< after the norm, without a residual
};
/// `first_terms` [rows, hidden], when given, are added to the first layer's sum.
MlpResult mlp(const Mlp& mlp, const std::vector<Matrix>& inputs, const Matrix& first_terms = {});

struct MlpGradients {
  std::vector<Matrix> d_inputs, d_first_weights;
  Matrix d_first_terms, d_first_bias;
  std::vector<Matrix> d_weights, d_biases;
  Matrix d_gain, d_norm_bias;
};
MlpGradients mlp_backward(const Mlp& mlp, const std::vector<Matrix>& inputs, const Matrix& first_terms,
                          const Matrix& d_out);

}  // namespace meshgrad::reference
