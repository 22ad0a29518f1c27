// SPDX-License-Identifier: Apache-2.0
// What a packed data set is, in numbers: what a conversion, `info` and `check` say of it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <meshgrad/train/data/dataset.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// Of the sizes of all meshes along an axis.
struct MeshExtent {
  double least = 0, most = 0;
};

struct DataFacts {
  int64_t trajectories = 0;
  int64_t frames = 0;
  int64_t meshes = 0;                    ///< distinct ones
  int64_t nodes_min = 0, nodes_max = 0;  ///< of a trajectory's mesh
  double nodes_mean = 0;                 ///< over trajectories
  int64_t edges_min = 0, edges_max = 0;  ///< directed
  double edges_mean = 0;
  int dim = 0;  ///< 0: no positions
  bool directed = false;
  double dt = 0;                    ///< seconds; 0: unknown
  std::vector<MeshExtent> extents;  ///< by axis; empty: not measured, or no positions
  std::vector<FieldInfo> fields;
  std::vector<SplitInfo> splits;
  std::vector<int64_t> split_frames;  ///< in the order of splits
  std::string statistics_split;
  std::vector<int64_t> node_types;  ///< nodes of each type times frames, of the split of the statistics
};

/// Reads the header and the index only, so no extents.
DataFacts data_facts(const Dataset& dataset);

}  // namespace meshgrad
#pragma GCC visibility pop
