// SPDX-License-Identifier: Apache-2.0
// 16-bit storage on the CPU: vector conversions equal those of half and bfloat16, number by number.
#include <doctest/doctest.h>
#include <meshgrad/kernels/cpu/row_ops.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "support.h"

namespace meshgrad::test {
namespace {

template <class S>
S from_bits(uint32_t bits) {
  S value;
  value.bits = static_cast<uint16_t>(bits);
  return value;
}

/// Every number that S holds, and floats in the middle between two of them and on either side of the middle.
template <class S>
std::vector<float> telling_floats() {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto value = static_cast<float>(from_bits<S>(bits));
    const auto next = static_cast<float>(from_bits<S>((bits & 0x7fffu) == 0x7fffu ? bits : bits + 1));
    const float middle = std::isinf(next) ? value * (1.0f + std::numeric_limits<float>::epsilon() * 2.0f)
                                          : static_cast<float>(0.5 * (double{value} + double{next}));
    for (const float x : {value, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 2 * middle)})
      values.push_back(x);
  }
  for (const float x : {65519.0f, 65520.0f, 1e5f, 3.4e38f, 1e-45f, 1e-8f}) {
    values.push_back(x);
    values.push_back(-x);
  }
  return values;
}

template <class S>
void check_conversions() {
  const cpu::RowOps<S>& ops = cpu::row_ops<S>();
  const std::vector<float> values = telling_floats<S>();
  // An odd width, so that the last vector of a row is partial.
  constexpr int64_t kWidth = 37;
  const int64_t rows = static_cast<int64_t>(values.size()) / kWidth;
  std::vector<S> stored(static_cast<size_t>(rows * kWidth));
  std::vector<float> loaded(stored.size());
  ops.store(rows, kWidth, values.data(), kWidth, stored.data(), kWidth);
  ops.load(rows, kWidth, stored.data(), kWidth, loaded.data(), kWidth);
  int64_t wrong = 0;
  for (size_t i = 0; i < stored.size(); ++i) {
    const S expected(values[i]);
    if (std::isnan(values[i])) {
      wrong += std::isnan(loaded[i]) ? 0 : 1;
      continue;
    }
    const auto back = std::bit_cast<uint32_t>(static_cast<float>(expected));
    const bool right = stored[i].bits == expected.bits && std::bit_cast<uint32_t>(loaded[i]) == back;
    if (!right && wrong++ == 0) {
      MESSAGE(values[i], " stored as ", stored[i].bits, " instead of ", expected.bits, ", read as ",
              loaded[i]);
    }
  }
  CHECK(stored.size() > 4 * 0x10000u - kWidth);
  CHECK(wrong == 0);
}

TEST_CASE("vectors convert to and from 16 bits as half and bfloat16 do") {
  check_conversions<half>();
  check_conversions<bfloat16>();
  check_conversions<cpu::WideBfloat16>();
}

TEST_CASE("bfloat16 rows are interleaved in pairs") {
  Runtime runtime = make_runtime();
  RandomMatrices random(31);
  constexpr int64_t kWidth = 21, kRows = 5, kPairStride = 64;
  const Matrix values = stored_as(DType::bf16, random.normal(kRows, kWidth));
  const Tensor wide = to_tensor(runtime, values, DType::f32);
  const Tensor stored = to_tensor(runtime, values, DType::bf16);
  std::vector<bfloat16> of_tile(3 * kPairStride), of_stored(3 * kPairStride);
  const cpu::RowOps<bfloat16>& ops = cpu::row_ops<bfloat16>();
  ops.pair_rows(kRows, kWidth, wide.data<float>(), kWidth, of_tile.data(), kPairStride);
  ops.pair_activated_rows(Activation::none, kRows, kWidth, stored.data<bfloat16>(), kWidth, of_stored.data(),
                          kPairStride);
  for (int64_t row = 0; row < 6; ++row) {
    for (int64_t column = 0; column < kWidth; ++column) {
      const auto at = static_cast<size_t>(row / 2 * kPairStride + 2 * column + row % 2);
      const double expected = row < kRows ? values.v[static_cast<size_t>(row * kWidth + column)] : 0.0;
      CHECK(static_cast<double>(static_cast<float>(of_tile[at])) == expected);
      CHECK(of_stored[at].bits == of_tile[at].bits);
    }
  }
}

TEST_CASE("activations of paired rows are those of single numbers") {
  const std::vector<float> special{0.0f,     -0.0f,     1.5f, -1.5f, 3e38f, -3e38f, 1e-40f,
                                   INFINITY, -INFINITY, NAN,  -NAN,  2.0f,  -2.0f};
  const auto width = static_cast<int64_t>(special.size());
  std::vector<bfloat16> x, paired(64), tanh_paired(64);
  for (const float value : special) x.emplace_back(value);
  const cpu::RowOps<bfloat16>& ops = cpu::row_ops<bfloat16>();
  ops.pair_activated_rows(Activation::relu, 1, width, x.data(), width, paired.data(), 64);
  ops.pair_activated_rows(Activation::tanh, 1, width, x.data(), width, tanh_paired.data(), 64);
  for (size_t i = 0; i < special.size(); ++i) {
    const auto value = static_cast<float>(x[i]);
    CAPTURE(value);
    const auto relu = static_cast<float>(paired[2 * i]);
    CHECK((std::isnan(value) ? std::isnan(relu) : relu == std::max(value, 0.0f) && !std::signbit(relu)));
    const auto tanh = static_cast<float>(tanh_paired[2 * i]);
    CHECK((std::isnan(value) ? std::isnan(tanh) : std::abs(tanh - std::tanh(value)) <= 0x1p-8f));
    CHECK(paired[2 * i + 1].bits == 0);
  }
}

TEST_CASE("f16 overflows to infinity and is not clamped") {
  Runtime runtime = make_runtime();
  const Matrix x(1, 2, {400.0, 400.0});
  const Matrix weight(2, 3, {250.0, 80.0, 200.0, 0.0, 80.0, -199.0});
  for (const auto& [dtype, first] : {std::pair{DType::f16, std::numeric_limits<double>::infinity()},
                                     std::pair{DType::bf16, 99840.0}, std::pair{DType::f32, 1e5}}) {
    LinearForward args;
    args.rows = 1;
    args.x = to_tensor(runtime, x, dtype);
    args.weight = to_tensor(runtime, weight, dtype);
    args.y = unwritten(runtime, {1, 3}, dtype);
    kernels::linear_forward(args, runtime, runtime.stream());
    const Matrix y = to_matrix(args.y);
    CAPTURE(name_of(dtype));
    CHECK(args.y.bytes() == 3 * size_of(dtype));
    CHECK(y.v[0] == first);
    CHECK(y.v[1] == 64000.0);
    CHECK(y.v[2] == 400.0);
  }
}

}  // namespace
}  // namespace meshgrad::test
