// SPDX-License-Identifier: Apache-2.0
// Which files of VTK are one trajectory.
#pragma once
#include <string>
#include <vector>

#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/found_files.h>

namespace meshgrad {

/// The trajectories in files of VTK, sorted by path, each with its frames: the lists of frames, joined where
/// those of a folder are fields of one mesh; and the other files, numbered ones as frames. `notes` gets what
/// was decided. Throws DataError for lists that cannot be read.
std::vector<FoundFile> vtk_series(const std::vector<FoundFile>& found, const ConvertOptions& options,
                                  std::vector<std::string>& notes);

}  // namespace meshgrad
