// SPDX-License-Identifier: Apache-2.0
// Normalizer: maps columns to zero mean and unit variance, and back.
#pragma once
#include <meshgrad/nn/moments.h>

#include <cstddef>
#include <span>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Mean and standard deviation of each column, given or learned online: the moments of all rows so far,
/// merged a batch at a time.
class Normalizer {
 public:
  explicit Normalizer(size_t width = 0) : columns_(width) {}
  /// Fixed statistics. A standard deviation below kSmallestDeviation, of a constant column, counts as 1.
  static Normalizer fixed(const std::vector<double>& mean, const std::vector<double>& standard_deviation);

  size_t width() const { return columns_.size(); }
  /// Adds rows of `width()` values, each column for itself.
  template <class T>
  void accumulate(std::span<const T> rows);
  double mean(size_t column) const { return columns_[column].mean; }
  double standard_deviation(size_t column) const;

  /// x = (x - mean) / std, and back, in place.
  template <class T>
  void normalize(std::span<T> rows) const;
  template <class T>
  void denormalize(std::span<T> rows) const;

  static constexpr double kSmallestDeviation = 1e-8;

  // State, for checkpoints.
  double count() const { return columns_.empty() ? 0.0 : columns_.front().count; }  ///< rows
  std::vector<double> means() const;
  std::vector<double> squared_deviations() const;  ///< sum over all rows of (x - mean)^2
  void restore(double count, const std::vector<double>& means, const std::vector<double>& squared_deviations);

 private:
  std::vector<Moments> columns_;
};

}  // namespace meshgrad
#pragma GCC visibility pop
