// SPDX-License-Identifier: Apache-2.0
#include "bounded.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace meshgrad::test {
namespace {

/// Of one f32 operation; a sum of n terms has n - 1, none on more than the sum of magnitudes.
constexpr double kF32 = 0x1p-23;

/// Half a unit in the last place of a stored value: relative, and below f16's normal numbers absolute.
double rounding_of(DType dtype, double x) {
  return dtype == DType::f16 ? std::max(std::ldexp(std::abs(x), -11), std::ldexp(1.0, -25))
                             : std::ldexp(std::abs(x), -8);
}

Matrix absolute(Matrix m) {
  for (double& x : m.v) x = std::abs(x);
  return m;
}

}  // namespace

Matrix rounded(DType dtype, Matrix m) {
  for (double& x : m.v) {
    const auto value = static_cast<float>(x);
    x = static_cast<double>(dtype == DType::f16 ? static_cast<float>(half(value))
                                                : static_cast<float>(bfloat16(value)));
  }
  return m;
}

Bounded stored(DType dtype, Bounded x) {
  for (size_t i = 0; i < x.value.v.size(); ++i)
    x.error.v[i] += rounding_of(dtype, std::abs(x.value.v[i]) + x.error.v[i]);
  return x;
}

Bounded sum(Bounded a, const Bounded& b) {
  for (size_t i = 0; i < a.value.v.size(); ++i) {
    a.value.v[i] += b.value.v[i];
    a.error.v[i] += b.error.v[i] + kF32 * std::abs(a.value.v[i]);
  }
  return a;
}

Bounded product(const Bounded& a, const Matrix& b) {
  Bounded result(reference::linear(a.value, b));
  const Matrix magnitudes = absolute(b);
  const Matrix of_sums = reference::linear(absolute(a.value), magnitudes);
  const Matrix of_errors = reference::linear(a.error, magnitudes);
  for (size_t i = 0; i < result.error.v.size(); ++i)
    result.error.v[i] = of_errors.v[i] + kF32 * static_cast<double>(a.value.cols) * of_sums.v[i];
  return result;
}

Matrix transposed(const Matrix& m) {
  Matrix t(m.cols, m.rows);
  for (int64_t i = 0; i < m.rows; ++i) {
    for (int64_t j = 0; j < m.cols; ++j) t.at(j, i) = m.at(i, j);
  }
  return t;
}

Bounded weight_gradient(const Matrix& x, const Bounded& d_z) {
  Bounded turned;
  turned.value = transposed(d_z.value);
  turned.error = transposed(d_z.error);
  Bounded result = product(turned, x);
  result.value = transposed(result.value);
  result.error = transposed(result.error);
  return result;
}

Bounded column_sums(const Bounded& d_z) { return weight_gradient(Matrix(d_z.value.rows, 1, 1.0), d_z); }

Bounded masked(Bounded d_h, const Matrix& z) {
  for (size_t i = 0; i < z.v.size(); ++i) {
    if (z.v[i] <= 0.0) d_h.value.v[i] = d_h.error.v[i] = 0.0;
  }
  return d_h;
}

Bounded gathered(const Bounded& x, const std::vector<int32_t>& index) {
  Bounded result;
  result.value = reference::gather(x.value, index);
  result.error = reference::gather(x.error, index);
  return result;
}

Bounded scattered(const Bounded& x, const std::vector<int32_t>& index, int64_t rows) {
  Bounded result(reference::scatter_add(x.value, index, rows));
  result.error = reference::scatter_add(x.error, index, rows);
  const Matrix of_sums = reference::scatter_add(absolute(x.value), index, rows);
  for (size_t i = 0; i < of_sums.v.size(); ++i)
    result.error.v[i] += kF32 * static_cast<double>(index.size()) * of_sums.v[i];
  return result;
}

Bounded from_f32(Matrix values, int64_t terms, double largest) {
  Bounded result(std::move(values));
  for (double& error : result.error.v) error = tolerance(DType::f32, terms, largest);
  return result;
}

std::string outside(const Matrix& actual, const Bounded& expected, const Matrix& start) {
  if (actual.rows * actual.cols != expected.value.rows * expected.value.cols) return "another size";
  for (size_t i = 0; i < actual.v.size(); ++i) {
    const double before = start.given() ? start.v[i] : 0.0;
    const double allowed = expected.error.v[i] + kF32 * std::abs(before);
    if (!(std::abs(actual.v[i] - before - expected.value.v[i]) <= allowed)) {
      return fmt::format("element {}: {} instead of {} +- {}", i, actual.v[i] - before, expected.value.v[i],
                         allowed);
    }
  }
  return {};
}

}  // namespace meshgrad::test
