// SPDX-License-Identifier: Apache-2.0
// Files of VTK: .vtu, .vtp and .vtk, .vtm, .pvtu, .pvtp and .vtpd that name them, and the lists .pvd and
// .series that make a trajectory of them.
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

/// Whether the file names the pieces of a grid (.pvtu, .pvtp, .vtpd), which are read as one (vtk_pieces.h).
bool is_list_of_pieces(const std::filesystem::path& path);
std::vector<std::filesystem::path> pieces_of_file(const std::filesystem::path& path);

/// Whether two files have the same mesh; cells may come in another order.
enum class MeshesOf : uint8_t { one, other_points, other_cells };
MeshesOf compare_meshes(const std::filesystem::path& a, const std::filesystem::path& b);

/// The time that a file says (TimeValue), without its points, cells and arrays where it is XML.
std::optional<double> time_of_file(const std::filesystem::path& path);

}  // namespace meshgrad
