// SPDX-License-Identifier: Apache-2.0
// What is wrong with lists of offsets, as errors say it.
#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace meshgrad {

/// The first of `offsets` that is below the one before it, or outside 0..`end`: "7 at 3, after 9". Empty
/// where all ascend. T: int32_t, int64_t.
template <class T>
std::string find_descent(std::span<const T> offsets, int64_t end) {
  int64_t before = 0;
  for (size_t i = 0; i < offsets.size(); ++i) {
    const int64_t offset = offsets[i];
    if (offset < before || offset > end) {
      return std::to_string(offset) + " at " + std::to_string(i) +
             (i > 0 ? ", after " + std::to_string(before) : "");
    }
    before = offset;
  }
  return {};
}

/// The same of offsets that begin with 0 and end with `end`.
template <class T>
std::string find_offset_fault(std::span<const T> offsets, int64_t end) {
  if (offsets.empty()) return "none";
  std::string fault = find_descent(offsets, end);
  if (fault.empty() && offsets.front() != 0) fault = std::to_string(offsets.front()) + " at 0";
  if (fault.empty() && offsets.back() != end)
    fault = std::to_string(offsets.back()) + " at " + std::to_string(offsets.size() - 1) + ", the last";
  return fault;
}

}  // namespace meshgrad
