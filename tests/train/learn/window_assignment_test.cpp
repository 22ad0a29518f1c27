// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/train/learn/run/batch_loader.h>

#include <algorithm>
#include <random>
#include <set>

namespace meshgrad {
namespace {

/// Each place once, and each part ascending.
void check_complete(const WindowAssignment& assignment, size_t samples) {
  std::set<int64_t> seen;
  for (const std::vector<int64_t>& part : assignment) {
    CHECK(std::is_sorted(part.begin(), part.end()));
    for (const int64_t place : part) CHECK(seen.insert(place).second);
  }
  CHECK(seen.size() == samples);
  if (samples > 0) CHECK(*seen.rbegin() == static_cast<int64_t>(samples) - 1);
}

TEST_CASE("the largest samples are assigned first") {
  const std::vector<int64_t> edges{3, 9, 5, 4, 2, 5};
  // 9 | 5 | 5, then 4 to the second (5 and 5 are equal: the first of them), 3 to the third, 2 to the third.
  CHECK(assign_largest_first(edges, 3) == WindowAssignment{{1}, {2, 3}, {0, 4, 5}});
  CHECK(assign_largest_first(edges, 1) == WindowAssignment{{0, 1, 2, 3, 4, 5}});
  CHECK(imbalance(edges, assign_largest_first(edges, 3)) == doctest::Approx(10.0 * 3 / 28));
}

TEST_CASE("in rounds each rank gets one of consecutive samples") {
  const std::vector<int64_t> edges{1, 9, 8, 2, 5};
  // Round 1: the 9 to the first rank, the 1 to the second; round 2: the 8 to the second; round 3: loads
  // 11, 9.
  CHECK(assign_in_rounds(edges, 2) == WindowAssignment{{1, 3}, {0, 2, 4}});
  CHECK(assign_in_rounds(edges, 1) == WindowAssignment{{0, 1, 2, 3, 4}});
}

TEST_CASE("an assignment is complete, and as balanced as promised") {
  std::mt19937 random(5);
  for (const size_t samples : {0, 1, 2, 7, 31, 64}) {
    std::vector<int64_t> edges(samples);
    int64_t sum = 0;
    int64_t largest = 0;
    for (int64_t& n : edges) {
      sum += n = static_cast<int64_t>(random() % 10'000);
      largest = std::max(largest, n);
    }
    for (const int ranks : {1, 2, 3, 8}) {
      const WindowAssignment assignment = assign_largest_first(edges, ranks);
      check_complete(assignment, samples);
      check_complete(assign_in_rounds(edges, ranks), samples);
      // No rank has more than the mean and one sample.
      if (sum > 0) {
        CHECK(imbalance(edges, assignment) <=
              1.0 + static_cast<double>(largest) * ranks / static_cast<double>(sum) + 1e-9);
      }
      const WindowAssignment rounds = assign_in_rounds(edges, ranks);
      for (const std::vector<int64_t>& part : rounds)
        for (size_t i = 0; i < part.size(); ++i) CHECK(part[i] / ranks == static_cast<int64_t>(i));
    }
  }
}

TEST_CASE("samples without edges are split evenly") {
  const std::vector<int64_t> edges(6, 0);
  for (const std::vector<int64_t>& part : assign_largest_first(edges, 3)) CHECK(part.size() == 2);
  CHECK(imbalance(edges, assign_largest_first(edges, 3)) == 1.0);
}

}  // namespace
}  // namespace meshgrad
