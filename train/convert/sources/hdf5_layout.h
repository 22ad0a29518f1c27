// SPDX-License-Identifier: Apache-2.0
// Which data sets of an HDF5 file of any layout belong to which trajectory.
#pragma once
#include <string>
#include <vector>

namespace meshgrad {

/// Groups whose data sets have the same names are trajectories; the other data sets belong to all of them.
struct Hdf5Layout {
  std::vector<std::string> groups;   ///< with a slash at the end; one empty name: the whole file
  std::vector<std::string> members;  ///< paths within a group
  std::vector<std::string> shared;   ///< paths outside of the groups
};

/// By the paths of all data sets, such as "runs/1/u". Groups are in the order of their numbers.
Hdf5Layout hdf5_layout(const std::vector<std::string>& paths);

}  // namespace meshgrad
