// SPDX-License-Identifier: Apache-2.0
#include "reference/slice_attention.h"

#include <algorithm>
#include <cmath>

namespace meshgrad::reference {
namespace {

double temperature(const Slices& a, int64_t h) { return std::clamp(a.temperatures.at(0, h), 0.1, 5.0); }

/// key[n, h] W + b.
double score(const Slices& a, int64_t n, int64_t h, int64_t m) {
  double sum = a.bias.at(0, m);
  for (int64_t d = 0; d < a.columns(); ++d) sum += a.keys.at(n, h * a.columns() + d) * a.weight.at(d, m);
  return sum;
}

/// Calls body(graph, node, head) for each.
template <class Body>
void each_node(const Slices& a, const Body& body) {
  for (int64_t g = 0; g < a.graphs(); ++g)
    for (int64_t n = a.starts[static_cast<size_t>(g)]; n < a.starts[static_cast<size_t>(g) + 1]; ++n)
      for (int64_t h = 0; h < a.heads; ++h) body(g, n, h);
}
int64_t token(const Slices& a, int64_t g, int64_t h, int64_t m) { return (g * a.heads + h) * a.slices() + m; }

void softmax(std::span<double> x) {
  const double most = *std::max_element(x.begin(), x.end());
  double sum = 0.0;
  for (double& value : x) sum += value = std::exp(value - most);
  for (double& value : x) value /= sum;
}

/// From the gradient of the soft weights, [nodes, heads slices].
void weights_backward(const Slices& a, const Matrix& s, const Matrix& d_s, SliceGradients& to) {
  to.d_keys = Matrix(a.keys.rows, a.keys.cols);
  to.d_weight = Matrix(a.columns(), a.slices());
  to.d_bias = Matrix(1, a.slices());
  to.d_temperatures = Matrix(1, a.heads);
  each_node(a, [&](int64_t, int64_t n, int64_t h) {
    const double t = temperature(a, h);
    double mean = 0.0;
    for (int64_t m = 0; m < a.slices(); ++m)
      mean += s.at(n, h * a.slices() + m) * d_s.at(n, h * a.slices() + m);
    for (int64_t m = 0; m < a.slices(); ++m) {
      const int64_t column = h * a.slices() + m;
      const double d_logit = s.at(n, column) * (d_s.at(n, column) - mean);
      to.d_bias.at(0, m) += d_logit / t;
      if (t == a.temperatures.at(0, h)) to.d_temperatures.at(0, h) -= d_logit * score(a, n, h, m) / (t * t);
      for (int64_t d = 0; d < a.columns(); ++d) {
        to.d_keys.at(n, h * a.columns() + d) += d_logit / t * a.weight.at(d, m);
        to.d_weight.at(d, m) += d_logit / t * a.keys.at(n, h * a.columns() + d);
      }
    }
  });
}

}  // namespace

Matrix soft_weights(const Slices& a) {
  Matrix s(a.keys.rows, a.heads * a.slices());
  each_node(a, [&](int64_t, int64_t n, int64_t h) {
    const std::span<double> row =
        s.row(n).subspan(static_cast<size_t>(h * a.slices()), static_cast<size_t>(a.slices()));
    for (int64_t m = 0; m < a.slices(); ++m)
      row[static_cast<size_t>(m)] = score(a, n, h, m) / temperature(a, h);
    softmax(row);
  });
  return s;
}

SliceTokens slice_tokens(const Slices& a, const Matrix& values) {
  const Matrix s = soft_weights(a);
  SliceTokens out{Matrix(a.tokens(), a.columns()), Matrix(1, a.tokens())};
  each_node(a, [&](int64_t g, int64_t n, int64_t h) {
    for (int64_t m = 0; m < a.slices(); ++m) {
      const double weight = s.at(n, h * a.slices() + m);
      out.sizes.at(0, token(a, g, h, m)) += weight;
      for (int64_t d = 0; d < a.columns(); ++d)
        out.tokens.at(token(a, g, h, m), d) += weight * values.at(n, h * a.columns() + d);
    }
  });
  for (int64_t i = 0; i < a.tokens(); ++i)
    for (double& value : out.tokens.row(i)) value /= out.sizes.at(0, i) + 1e-5;
  return out;
}

SliceGradients slice_tokens_backward(const Slices& a, const Matrix& values, const Matrix& d_tokens) {
  const Matrix s = soft_weights(a);
  const SliceTokens forward = slice_tokens(a, values);
  SliceGradients to;
  to.d_other = Matrix(values.rows, values.cols);
  Matrix d_s(s.rows, s.cols);
  each_node(a, [&](int64_t g, int64_t n, int64_t h) {
    for (int64_t m = 0; m < a.slices(); ++m) {
      const int64_t i = token(a, g, h, m), column = h * a.slices() + m;
      for (int64_t d = 0; d < a.columns(); ++d) {
        const double d_sum = d_tokens.at(i, d) / (forward.sizes.at(0, i) + 1e-5);
        const double value = values.at(n, h * a.columns() + d);
        to.d_other.at(n, h * a.columns() + d) += s.at(n, column) * d_sum;
        d_s.at(n, column) += d_sum * (value - forward.tokens.at(i, d));
      }
    }
  });
  weights_backward(a, s, d_s, to);
  return to;
}

Matrix slice_spread(const Slices& a, const Matrix& tokens) {
  const Matrix s = soft_weights(a);
  Matrix out(a.keys.rows, a.keys.cols);
  each_node(a, [&](int64_t g, int64_t n, int64_t h) {
    for (int64_t m = 0; m < a.slices(); ++m)
      for (int64_t d = 0; d < a.columns(); ++d)
        out.at(n, h * a.columns() + d) += s.at(n, h * a.slices() + m) * tokens.at(token(a, g, h, m), d);
  });
  return out;
}

SliceGradients slice_spread_backward(const Slices& a, const Matrix& tokens, const Matrix& d_out) {
  const Matrix s = soft_weights(a);
  SliceGradients to;
  to.d_other = Matrix(tokens.rows, tokens.cols);
  Matrix d_s(s.rows, s.cols);
  each_node(a, [&](int64_t g, int64_t n, int64_t h) {
    for (int64_t m = 0; m < a.slices(); ++m) {
      for (int64_t d = 0; d < a.columns(); ++d) {
        const double d_value = d_out.at(n, h * a.columns() + d);
        to.d_other.at(token(a, g, h, m), d) += s.at(n, h * a.slices() + m) * d_value;
        d_s.at(n, h * a.slices() + m) += d_value * tokens.at(token(a, g, h, m), d);
      }
    }
  });
  weights_backward(a, s, d_s, to);
  return to;
}

namespace {

/// How much query i takes of each value of its group.
std::vector<double> token_weights(const Tokens& t, int64_t i) {
  const int64_t first = i / t.slices * t.slices;
  std::vector<double> p(static_cast<size_t>(t.slices));
  for (int64_t j = 0; j < t.slices; ++j)
    for (int64_t d = 0; d < t.queries.cols; ++d)
      p[static_cast<size_t>(j)] +=
          t.queries.at(i, d) * t.keys.at(first + j, d) / std::sqrt(static_cast<double>(t.queries.cols));
  softmax(p);
  return p;
}

}  // namespace

Matrix token_attention(const Tokens& t) {
  Matrix out(t.queries.rows, t.queries.cols);
  for (int64_t i = 0; i < out.rows; ++i) {
    const std::vector<double> p = token_weights(t, i);
    for (int64_t j = 0; j < t.slices; ++j)
      for (int64_t d = 0; d < out.cols; ++d)
        out.at(i, d) += p[static_cast<size_t>(j)] * t.values.at(i / t.slices * t.slices + j, d);
  }
  return out;
}

TokenGradients token_attention_backward(const Tokens& t, const Matrix& d_out) {
  const int64_t rows = t.queries.rows, columns = t.queries.cols;
  TokenGradients to{Matrix(rows, columns), Matrix(rows, columns), Matrix(rows, columns)};
  const double root = std::sqrt(static_cast<double>(columns));
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t first = i / t.slices * t.slices;
    const std::vector<double> p = token_weights(t, i);
    std::vector<double> d_p(p.size());
    double mean = 0.0;
    for (int64_t j = 0; j < t.slices; ++j) {
      const auto at = static_cast<size_t>(j);
      for (int64_t d = 0; d < columns; ++d) {
        d_p[at] += d_out.at(i, d) * t.values.at(first + j, d);
        to.d_values.at(first + j, d) += p[at] * d_out.at(i, d);
      }
      mean += p[at] * d_p[at];
    }
    for (int64_t j = 0; j < t.slices; ++j) {
      const double d_score = p[static_cast<size_t>(j)] * (d_p[static_cast<size_t>(j)] - mean) / root;
      for (int64_t d = 0; d < columns; ++d) {
        to.d_queries.at(i, d) += d_score * t.keys.at(first + j, d);
        to.d_keys.at(first + j, d) += d_score * t.queries.at(i, d);
      }
    }
  }
  return to;
}

}  // namespace meshgrad::reference
