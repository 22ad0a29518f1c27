// SPDX-License-Identifier: Apache-2.0
// Which files of VTK are one trajectory.
#pragma once
#include <string>
#include <vector>

#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/found_files.h>

namespace meshgrad {

/// The trajectories in files of VTK, sorted by path, each with its frames: the lists of frames, joined where
/// those of a folder are fields of one mesh; and the files of folders without a list, numbered ones as frames
/// (file_series.h). `warn` is told of files beside a list that does not name them, which are left out; pieces
/// of a grid are its own. `notes` gets what was decided. Throws DataError for lists that cannot be read.
std::vector<FoundFile> vtk_series(const std::vector<FoundFile>& found, const ConvertOptions& options,
                                  std::vector<std::string>& notes, const WarningCallback& warn);

}  // namespace meshgrad
