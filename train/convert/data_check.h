// SPDX-License-Identifier: Apache-2.0
// What a user should know of a data set before training on it: its sizes and values, and what is doubtful.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/data/dataset.h>

namespace meshgrad {

/// Something to look at: error where training gives nothing useful, warning where it probably does not, note
/// where it depends on what is wanted.
struct Finding {
  enum class Severity : uint8_t { error, warning, note };
  Severity severity = Severity::warning;
  std::string place;   ///< "waves.npz: frame 3", "split valid"
  std::string what;    ///< what was found there
  std::string why;     ///< what follows for training
  std::string remedy;  ///< what to do
};
constexpr std::string_view name_of(Finding::Severity severity) {
  constexpr std::string_view kNames[] = {"error", "warning", "note"};
  return kNames[static_cast<size_t>(severity)];
}

/// One component of a field over all splits, in the field's unit.
struct ComponentSummary {
  double min = 0, max = 0;
  double mean = 0;    ///< of float fields
  double change = 0;  ///< root mean square of the change from one frame to the next
  std::vector<int64_t>
      histogram;  ///< values in equal parts of the training split's range; ends take the rest
};
struct FieldSummary {
  FieldInfo info;
  double values = 0;                         ///< per component that were finite; 0 in a field of integers
  std::vector<ComponentSummary> components;  ///< of a field of integers: ranges over only the training split
};

struct DataSummary {
  DataFacts facts;  ///< with extents
  MeshExtent edge_length;
  double mean_edge_length = 0;       ///< of all meshes' edges
  std::vector<int64_t> degrees;      ///< nodes by number of neighbours, each mesh counted once
  std::vector<FieldSummary> fields;  ///< in the order of the file
  std::vector<Finding> findings;     ///< errors first
  int64_t count(Finding::Severity severity) const;
};

/// Reads the whole data set once, a trajectory at a time, and verifies its checksums: throws DataError where
/// one is wrong. Finds values that are not finite; meshes with nodes that coincide or have no edge, cells
/// that repeat a node, are listed twice or are inverted; constant fields; frames that do not change, and
/// changes that stand out (a missing frame); meshes that a split shares with the training split; splits that
/// hardly change; and repeats what the conversion found (the same trajectory in two splits, outliers).
DataSummary check_data(const Dataset& dataset);

/// Errors first, then warnings; otherwise the order stays.
void sort_findings(std::vector<Finding>& findings);

/// The least, the median and the largest index of a histogram; zeros when it is empty.
struct HistogramRange {
  int64_t least = 0, median = 0, most = 0;
};
HistogramRange range_of(const std::vector<int64_t>& histogram);

}  // namespace meshgrad
