// SPDX-License-Identifier: Apache-2.0
// The files of a conversion, in whatever folders they lie.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <meshgrad/train/convert/sources/trajectory_source.h>
#include <meshgrad/train/convert/sources/vtk_source.h>

namespace meshgrad {

/// A trajectory's file, or files.
struct FoundFile {
  std::filesystem::path path;
  std::string split;               ///< from its folder's or its own name; empty when they say none
  std::vector<VtkFrame> frames{};  ///< of VTK
  std::vector<std::filesystem::path> parts{};  ///< of XDMF: the files with its numbers
  std::optional<std::string> node_types = "";  ///< of VTK: as VtkTrajectory takes it
  std::vector<FoundFile> more{};               ///< lists of frames with further fields of the same simulation
};

/// `input` itself, or the files in it that are data, sorted by path: those of the folder and of its folders
/// of splits (split_names.h) with all folders below; where there are none, or with `every`, those of all
/// folders. A folder has no data in what .vtm files name. Of a case of OpenFOAM those that foamToVTK wrote
/// are read. Throws DataError where there is nothing at `input`, for a folder that cannot be read, and for a
/// case without files of VTK; `warn` is told of folders that have data and were left out.
std::vector<FoundFile> find_files(const std::filesystem::path& input, bool every,
                                  const std::function<bool(const std::filesystem::path&)>& is_data,
                                  const WarningCallback& warn);

/// `input`, or the folder of a file.
std::filesystem::path folder_of(const std::filesystem::path& input);

/// A file's path below that folder.
std::string name_within(const std::filesystem::path& input, const std::filesystem::path& file);

}  // namespace meshgrad
