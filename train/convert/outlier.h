// SPDX-License-Identifier: Apache-2.0
// Single values so far from the others that they make a normaliser useless.
#pragma once
#include <optional>

#include <meshgrad/train/convert/sources/trajectory_source.h>

namespace meshgrad {

struct Outlier {
  float value = 0;
  int64_t frame = 0, row = 0;
  int component = 0;
  double middle = 0, spread = 0;  ///< the component's median, and 1st to 99th percentile
};

/// The value of an f32 field farthest from the median, if it alone raises the standard deviation of its
/// component tenfold: beyond 10 sqrt(n) times the spread of n values, and 1000 times. Percentiles are those
/// of at most 4096 values, evenly taken. Nothing where more than 98 % of the values are equal.
std::optional<Outlier> find_outlier(const RawField& field, int64_t rows);

}  // namespace meshgrad
