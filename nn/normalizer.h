// SPDX-License-Identifier: Apache-2.0
// Normalizer: maps columns to zero mean and unit variance, and back. Moments: running mean and variance in
// double, merged a batch at a time: they neither cancel nor go negative.
#pragma once
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

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

/// Of a model on a mesh: node features, edge features and targets.
struct Normalizers {
  Normalizer nodes;  ///< input fields and one-hot node types
  Normalizer edges;  ///< relative position and length
  Normalizer targets;
  Normalizer world{};          ///< those of world edges; no columns where there are none
  Normalizer graph_targets{};  ///< of graphs, beside those of nodes; likewise

  /// Calls body(name, normalizer) for each, by the names that checkpoints have.
  template <class Body>
  void each(Body&& body) const {
    each_of(*this, body);
  }
  template <class Body>
  void each(Body&& body) {
    each_of(*this, body);
  }

 private:
  template <class Self, class Body>
  static void each_of(Self& self, Body& body) {
    body("nodes", self.nodes);
    body("edges", self.edges);
    body("targets", self.targets);
    if (self.world.width() > 0) body("world", self.world);
    if (self.graph_targets.width() > 0) body("graph_targets", self.graph_targets);
  }
};

}  // namespace meshgrad
#pragma GCC visibility pop
