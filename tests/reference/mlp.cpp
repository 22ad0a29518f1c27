// SPDX-License-Identifier: Apache-2.0
#include "reference/mlp.h"

#include <cmath>
#include <numbers>
#include <numeric>

namespace meshgrad::reference {

namespace {

/// to += factor * from.
void add(std::span<double> to, double factor, std::span<const double> from) {
  for (std::size_t j = 0; j < to.size(); ++j) to[j] += factor * from[j];
}

double dot(std::span<const double> a, std::span<const double> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

}  // namespace

Matrix linear(const Matrix& x, const Matrix& weight, const Matrix& bias) {
  Matrix y(x.rows, weight.cols);
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t j = 0; j < weight.cols; ++j) y.at(i, j) = bias.given() ? bias.at(0, j) : 0.0;
    for (int64_t k = 0; k < x.cols; ++k) add(y.row(i), x.at(i, k), weight.row(k));
  }
  return y;
}

LinearGradients linear_backward(const Matrix& x, const Matrix& weight, const Matrix& d_y) {
  LinearGradients g{Matrix(x.rows, x.cols), Matrix(weight.rows, weight.cols), Matrix(1, weight.cols)};
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t k = 0; k < x.cols; ++k) {
      g.d_x.at(i, k) = dot(d_y.row(i), weight.row(k));
      add(g.d_weight.row(k), x.at(i, k), d_y.row(i));
    }
    add(g.d_bias.row(0), 1.0, d_y.row(i));
  }
  return g;
}

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x > 0.0 ? x : 0.0;
    case Activation::silu:
      return x / (1.0 + std::exp(-x));
    case Activation::gelu:
      return 0.5 * x * (1.0 + std::erf(x / std::numbers::sqrt2));
    case Activation::tanh:
      return std::tanh(x);
    case Activation::elu:
      return x > 0.0 ? x : std::expm1(x);
    case Activation::leaky_relu:
      return x > 0.0 ? x : 0.2 * x;
  }
  return std::nan("");
}

double activation_slope(Activation activation, double x) {
  switch (activation) {
    case Activation::none:
      return 1.0;
    case Activation::relu:
      return x > 0.0 ? 1.0 : 0.0;
    case Activation::silu: {
      const double logistic = 1.0 / (1.0 + std::exp(-x));
      return logistic + x * logistic * (1.0 - logistic);
    }
    case Activation::gelu: {
      const double probability = 0.5 * (1.0 + std::erf(x / std::numbers::sqrt2));
      const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
      return probability + x * density;
    }
    case Activation::tanh:
      return 1.0 - std::tanh(x) * std::tanh(x);
    case Activation::elu:
      return x > 0.0 ? 1.0 : std::exp(x);
    case Activation::leaky_relu:
      return x > 0.0 ? 1.0 : 0.2;
  }
  return std::nan("");
}

Matrix activation(Activation activation, const Matrix& x) {
  Matrix y(x.rows, x.cols);
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t j = 0; j < x.cols; ++j) y.at(i, j) = activate(activation, x.at(i, j));
  }
  return y;
}

Matrix activation_backward(Activation activation, const Matrix& x, const Matrix& d_y) {
  Matrix d_x(x.rows, x.cols);
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t j = 0; j < x.cols; ++j)
      d_x.at(i, j) = d_y.at(i, j) * activation_slope(activation, x.at(i, j));
  }
  return d_x;
}

namespace {

/// What a row is shifted and scaled by: normalised = (x - shift) * scale.
struct RowStatistics {
  double shift = 0.0;
  double scale = 1.0;
};

RowStatistics statistics(Norm norm, const Matrix& x, int64_t row, double epsilon) {
  const auto width = static_cast<double>(x.cols);
  RowStatistics result;
  if (norm == Norm::none) return result;
  if (norm == Norm::layer) {
    for (int64_t j = 0; j < x.cols; ++j) result.shift += x.at(row, j) / width;
  }
  double mean_square = 0.0;
  for (int64_t j = 0; j < x.cols; ++j) {
    mean_square += (x.at(row, j) - result.shift) * (x.at(row, j) - result.shift) / width;
  }
  result.scale = 1.0 / std::sqrt(mean_square + epsilon);
  return result;
}

}  // namespace

Matrix norm(Norm norm, const Matrix& x, const Matrix& gain, const Matrix& bias, double epsilon) {
  if (norm == Norm::none) return x;
  Matrix y(x.rows, x.cols);
  for (int64_t i = 0; i < x.rows; ++i) {
    const RowStatistics s = statistics(norm, x, i, epsilon);
    for (int64_t j = 0; j < x.cols; ++j) {
      y.at(i, j) =
          (x.at(i, j) - s.shift) * s.scale * gain.at(0, j) + (norm == Norm::layer ? bias.at(0, j) : 0.0);
    }
  }
  return y;
}

NormGradients norm_backward(Norm norm, const Matrix& x, const Matrix& gain, const Matrix& d_y,
                            double epsilon) {
  NormGradients g{Matrix(x.rows, x.cols), Matrix(1, x.cols), Matrix(1, x.cols)};
  if (norm == Norm::none) {
    g.d_x = d_y;
    return g;
  }
  const auto width = static_cast<double>(x.cols);
  for (int64_t i = 0; i < x.rows; ++i) {
    const RowStatistics s = statistics(norm, x, i, epsilon);
    double mean_d = 0.0;        // of the gradient at the normalised values: through the shift
    double mean_product = 0.0;  // of that gradient times the normalised values: through the scale
    for (int64_t j = 0; j < x.cols; ++j) {
      const double normalised = (x.at(i, j) - s.shift) * s.scale;
      const double d_normalised = d_y.at(i, j) * gain.at(0, j);
      if (norm == Norm::layer) mean_d += d_normalised / width;
      mean_product += d_normalised * normalised / width;
      g.d_gain.at(0, j) += d_y.at(i, j) * normalised;
      g.d_bias.at(0, j) += d_y.at(i, j);
    }
    for (int64_t j = 0; j < x.cols; ++j) {
      const double normalised = (x.at(i, j) - s.shift) * s.scale;
      const double d_normalised = d_y.at(i, j) * gain.at(0, j);
      g.d_x.at(i, j) = s.scale * (d_normalised - mean_d - normalised * mean_product);
    }
  }
  return g;
}

MlpResult mlp(const Mlp& mlp, const std::vector<Matrix>& inputs, const Matrix& first_terms) {
  MlpResult result;
  Matrix z = linear(inputs[0], mlp.first_weights[0], mlp.first_bias);
  for (size_t i = 1; i < inputs.size(); ++i) z = sum(z, linear(inputs[i], mlp.first_weights[i]));
  if (first_terms.given()) z = sum(z, first_terms);
  for (size_t layer = 0; layer < mlp.weights.size(); ++layer) {
    result.pre_activations.push_back(z);
    z = linear(activation(mlp.activation, z), mlp.weights[layer], mlp.biases[layer]);
  }
  result.pre_norm = z;
  result.out = norm(mlp.norm, z, mlp.gain, mlp.norm_bias, mlp.epsilon);
  return result;
}

MlpGradients mlp_backward(const Mlp& mlp, const std::vector<Matrix>& inputs, const Matrix& first_terms,
                          const Matrix& d_out) {
  const MlpResult forward = reference::mlp(mlp, inputs, first_terms);
  MlpGradients g;
  g.d_weights.resize(mlp.weights.size());
  g.d_biases.resize(mlp.weights.size());
  const NormGradients at_norm = norm_backward(mlp.norm, forward.pre_norm, mlp.gain, d_out, mlp.epsilon);
  g.d_gain = at_norm.d_gain;
  g.d_norm_bias = at_norm.d_bias;
  Matrix d_z = at_norm.d_x;
  for (size_t layer = mlp.weights.size(); layer-- > 0;) {
    const Matrix& z = forward.pre_activations[layer];
    const LinearGradients at = linear_backward(activation(mlp.activation, z), mlp.weights[layer], d_z);
    g.d_weights[layer] = at.d_weight;
    g.d_biases[layer] = at.d_bias;
    d_z = activation_backward(mlp.activation, z, at.d_x);
  }
  g.d_first_terms = d_z;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const LinearGradients at = linear_backward(inputs[i], mlp.first_weights[i], d_z);
    g.d_inputs.push_back(at.d_x);
    g.d_first_weights.push_back(at.d_weight);
    g.d_first_bias = at.d_bias;
  }
  return g;
}

}  // namespace meshgrad::reference
