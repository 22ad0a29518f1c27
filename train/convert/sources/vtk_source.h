// SPDX-License-Identifier: Apache-2.0
// Files of VTK: .vtu, .vtp and .vtk, .vtm that names them, and the lists .pvd and .series that make a
// trajectory of them.
#pragma once
#include <meshgrad/train/convert/sources/trajectory_source.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshgrad {

/// One frame of a series.
struct VtkFrame {
  std::filesystem::path path;
  std::optional<double> time;  ///< seconds; where nothing says it, the file's own TimeValue counts
};

/// The frames that a .pvd or .series file lists, in the order of their times. Paths are relative to it.
/// Throws DataError naming the file, also when a list names several parts of one time.
std::vector<VtkFrame> frames_of_list(const std::filesystem::path& path);
/// Likewise of a file's content; `path` says which of the two it is. Defined for any bytes.
std::vector<VtkFrame> parse_frame_list(std::span<const std::byte> content, const std::filesystem::path& path);

/// The file itself, or of the blocks that a .vtm file names the only one with cells (.vtu): foamToVTK's
/// internal.vtu beside the surfaces of patches. Throws DataError where there are none or several.
std::filesystem::path file_with_mesh(const std::filesystem::path& path);
/// Likewise of the content of a .vtm file. Defined for any bytes.
std::filesystem::path mesh_of_blocks(std::span<const std::byte> content, const std::filesystem::path& path);

/// Whether the file lists frames.
bool is_frame_list(const std::filesystem::path& path);

/// The frames of one trajectory, as open_grids (grid_frames.h) takes them.
std::unique_ptr<TrajectorySource> open_vtk(const std::vector<VtkFrame>& frames,
                                           std::optional<std::string> node_types, WarningCallback warn);

/// Files of a folder as series: files named alike but for a last number, flow_0.vtu, flow_1.vtu, .., whose
/// first two have the same cells and points, are frames of one trajectory, in the order of the number, unless
/// `separate`. All other files are trajectories of one frame; `warn` is told of those that have the same
/// cells and other points, and may be frames of a mesh that moves.
std::vector<std::vector<VtkFrame>> group_frames(std::vector<std::filesystem::path> files, bool separate,
                                                const WarningCallback& warn = nullptr);

}  // namespace meshgrad
