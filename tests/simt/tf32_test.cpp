// SPDX-License-Identifier: Apache-2.0
// RuntimeOptions::tf32 reaches the GEMMs of f32, captured ones too, and no others. The simulated device
// rounds operands as tensor cores do.
#include <doctest/doctest.h>
#include <meshgrad/engine/captured_work.h>
#include <meshgrad/kernels/linear.h>

#include <algorithm>
#include <cmath>

#include "reference/mlp.h"
#include "support.h"

namespace meshgrad::test {
namespace {

/// The largest error of y = x W, with values of about 1 and 64 terms.
double largest_error(DType dtype, bool tf32, bool captured) {
  Runtime runtime({.device = {DeviceKind::cuda, 0}, .tf32 = tf32});
  RandomMatrices random(5);
  const Matrix x = stored_as(dtype, random.normal(40, 64)), weight = stored_as(dtype, random.normal(64, 24));
  LinearForward args;
  args.rows = 40;
  args.x = to_tensor(runtime, x, dtype);
  args.weight = to_tensor(runtime, weight, dtype);
  args.y = unwritten(runtime, {40, 24}, dtype);
  const auto run = [&](Runtime& on) { kernels::linear_forward(args, on, on.stream()); };
  CapturedWork work(runtime, "linear", run);
  for (int i = 0; i < 3 && captured; ++i) work.run();
  if (!captured) run(runtime);
  const Matrix expected = reference::linear(x, weight);
  const std::vector<double> actual = to_matrix(args.y).v;
  double largest = 0.0;
  for (size_t i = 0; i < actual.size(); ++i) largest = std::max(largest, std::abs(actual[i] - expected.v[i]));
  return largest;
}

TEST_CASE("TF32 rounds the operands of f32 GEMMs, when it is asked for") {
  constexpr double kTf32 = 0x1p-11, kF32 = 0x1p-24, kTerms = 64;
  for (const bool captured : {false, true}) {
    CAPTURE(captured);
    CHECK(largest_error(DType::f32, false, captured) < 16 * kTerms * kF32);
    const double rounded = largest_error(DType::f32, true, captured);
    CHECK(rounded > 16 * kTerms * kF32);
    CHECK(rounded < 16 * std::sqrt(kTerms) * kTf32);
    CHECK(largest_error(DType::f16, true, captured) == largest_error(DType::f16, false, captured));
  }
}

}  // namespace
}  // namespace meshgrad::test
