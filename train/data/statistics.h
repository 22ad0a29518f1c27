// SPDX-License-Identifier: Apache-2.0
// What is counted over the training split: moments and ranges of fields by node type, and node types.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include <meshgrad/nn/normalizer.h>
#include <meshgrad/train/data/field_info.h>
#include <meshgrad/train/data/mesh_edges.h>

namespace meshgrad {

/// Node types are 0 <= type < kMaxNodeTypes. MeshGraphNets' are 0 normal, 1 obstacle, 2 airfoil, 3 handle,
/// 4 inflow, 5 outflow, 6 wall; other data may give them any meaning.
constexpr int32_t kMaxNodeTypes = 65536;

constexpr int kQuantities = 3;

/// How many values there are, the least and the largest.
struct ValueRange {
  double count = 0;
  double min = 0;  ///< 0 when nothing was counted
  double max = 0;

  void add(double value);
  void merge(const ValueRange& other);
};

/// What is counted of one field. Rows are counted in groups: nodes by their type; edges, cells and graphs all
/// in group 0. Only groups that were counted or asked for take memory.
class FieldMoments {
 public:
  explicit FieldMoments(int components = 0, DType dtype = DType::f32)
      : components_(components), dtype_(dtype) {}

  int components() const { return components_; }
  /// The groups that are held, ascending.
  const std::vector<int32_t>& groups() const { return groups_; }
  /// Holds these groups too, ascending, with nothing counted where they are new.
  void hold(std::span<const int32_t> groups);

  /// Only of floats; a field of integers has ranges and no moments.
  bool has_moments() const { return is_floating(dtype_); }
  /// Throws InternalError when the group is not held.
  Moments& at(Quantity quantity, int64_t group, int component);
  const Moments& at(Quantity quantity, int64_t group, int component) const;
  /// [groups, components] of one quantity.
  std::vector<Moments>& moments(Quantity quantity) { return moments_[static_cast<size_t>(quantity)]; }
  const std::vector<Moments>& moments(Quantity quantity) const {
    return moments_[static_cast<size_t>(quantity)];
  }
  /// [groups, components], of values. A packed file of version 1 has none: then they are empty.
  std::vector<ValueRange>& ranges() { return ranges_; }
  const std::vector<ValueRange>& ranges() const { return ranges_; }

  /// Adds a trajectory: `values` [frames, rows, components], `group_of_row` [rows], each at least 0. Groups
  /// are held as needed. Integers add only to ranges; floats must not be added to a field of integers.
  void add(std::span<const float> values, std::span<const int32_t> group_of_row, int64_t frames);
  void add(std::span<const int32_t> values, std::span<const int32_t> group_of_row, int64_t frames);
  void add(std::span<const int64_t> values, std::span<const int32_t> group_of_row, int64_t frames);

 private:
  /// Holds the groups of the rows; for each row the place of its group.
  std::vector<int32_t> places_of(std::span<const int32_t> group_of_row);
  template <class T>
  void add_ranges(std::span<const T> values, std::span<const int32_t> place_of_row);
  void add_moments(Quantity quantity, std::span<const float> values, std::span<const int32_t> place_of_row,
                   int64_t frames);

  int components_;
  DType dtype_;
  std::vector<int32_t> groups_;
  std::array<std::vector<Moments>, kQuantities> moments_;
  std::vector<ValueRange> ranges_;
};

/// Everything that is counted over the training split.
struct DataStatistics {
  std::vector<double> node_type_counts;  ///< (frame, node) pairs of each type
  std::vector<FieldMoments> fields;      ///< in the order of the file's fields
  std::vector<Moments> edges;            ///< [edge_columns(dim)]: relative position, then its norm

  /// Adds a trajectory's nodes to node_type_counts, which grow as needed.
  void count_nodes(std::span<const int32_t> node_type, int64_t frames);
};

/// Of the features of an edge between positions in `dim` dimensions; none where there are no positions.
constexpr size_t edge_columns(int dim) { return dim == 0 ? 0 : static_cast<size_t>(dim) + 1; }

/// Of the relative positions (sender minus receiver) of all edges, one a dimension, and of their lengths.
std::vector<Moments> edge_moments(std::span<const float> positions, int dim, const MeshEdges& edges);

}  // namespace meshgrad
