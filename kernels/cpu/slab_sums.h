// SPDX-License-Identifier: Apache-2.0
// Sums in f64 over slabs of fixed size, added in order: the same bits for any number of threads.
#pragma once
#include <meshgrad/engine/tensor.h>

#include <algorithm>
#include <array>

namespace meshgrad::cpu {

inline constexpr int64_t kSumSlab = 8192;  // elements or rows of a partial sum

/// Adds `partial(begin, end)` over slabs of that size, in order. Slabs run in rounds of 1024, whose partial
/// sums fit on the stack: no workspace is allocated.
template <class Partial>
double slab_sum(const Stream& stream, int64_t n, Partial&& partial, int64_t slab = kSumSlab) {
  constexpr int64_t kRound = 1024;
  std::array<double, kRound> sums;
  const int64_t slabs = (n + slab - 1) / slab;
  double total = 0.0;
  for (int64_t first = 0; first < slabs; first += kRound) {
    const int64_t count = std::min(kRound, slabs - first);
    stream.parallel_for(count, [&](int64_t i) {
      const int64_t begin = (first + i) * slab;
      sums[static_cast<size_t>(i)] = partial(begin, std::min(n, begin + slab));
    });
    for (int64_t i = 0; i < count; ++i) total += sums[static_cast<size_t>(i)];
  }
  return total;
}

/// Writes or adds a sum to a scalar. On the stream, as in a dry run nothing may be written.
inline void store_sum(const Stream& stream, const Tensor& to, double value, bool accumulate) {
  stream.run([&] { *to.data<double>() = accumulate ? *to.data<double>() + value : value; });
}

}  // namespace meshgrad::cpu
