// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/engine/offsets.h>

#include <vector>

using namespace meshgrad;

namespace {

std::string fault(const std::vector<int32_t>& offsets, int64_t end) {
  return find_offset_fault(std::span<const int32_t>(offsets), end);
}

}  // namespace

TEST_CASE("a fault of offsets names the value and its place") {
  CHECK(fault({0}, 0).empty());
  CHECK(fault({0, 2, 2, 5}, 5).empty());
  CHECK(fault({}, 0) == "none");
  CHECK(fault({1, 5}, 5) == "1 at 0");
  CHECK(fault({-1, 5}, 5) == "-1 at 0");
  CHECK(fault({0, 4, 3, 5}, 5) == "3 at 2, after 4");
  CHECK(fault({0, 6}, 5) == "6 at 1, after 0");
  CHECK(fault({0, 4}, 5) == "4 at 1, the last");
  CHECK(find_descent(std::span<const int32_t>(), 0).empty());
  CHECK(find_descent(std::span<const int32_t>(std::vector<int32_t>{3, 4}), 5).empty());
}
