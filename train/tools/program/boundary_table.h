// SPDX-License-Identifier: Apache-2.0
// Values of nodes that are not predicted, as a CSV file gives them by time and node type.
#pragma once
#include <meshgrad/train/data/field_info.h>

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace meshgrad {

/// A table with the header `time,node_type,COLUMN...`, where a column is a target of one component, or
/// `NAME[C]`, component C of one with several. Times are seconds after the frame that the rollout starts from
/// (steps, where dt is unknown) and increase for each node type. Between two rows of a type values are
/// interpolated linearly; after the last they are held. Lines that begin with # are left out.
class BoundaryTable {
 public:
  /// Throws DataError naming line and column for text that is no such table, a column that is no target, a
  /// node type that is predicted, and a first row of a type after time 0.
  BoundaryTable(const std::filesystem::path& path, std::span<const FieldInfo> targets,
                std::span<const int64_t> predicted_types);

  struct Column {
    size_t target = 0, component = 0;
  };
  const std::vector<Column>& columns() const { return columns_; }
  std::vector<int64_t> node_types() const;
  /// Values of all columns for a node type at a time; empty where the table has no row of that type.
  std::vector<double> at(int64_t node_type, double time) const;

 private:
  struct Row {
    double time = 0.0;
    std::vector<double> values;
  };
  std::vector<Column> columns_;
  std::map<int64_t, std::vector<Row>> rows_;  // by node type
};

}  // namespace meshgrad
