// SPDX-License-Identifier: Apache-2.0
// Running mean and variance in double, merged a batch at a time: they neither cancel nor go negative.
#pragma once
#include <cmath>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Count, mean and sum of squared deviations of the values of one column.
struct Moments {
  double count = 0;
  double mean = 0;
  double m2 = 0;  ///< sum of squared deviations from the mean

  /// Adds one value with a weight (Welford 1962; weights: West 1979).
  void add(double value, double weight = 1) {
    if (weight <= 0) return;
    count += weight;
    const double delta = value - mean;
    mean += delta * (weight / count);
    m2 += weight * delta * (value - mean);
  }

  /// Adds other values, of which only the moments are known (Chan, Golub, LeVeque 1979).
  void merge(const Moments& other) {
    if (other.count <= 0) return;
    const double total = count + other.count;
    const double delta = other.mean - mean;
    m2 += other.m2 + delta * delta * (count * (other.count / total));
    mean += delta * (other.count / total);
    count = total;
  }

  /// Standard deviation of the population; 0 when nothing was counted.
  double standard_deviation() const { return count > 0 ? std::sqrt(m2 / count) : 0.0; }
};

}  // namespace meshgrad
#pragma GCC visibility pop
