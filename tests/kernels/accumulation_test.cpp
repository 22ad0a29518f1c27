// SPDX-License-Identifier: Apache-2.0
// 16-bit storage is not summed in 16 bits: sums that f16 and bf16 could not represent on the way. Adding ones
// stops growing at 2048 in f16 and at 256 in bf16, where the next one is rounded away.
#include <doctest/doctest.h>

#include <cmath>

#include "support.h"

namespace meshgrad::test {
namespace {

constexpr int64_t kMany = 4099;

/// `value` as the dtype stores it.
double stored(DType dtype, double value) { return stored_as(dtype, Matrix(1, 1, value)).v[0]; }

template <class Check>
void for_each_narrow_type(Check check) {
  for (const Backend& backend : backends()) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      CAPTURE(backend.name);
      CAPTURE(name_of(dtype));
      Runtime runtime = backend.runtime();
      check(backend, runtime, dtype);
    }
  }
}

TEST_CASE("a segment of thousands of ones is summed whole") {
  for_each_narrow_type([](const Backend& backend, Runtime& runtime, DType dtype) {
    SegmentSum args;
    args.segments = 3;
    args.offsets =
        to_index(runtime, {0, 1, static_cast<int32_t>(1 + kMany), static_cast<int32_t>(2 + kMany)});
    args.x = to_tensor(runtime, Matrix(kMany + 2, 3, 1.0), dtype);
    args.out = unwritten(runtime, {3, 3}, dtype);
    backend.kernels->segment_sum.segment_sum(args, runtime.stream());
    const double whole = stored(dtype, static_cast<double>(kMany));
    const std::vector<double> expected = {1.0, 1.0, 1.0, whole, whole, whole, 1.0, 1.0, 1.0};
    CHECK(to_matrix(args.out).v == expected);
  });
}

TEST_CASE("GEMMs over thousands of inputs accumulate in f32") {
  for_each_narrow_type([](const Backend& backend, Runtime& runtime, DType dtype) {
    const Tensor ones = to_tensor(runtime, Matrix(3, kMany, 1.0), dtype);
    const Tensor weight = to_tensor(runtime, Matrix(kMany, 2, 1.0), dtype);
    LinearForward forward{.rows = 3, .x = ones, .weight = weight, .bias = {}, .y = {}};
    forward.y = unwritten(runtime, {3, 2}, dtype);
    backend.kernels->linear.forward(forward, runtime, runtime.stream());
    for (const double y : to_matrix(forward.y).v) CHECK(y == stored(dtype, static_cast<double>(kMany)));

    const Tensor tall = to_tensor(runtime, Matrix(kMany, 3, 1.0), dtype);
    LinearBackward backward{.rows = kMany,
                            .d_y = to_tensor(runtime, Matrix(kMany, 2, 1.0), dtype),
                            .x = tall,
                            .weight = to_tensor(runtime, Matrix(3, 2, 1.0), dtype),
                            .d_x = {},
                            .d_weight = to_tensor(runtime, Matrix(3, 2, 0.0), DType::f32),
                            .d_bias = to_vector(runtime, Matrix(1, 2, 0.0), DType::f32)};
    backend.kernels->linear.backward(backward, runtime, runtime.stream());
    // No 16-bit number: neither rounded.
    for (const double d : to_matrix(backward.d_weight).v) CHECK(d == static_cast<double>(kMany));
    for (const double d : to_matrix(backward.d_bias).v) CHECK(d == static_cast<double>(kMany));
  });
}

TEST_CASE("the mean and the variance of a row are not those of 16 bits") {
  for_each_narrow_type([](const Backend& backend, Runtime& runtime, DType dtype) {
    // Steps of what the dtype can tell apart near 1000: 0.5 and 4.
    const double step = dtype == DType::f16 ? 0.5 : 4.0;
    RandomMatrices random(71);
    Matrix x = random.grid(9, 96, step, 4.0 * step);
    for (double& value : x.v) value += 1000.0;
    CHECK(stored_as(dtype, x).v == x.v);
    const Matrix ones(1, 96, 1.0), zeros(1, 96, 0.0);
    const NormForward args{Norm::layer,
                           9,
                           to_tensor(runtime, x, dtype),
                           to_vector(runtime, ones, DType::f32),
                           to_vector(runtime, zeros, DType::f32),
                           1e-5,
                           unwritten(runtime, {9, 96}, dtype)};
    backend.kernels->elementwise.norm_forward(args, runtime, runtime.stream());
    CHECK(difference(args.y, reference::norm(Norm::layer, x, ones, zeros, 1e-5), 96) == "");
  });
}

}  // namespace
}  // namespace meshgrad::test
