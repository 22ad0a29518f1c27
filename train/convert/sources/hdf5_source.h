// SPDX-License-Identifier: Apache-2.0
// HDF5 files of the layout data/{id}/nodal_data [features, frames, nodes] and data/{id}/mesh_edge [2, edges].
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <meshgrad/train/convert/sources/array_trajectory.h>
#include <meshgrad/train/convert/sources/child_source.h>
#include <meshgrad/train/convert/sources/hdf5_layout.h>
#include <meshgrad/train/convert/sources/trajectory_source.h>

namespace meshgrad {

/// One trajectory a group, in numeric order of the ids. The rows are named by `fields`, or else by the
/// attribute "features" of the group, of data or of the file ("x,y,z,velocity_x,velocity_y,node_type"). Rows
/// x, y, z (also x_coord .., pos_x ..) are positions at the first frame; a z that is constant is left out;
/// node_type is read at the first frame; names that differ only in a suffix _x, _y, _z (or a prefix x_, y_,
/// z_) and follow each other are one vector field. Throws DataError naming file, group and row, also where
/// positions or node types change over time, and when this build has no HDF5.
///
/// A file without the group data, and any file with a map, is read as named arrays (array_trajectory.h). An
/// array is named by its path, as in "flow/u"; groups with the same arrays are a trajectory each, in numeric
/// order, or the frames of some (hdf5_layout.h); paths then begin inside the group. All other arrays belong
/// to each of them.
std::unique_ptr<TrajectorySource> open_hdf5(const std::filesystem::path& path,
                                            const std::vector<std::string>& fields,
                                            const ArrayOptions& options, const WarningCallback& warn);

/// The same in this process, which a damaged file may end; in builds with HDF5. `alive` as in child_source.h.
std::unique_ptr<TrajectorySource> open_hdf5_here(const std::filesystem::path& path,
                                                 const std::vector<std::string>& fields,
                                                 const ArrayOptions& options, const WarningCallback& warn,
                                                 const AliveCallback& alive);

/// How rows make up fields; exposed for tests.
struct RowGroup {
  std::string name;          ///< "mesh_pos", "node_type", or a field
  std::vector<size_t> rows;  ///< one per component
};
std::vector<RowGroup> group_rows(const std::vector<std::string>& names);

}  // namespace meshgrad
