// SPDX-License-Identifier: Apache-2.0
// Which data sets of an HDF5 file of any layout belong to which trajectory.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace meshgrad {

/// What the user says of the names of groups, as of those of files.
struct GroupNames {
  std::string series;     ///< a pattern (series_names.h) of a group's path; empty: none
  bool separate = false;  ///< each group is a trajectory
};

/// Groups whose data sets have the same names are trajectories, or the frames of some; the other data sets
/// belong to all of them.
struct Hdf5Layout {
  std::vector<std::vector<std::string>> trajectories;  ///< of one group, or of one for each frame
  std::vector<std::string> members;                    ///< paths within a group
  std::vector<std::string> shared;                     ///< paths outside of the groups
  std::set<std::string> frame_parents;                 ///< groups whose groups are frames of a trajectory

  /// The data sets of a trajectory that are shared by its frames, with their names: those of its own parent
  /// group and those of the file.
  std::vector<std::pair<std::string, std::string>> shared_by(const std::vector<std::string>& groups) const;
};

/// What decides whether groups are frames.
struct GroupFacts {
  std::function<std::vector<int64_t>(const std::string& dataset)> shape;
  std::function<std::optional<double>(const std::string& group)> time;
};

/// By the paths of all data sets, such as "runs/1/u". Names of groups end in a slash; one empty name is the
/// whole file. A file's only group, and one that is a number and the only one in its parent, is a trajectory
/// as it would be beside others. Groups without frames of their own are the frames of one trajectory if there
/// is a time for each: in an array time of the file, or of theirs. Throws DataError naming `file`, with both
/// readings, where the name of such groups says step, time or frame and nothing else does; and for groups
/// that are named alike and have other data sets.
Hdf5Layout hdf5_layout(const std::vector<std::string>& paths, const GroupNames& names,
                       const GroupFacts& facts, const std::string& file);

}  // namespace meshgrad
