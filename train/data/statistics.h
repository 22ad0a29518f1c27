// SPDX-License-Identifier: Apache-2.0
// Counts, means and sums of squared deviations in double, that can be merged exactly in any order.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Node types 0..8 of MeshGraphNets: 0 normal, 1 obstacle, 2 airfoil, 3 handle, 4 inflow, 5 outflow, 6 wall.
constexpr int kNodeTypes = 9;

/// A set of node types: bit t stands for type t.
using NodeTypeMask = uint32_t;
constexpr NodeTypeMask kAllNodeTypes = (1U << kNodeTypes) - 1;
constexpr NodeTypeMask node_type_bit(int type) { return 1U << type; }

/// What is counted of a field x: its value x[t], its change x[t+1] - x[t], or its second change
/// x[t+1] - 2 x[t] + x[t-1].
enum class Quantity { value = 0, change = 1, second_change = 2 };
constexpr int kQuantities = 3;

/// Running moments of one number. `m2` is the sum of squared deviations from the mean.
struct Moments {
  double count = 0;
  double mean = 0;
  double m2 = 0;

  /// Adds one observation with a weight (Welford's update).
  void add(double value, double weight = 1);
  /// Adds another set of observations (Chan, Golub and LeVeque's pairwise formula).
  void merge(const Moments& other);
  /// Standard deviation of the population; 0 when nothing was counted.
  double standard_deviation() const;
};

/// Moments of one field: index with `at(quantity, type, component)`.
struct FieldMoments {
  int components = 0;
  std::vector<Moments> moments;  ///< [kQuantities, kNodeTypes, components]

  explicit FieldMoments(int components_of_field = 0)
      : components(components_of_field),
        moments(static_cast<size_t>(kQuantities * kNodeTypes * components_of_field)) {}
  Moments& at(Quantity quantity, int type, int component) {
    return moments[index(quantity, type, component)];
  }
  const Moments& at(Quantity quantity, int type, int component) const {
    return moments[index(quantity, type, component)];
  }

  /// Adds a trajectory: `values` [frames, nodes, components], `node_type` [nodes] in 0..8.
  void add(std::span<const float> values, std::span<const int32_t> node_type, int64_t frames);

 private:
  size_t index(Quantity quantity, int type, int component) const {
    return static_cast<size_t>((static_cast<int>(quantity) * kNodeTypes + type) * components + component);
  }
};

/// Everything that is counted over the training split.
struct DataStatistics {
  std::array<double, kNodeTypes> node_type_counts{};  ///< (frame, node) pairs of each type
  std::vector<FieldMoments> fields;                   ///< in the order of the file's fields
  std::vector<Moments> edges;                         ///< [dim + 1]: relative position, then its norm
};

}  // namespace meshgrad
#pragma GCC visibility pop
