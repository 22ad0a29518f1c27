// SPDX-License-Identifier: Apache-2.0
// XDMF files (.xdmf, .xmf) with their numbers in HDF5 files, binary files or themselves.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <meshgrad/train/convert/sources/trajectory_source.h>

namespace meshgrad {

/// The frames as one trajectory (grid_frames.h, which says what `node_types` is). They are read in a child
/// process, since HDF5 may crash on damaged files.
std::unique_ptr<TrajectorySource> open_xdmf(const std::filesystem::path& path, const std::string& node_types,
                                            const WarningCallback& warn);

/// The other files that hold its numbers, each once. Throws DataError as parse_xdmf does.
std::vector<std::filesystem::path> files_of_xdmf(const std::filesystem::path& path);

}  // namespace meshgrad
