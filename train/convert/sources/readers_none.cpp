// SPDX-License-Identifier: Apache-2.0
// The readers of formats that need a package of their own, in a build without them: each says so.
#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/array_map.h>
#include <meshgrad/train/convert/sources/hdf5_source.h>
#include <meshgrad/train/convert/sources/npz_source.h>
#include <meshgrad/train/convert/sources/vtk_source.h>
#include <meshgrad/train/convert/sources/xdmf_source.h>

namespace meshgrad {
namespace {

DataError without_reader(const std::filesystem::path& file, std::string_view format) {
  return data_error(file.string(), std::string("a build that reads ") + std::string(format),
                    "a build of the preset core, which reads TFRecord",
                    "build the preset release: cmake --preset release && cmake --build --preset release");
}

}  // namespace

std::unique_ptr<TrajectorySource> open_npz(const std::filesystem::path& path, ArrayOptions, WarningCallback) {
  throw without_reader(path, "NPZ");
}

std::unique_ptr<TrajectorySource> open_hdf5(const std::filesystem::path& path,
                                            const std::vector<std::string>&, const ArrayOptions&,
                                            const WarningCallback&) {
  throw without_reader(path, "HDF5");
}

std::unique_ptr<TrajectorySource> open_vtk(const std::vector<VtkFrame>& frames, std::optional<std::string>,
                                           WarningCallback) {
  throw without_reader(frames.front().path, "VTK");
}

std::unique_ptr<TrajectorySource> open_xdmf(const std::filesystem::path& path, const std::string&,
                                            const WarningCallback&) {
  throw without_reader(path, "XDMF");
}

std::vector<std::filesystem::path> files_of_xdmf(const std::filesystem::path& path) {
  throw without_reader(path, "XDMF");
}

// Which files of VTK are one trajectory does not matter here: open_vtk refuses the first.
bool is_frame_list(const std::filesystem::path&) { return false; }

std::vector<VtkFrame> frames_of_list(const std::filesystem::path& path) { throw without_reader(path, "VTK"); }

std::filesystem::path file_with_mesh(const std::filesystem::path& path) { return path; }

bool is_list_of_pieces(const std::filesystem::path&) { return false; }

std::vector<std::filesystem::path> pieces_of_file(const std::filesystem::path&) { return {}; }

MeshesOf compare_meshes(const std::filesystem::path&, const std::filesystem::path&) {
  return MeshesOf::other_cells;
}

std::optional<double> time_of_file(const std::filesystem::path&) { return std::nullopt; }

}  // namespace meshgrad
