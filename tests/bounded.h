// SPDX-License-Identifier: Apache-2.0
// The reference's values with a bound on the error of storing them in 16 bits: every product and every
// rounding widens it, so that what a test allows follows from the kernel's steps and nothing is guessed.
#pragma once
#include "support.h"

namespace meshgrad::test {

/// Values and how far a kernel's may be from them.
struct Bounded {
  Matrix value, error;
  Bounded() = default;
  explicit Bounded(Matrix exact) : value(std::move(exact)), error(value.rows, value.cols) {}
};

/// As f16 or bf16 stores them, of values that are the kernel's own.
Matrix rounded(DType dtype, Matrix m);
/// As stored, of values with an error: the reference's stay, the error grows.
Bounded stored(DType dtype, Bounded x);
Bounded sum(Bounded a, const Bounded& b);
/// a b, with exact values in b, summed in f32.
Bounded product(const Bounded& a, const Matrix& b);
Matrix transposed(const Matrix& m);
/// x^T d_z of exact x.
Bounded weight_gradient(const Matrix& x, const Bounded& d_z);
Bounded column_sums(const Bounded& d_z);
/// The gradient after relu, whose input z both know exactly.
Bounded masked(Bounded d_h, const Matrix& z);
Bounded gathered(const Bounded& x, const std::vector<int32_t>& index);
/// Rows of x added up by index, in f32.
Bounded scattered(const Bounded& x, const std::vector<int32_t>& index, int64_t rows);
/// Values out of f32 arithmetic that is not followed step by step: within tolerance() of the reference's.
Bounded from_f32(Matrix values, int64_t terms, double largest);

/// Empty when every value is within its error; `start` is what was there before.
std::string outside(const Matrix& actual, const Bounded& expected, const Matrix& start = {});

}  // namespace meshgrad::test
