// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/random.h>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <functional>
#include <set>
#include <vector>

namespace meshgrad {
namespace {

// The known answers published with Philox 4x32-10.
TEST_CASE("philox gives the published answers") {
  using Words = std::array<uint32_t, 4>;
  CHECK((philox({0}, {0, 0, 0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  CHECK((philox({0xffffffffffffffff}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}) ==
         Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  CHECK((philox({0x299f31d0a4093822}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}) ==
         Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST_CASE("noise depends on each of its arguments and on nothing else") {
  const double base = training_noise(1, 2, 3, 4, 5);
  for (int again = 0; again < 3; ++again) {
    uniform(9, 9, 9);
    CHECK(training_noise(1, 2, 3, 4, 5) == base);
  }
  CHECK(training_noise(2, 2, 3, 4, 5) != base);
  CHECK(training_noise(1, 3, 3, 4, 5) != base);
  CHECK(training_noise(1, 2, 4, 4, 5) != base);
  CHECK(training_noise(1, 2, 3, 5, 5) != base);
  CHECK(training_noise(1, 2, 3, 4, 6) != base);
  CHECK(training_noise(1, 2, 3 + (uint64_t{1} << 32), 4, 5) != base);
  std::set<double> values;
  for (uint32_t i = 0; i < 6; ++i) {
    for (uint32_t j = 0; j < 6; ++j) {
      for (uint32_t k = 0; k < 6; ++k) {
        for (uint32_t l = 0; l < 6; ++l) values.insert(training_noise(7, i, j, k, l));
      }
    }
  }
  CHECK(values.size() == 6 * 6 * 6 * 6);
}

/// Holds the first four moments of a standard normal against n draws, each within five standard errors; and
/// the correlation of neighbours.
void check_normal(const std::function<double(uint32_t)>& draw) {
  constexpr uint32_t kDraws = 200000;
  double sums[5] = {}, products = 0.0, previous = draw(kDraws);
  for (uint32_t i = 0; i < kDraws; ++i) {
    const double x = draw(i);
    CHECK_MESSAGE(std::isfinite(x), i);
    double power = 1.0;
    for (double& sum : sums) {
      sum += power;
      power *= x;
    }
    products += x * previous;
    previous = x;
  }
  const double n = kDraws;
  CHECK(std::abs(sums[1] / n) < 5.0 / std::sqrt(n));
  CHECK(std::abs(sums[2] / n - 1.0) < 5.0 * std::sqrt(2.0 / n));
  CHECK(std::abs(sums[3] / n) < 5.0 * std::sqrt(15.0 / n));
  CHECK(std::abs(sums[4] / n - 3.0) < 5.0 * std::sqrt(96.0 / n));
  CHECK(std::abs(products / n) < 5.0 / std::sqrt(n));
}

TEST_CASE("normal draws are normal, and neighbours independent") {
  check_normal([](uint32_t i) { return normal(3, 1, i); });
  check_normal([](uint32_t i) { return normal(i, 1, 0); });
  check_normal([](uint32_t i) { return training_noise(3, 0, 17, i, 0); });
  check_normal([](uint32_t i) { return training_noise(3, 0, 17, i / 3, i % 3); });
  check_normal([](uint32_t i) { return training_noise(3, 0, i, 5, 0); });
  check_normal([](uint32_t i) { return training_noise(3, i, 17, 5, 1); });
}

TEST_CASE("uniform draws fill [0, 1) evenly") {
  constexpr int kDraws = 100000;
  int counts[10] = {};
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double x = uniform(5, 2, i);
    REQUIRE(x >= 0.0);
    REQUIRE(x < 1.0);
    ++counts[static_cast<int>(x * 10.0)];
  }
  for (const int count : counts) CHECK(std::abs(count - kDraws / 10) < 5.0 * std::sqrt(kDraws * 0.09));
  CHECK(uniform(5, 2, 0) != uniform(5, 3, 0));
  CHECK(uniform(5, 2, 0) != uniform(6, 2, 0));
}

TEST_CASE("uniform_below stays below and is even") {
  for (const uint64_t count : {uint64_t{1}, uint64_t{2}, uint64_t{7}}) {
    std::vector<int> counts(count);
    constexpr int kDraws = 70000;
    for (uint64_t i = 0; i < kDraws; ++i) {
      const uint64_t x = uniform_below(5, 2, i, count);
      REQUIRE(x < count);
      ++counts[x];
    }
    const double expected = static_cast<double>(kDraws) / static_cast<double>(count);
    for (const int seen : counts) CHECK(std::abs(seen - expected) < 5.0 * std::sqrt(expected) + 1e-9);
  }
  CHECK(uniform_below(1, 1, 1, uint64_t{1} << 60) < uint64_t{1} << 60);
}

TEST_CASE("each seed and round has a permutation of its own") {
  for (const uint64_t count : {1, 2, 3, 4, 5, 16, 17, 211, 1000}) {
    CAPTURE(count);
    std::set<std::vector<uint64_t>> orders;
    for (uint64_t round = 0; round < 4; ++round) {
      std::vector<uint64_t> order;
      for (uint64_t i = 0; i < count; ++i) order.push_back(shuffled(11, round, i, count));
      const std::set<uint64_t> distinct(order.begin(), order.end());
      CHECK(distinct.size() == count);
      CHECK(*distinct.rbegin() == count - 1);
      orders.insert(order);
    }
    if (count >= 16) CHECK(orders.size() == 4);
  }
  CHECK(shuffled(11, 0, 3, 1000) != shuffled(12, 0, 3, 1000));
  CHECK_THROWS_AS(shuffled(11, 0, 1000, 1000), InternalError);
}

TEST_CASE("a shuffle sends each position everywhere about equally often") {
  constexpr uint64_t kCount = 12;
  constexpr int kRounds = 6000;
  std::vector<std::vector<int>> seen(kCount, std::vector<int>(kCount));
  for (uint64_t round = 0; round < kRounds; ++round) {
    for (uint64_t i = 0; i < kCount; ++i) ++seen[i][shuffled(21, round, i, kCount)];
  }
  const double expected = static_cast<double>(kRounds) / kCount;
  for (const auto& row : seen) {
    for (const int count : row) CHECK(std::abs(count - expected) < 5.5 * std::sqrt(expected));
  }
}

}  // namespace
}  // namespace meshgrad
