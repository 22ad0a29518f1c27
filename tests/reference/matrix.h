// SPDX-License-Identifier: Apache-2.0
// The reference implementation's only container: rows of doubles. Everything in tests/reference is written to
// be checked by eye.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace meshgrad::reference {

struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<double> v;

  Matrix() = default;
  Matrix(int64_t row_count, int64_t col_count, double fill = 0.0)
      : rows(row_count), cols(col_count), v(static_cast<std::size_t>(row_count * col_count), fill) {}
  Matrix(int64_t row_count, int64_t col_count, std::vector<double> values)
      : rows(row_count), cols(col_count), v(std::move(values)) {}

  double& at(int64_t row, int64_t col) { return v.at(static_cast<std::size_t>(row * cols + col)); }
  double at(int64_t row, int64_t col) const { return v.at(static_cast<std::size_t>(row * cols + col)); }
  std::span<double> row(int64_t index) {
    return std::span(v).subspan(static_cast<std::size_t>(index * cols), static_cast<std::size_t>(cols));
  }
  std::span<const double> row(int64_t index) const {
    return std::span(v).subspan(static_cast<std::size_t>(index * cols), static_cast<std::size_t>(cols));
  }
  /// A matrix that was never given stands for "there is none", as an undefined Tensor does.
  bool given() const { return cols > 0; }
};

/// a + b, element by element.
Matrix sum(const Matrix& a, const Matrix& b);

}  // namespace meshgrad::reference
