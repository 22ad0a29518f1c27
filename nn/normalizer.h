// SPDX-License-Identifier: Apache-2.0
// Normalizer: maps columns to zero mean and unit variance, and back.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Mean and standard deviation of each column, given or learned online. Online statistics are kept in double
/// as (count, mean, sum of squared deviations), merged a batch at a time (Chan, Golub, LeVeque 1979), so that
/// they neither cancel nor go negative.
class Normalizer {
 public:
  explicit Normalizer(size_t width = 0) : mean_(width, 0.0), deviation_(width, 0.0) {}
  /// Fixed statistics. A standard deviation below kSmallestDeviation, of a constant column, counts as 1.
  static Normalizer fixed(std::vector<double> mean, const std::vector<double>& standard_deviation);

  size_t width() const { return mean_.size(); }
  /// Adds rows of `width()` values, each column for itself.
  template <class T>
  void accumulate(std::span<const T> rows);
  double mean(size_t column) const { return mean_[column]; }
  double standard_deviation(size_t column) const;

  /// x = (x - mean) / std, and back, in place.
  template <class T>
  void normalize(std::span<T> rows) const;
  template <class T>
  void denormalize(std::span<T> rows) const;

  static constexpr double kSmallestDeviation = 1e-8;

  // State, for checkpoints.
  double count() const { return count_; }
  const std::vector<double>& means() const { return mean_; }
  const std::vector<double>& squared_deviations() const { return deviation_; }
  void restore(double count, std::vector<double> means, std::vector<double> squared_deviations);

 private:
  double count_ = 0.0;
  std::vector<double> mean_;
  std::vector<double> deviation_;  // sum of squared deviations from the mean
};

}  // namespace meshgrad
#pragma GCC visibility pop
