// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/dropout.h>

#include <cmath>
#include <set>
#include <vector>

#include "support.h"

namespace meshgrad::test {
namespace {

/// The mask of some rows and columns, one flag a value.
std::vector<bool> flags(const DropoutMask& mask, int64_t rows, int64_t columns) {
  std::vector<bool> result;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) result.push_back(keep(mask, row, column));
  }
  return result;
}

Tensor numbers(Runtime& runtime, const std::vector<int64_t>& values) {
  return Tensor::from<int64_t>(runtime, values, {static_cast<int64_t>(values.size())}, Tag::data);
}

TEST_CASE("dropout keeps 1 - rate of the values, neighbours independent") {
  constexpr int64_t kRows = 400, kColumns = 250;
  constexpr double kCount = kRows * kColumns;
  for (const double rate : {0.1, 0.6, 0.99}) {
    const DropoutMask mask = mask_of({.seed = 3, .op = 2, .rate = rate});
    const std::vector<bool> kept = flags(mask, kRows, kColumns);
    double sum = 0.0, both = 0.0, both_rows = 0.0;
    for (size_t i = 0; i < kept.size(); ++i) {
      sum += kept[i] ? 1.0 : 0.0;
      if (i >= 1) both += kept[i] && kept[i - 1] ? 1.0 : 0.0;
      if (i >= kColumns) both_rows += kept[i] && kept[i - kColumns] ? 1.0 : 0.0;
    }
    const double p = 1.0 - rate, pairs = p * p;
    CHECK(std::abs(sum / kCount - p) < 5.0 * std::sqrt(p * rate / kCount));
    CHECK(std::abs(both / kCount - pairs) < 8.0 * std::sqrt(pairs / kCount));
    CHECK(std::abs(both_rows / kCount - pairs) < 8.0 * std::sqrt(pairs / kCount));
    CHECK(mask.scale == 1.0 / p);
    CHECK(mask.drops());
  }
  CHECK_FALSE(mask_of({.seed = 3}).drops());
  CHECK(flags(mask_of({.seed = 3}), 8, 8) == std::vector<bool>(64, true));
}

TEST_CASE("dropout depends on seed, op, step, row key and column") {
  Runtime runtime = make_runtime();
  std::set<std::vector<bool>> masks;
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{1} << 40}) {
    for (const uint32_t op : {0u, 1u}) {
      for (const int64_t step : {0, 1, 7}) {
        const DropoutKey key{.seed = seed, .op = op, .rate = 0.5, .step = numbers(runtime, {step})};
        const std::vector<bool> kept = flags(mask_of(key), 4, 32);
        masks.insert(kept);
        CHECK(kept == flags(mask_of(key), 4, 32));
        for (int64_t row = 0; row < 4; ++row) {
          const auto first = kept.begin() + row * 32;
          masks.insert(std::vector<bool>(first, first + 32));
        }
      }
    }
  }
  CHECK(masks.size() == 18 * 5);
  const DropoutKey without{.seed = 1, .rate = 0.5};
  const DropoutKey zero{.seed = 1, .rate = 0.5, .step = numbers(runtime, {0})};
  CHECK(flags(mask_of(without), 4, 32) == flags(mask_of(zero), 4, 32));
}

TEST_CASE("dropout of a row with a key does not depend on its place") {
  Runtime runtime = make_runtime();
  const int64_t high = int64_t{1} << 33;
  const DropoutKey here{.seed = 1, .rate = 0.5, .row_keys = numbers(runtime, {0, high, -5})};
  const DropoutKey there{.seed = 1, .rate = 0.5, .row_keys = numbers(runtime, {-5, 0, high, 9})};
  const std::vector<bool> a = flags(mask_of(here), 3, 40), b = flags(mask_of(there), 4, 40);
  const auto row = [](const std::vector<bool>& all, int64_t i) {
    return std::vector<bool>(all.begin() + i * 40, all.begin() + (i + 1) * 40);
  };
  CHECK(row(a, 0) == row(b, 1));
  CHECK(row(a, 1) == row(b, 2));
  CHECK(row(a, 2) == row(b, 0));
  CHECK(row(a, 0) != row(a, 1));
  CHECK(row(a, 0) == row(flags(mask_of({.seed = 1, .rate = 0.5}), 1, 40), 0));
}

TEST_CASE("dropout says which part of a key does not fit") {
  Runtime runtime = make_runtime();
  const auto error = [&](const DropoutKey& key) {
    return invalid_argument_text([&] { check_dropout("op", key, 3); });
  };
  CHECK(error({.rate = 0.0, .step = numbers(runtime, {4}), .row_keys = numbers(runtime, {1, 2, 3})}) == "");
  for (const double rate : {1.0, -0.1, std::nan("")}) {
    CHECK(contains(error({.rate = rate}), "[op: dropout] needed a rate in [0, 1)"));
  }
  CHECK(contains(error({.step = numbers(runtime, {4, 5})}), "[op: dropout step] needed i64[1], got i64[2]"));
  CHECK(contains(error({.row_keys = numbers(runtime, {4, 5})}), "row_keys] needed i64[3], got i64[2]"));
}

}  // namespace
}  // namespace meshgrad::test
