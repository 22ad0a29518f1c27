// SPDX-License-Identifier: Apache-2.0
// Which numbered files of VTK are the frames of one simulation.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include <meshgrad/train/convert/sources/vtk_source.h>

namespace meshgrad {

/// Groups of files, each the frames of one trajectory in order; all other files are a group each. Files of a
/// folder named alike but for numbers (series_names.h) are frames if the mesh is the same; their times in the
/// files order them, else their numbers. `pattern` says which number counts frames (parse_series); with
/// `separate` none does. `say` is told what was decided. Throws DataError, with all that are possible, where
/// names have two readings, and where they may be those of parts of one mesh.
std::vector<std::vector<VtkFrame>> series_of_files(const std::vector<std::filesystem::path>& files,
                                                   const std::string& pattern, bool separate,
                                                   const WarningCallback& say);

}  // namespace meshgrad
