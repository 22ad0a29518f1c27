// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <pugixml.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/grid_frames.h>
#include <meshgrad/train/convert/sources/vtk_cells.h>
#include <meshgrad/train/convert/sources/vtk_grid.h>
#include <meshgrad/train/convert/sources/vtk_numbers.h>
#include <meshgrad/train/convert/sources/vtk_pieces.h>
#include <meshgrad/train/convert/sources/vtk_source.h>
#include <meshgrad/train/convert/sources/vtk_trajectory.h>
#include <meshgrad/train/data/mapped_file.h>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

pugi::xml_document read_xml(std::span<const std::byte> content, const fs::path& path,
                            std::string_view needed) {
  pugi::xml_document document;
  const auto result = document.load_buffer(content.data(), content.size());
  if (result) return document;
  throw data_error(path.string(), needed, fmt::format("{} at byte {}", result.description(), result.offset),
                   "write it again with ParaView or the solver");
}

VtkGrid read_grid(const fs::path& path) {
  if (is_list_of_pieces(path)) {
    std::vector<VtkGrid> pieces;
    for (const fs::path& piece : pieces_of_file(path)) {
      const MappedFile file(piece);
      pieces.push_back(read_vtk_piece(file.bytes(), piece.string()));
    }
    return linear_grid(join_pieces(std::move(pieces), path.string()), path.string());
  }
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  return text.starts_with("# vtk") ? parse_vtk_legacy(file.bytes(), path.string())
                                   : parse_vtk_xml(file.bytes(), path.string());
}

std::vector<VtkFrame> frames_of_pvd(std::span<const std::byte> content, const fs::path& path) {
  const pugi::xml_document document = read_xml(content, path, "XML with a Collection of DataSets");
  std::vector<VtkFrame> frames;
  std::string part;  // of the first entry without a time
  for (const pugi::xml_node& entry : document.child("VTKFile").child("Collection").children("DataSet")) {
    frames.push_back({path.parent_path() / entry.attribute("file").value(), std::nullopt});
    if (const auto time = entry.attribute("timestep")) {
      frames.back().time = time_in_text(time.value(), path.string());
      continue;
    }
    const std::string own = entry.attribute("part").as_string("0");
    if (part.empty()) part = own;
    if (own == part) continue;
    throw data_error(path.string(), "a time for each file, or files of one part",
                     fmt::format("parts {} and {} without times: frames, or parts of one mesh", part, own),
                     "write a timestep for each frame; merge the parts of a mesh: in ParaView, Merge Blocks, "
                     "then save as .vtu");
  }
  return frames;
}

// {"file-series-version": "1.0", "files": [{"name": "a.vtu", "time": 0.5}]}, as ParaView writes.
std::vector<VtkFrame> frames_of_series(std::span<const std::byte> content, const fs::path& path) {
  const auto* begin = reinterpret_cast<const char*>(content.data());
  const auto json = nlohmann::json::parse(begin, begin + content.size(), nullptr, false);
  const auto wrong = [&](const nlohmann::json& found) {
    return data_error(
        path.string(), "JSON {\"files\": [{\"name\": .., \"time\": ..}]}",
        found.is_discarded() ? "text that is not JSON" : fmt::format("a JSON {}", found.type_name()),
        "write it again with ParaView");
  };
  if (!json.is_object() || !json.contains("files") || !json["files"].is_array()) throw wrong(json);
  std::vector<VtkFrame> frames;
  for (const auto& entry : json["files"]) {
    if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string()) throw wrong(entry);
    frames.push_back({path.parent_path() / entry["name"].get<std::string>(), std::nullopt});
    if (entry.contains("time") && entry["time"].is_number()) frames.back().time = entry["time"].get<double>();
  }
  return frames;
}

}  // namespace

bool is_frame_list(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".pvd" || extension == ".series";
}

std::vector<VtkFrame> frames_of_list(const fs::path& path) {
  const MappedFile file(path);
  std::vector<VtkFrame> frames = parse_frame_list(file.bytes(), path);
  for (const VtkFrame& frame : frames) {
    if (std::error_code none; fs::exists(frame.path, none)) continue;
    throw data_error(path.string(), "the files that it lists", "no " + frame.path.filename().string(),
                     "copy the missing files beside the others, or take their lines out of the list");
  }
  return frames;
}

std::vector<VtkFrame> parse_frame_list(std::span<const std::byte> content, const fs::path& path) {
  std::vector<VtkFrame> frames =
      path.extension() == ".pvd" ? frames_of_pvd(content, path) : frames_of_series(content, path);
  if (frames.empty()) {
    throw data_error(path.string(), "a list of frames", "none",
                     "write it again, with the files of the series");
  }
  sort_by_time(frames);
  for (size_t i = 1; i < frames.size(); ++i) {
    if (!frames[i].time || frames[i].time != frames[i - 1].time) continue;
    throw data_error(
        path.string(), "one file for each time",
        fmt::format("{} and {} at time {}", frames[i - 1].path.filename().string(),
                    frames[i].path.filename().string(), *frames[i].time),
        "leave one of them in the list, as after a restart; merge the parts of a frame: in ParaView, "
        "Merge Blocks, then save as .vtu");
  }
  return frames;
}

bool is_list_of_pieces(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".pvtu" || extension == ".pvtp" || extension == ".vtpd";
}

std::vector<fs::path> pieces_of_file(const fs::path& path) {
  const MappedFile file(path);
  const pugi::xml_document document = read_xml(file.bytes(), path, "XML with the pieces of a grid");
  std::vector<fs::path> pieces;
  for (const pugi::xpath_node& found :
       document.select_nodes("/VTKFile/*/Piece/@Source | /VTKFile/vtkPartitionedDataSet/DataSet/@file"))
    pieces.push_back(path.parent_path() / found.attribute().value());
  if (!pieces.empty()) return pieces;
  throw data_error(path.string(), "pieces of a PUnstructuredGrid, a PPolyData or a vtkPartitionedDataSet",
                   "none", "write the file again with the solver");
}

fs::path file_with_mesh(const fs::path& path) {
  if (path.extension() != ".vtm") return path;
  const MappedFile file(path);
  return mesh_of_blocks(file.bytes(), path);
}

fs::path mesh_of_blocks(std::span<const std::byte> content, const fs::path& path) {
  const pugi::xml_document document = read_xml(content, path, "XML with blocks of files");
  std::vector<fs::path> meshes;
  for (const pugi::xpath_node& found :
       document.select_nodes("/VTKFile/vtkMultiBlockDataSet//DataSet[@file]")) {
    const fs::path name = found.node().attribute("file").value();
    if (name.extension() == ".vtu") meshes.push_back(path.parent_path() / name);
  }
  if (meshes.size() == 1) return meshes.front();
  throw data_error(path.string(), "one .vtu file in the blocks, as foamToVTK writes beside its patches",
                   fmt::format("{}", meshes.size()), "in ParaView, Merge Blocks, then save as .vtu");
}

std::unique_ptr<TrajectorySource> open_vtk(const std::vector<VtkFrame>& frames,
                                           std::optional<std::string> node_types, WarningCallback warn) {
  std::vector<GridFrame> grids;
  for (const VtkFrame& frame : frames) {
    grids.push_back({frame.path.string(), frame.time, RegularFile(frame.path).bytes(),
                     [path = frame.path] { return read_grid(path); }});
  }
  return open_grids(std::move(grids), std::move(node_types), std::move(warn));
}

MeshesOf compare_meshes(const fs::path& a, const fs::path& b) {
  const VtkGrid first = read_grid(file_with_mesh(a)), second = read_grid(file_with_mesh(b));
  if (!find_cells(first, second)) return MeshesOf::other_cells;
  return first.points.values == second.points.values ? MeshesOf::one : MeshesOf::other_points;
}

std::optional<double> time_of_file(const fs::path& path) {
  const fs::path file = file_with_mesh(path);
  const fs::path with_time = is_list_of_pieces(file) ? pieces_of_file(file).front() : file;
  VtkGrid grid;
  const MappedFile mapped(with_time);
  grid.field_arrays = field_data_of_vtk(mapped.bytes(), with_time.string());
  const std::optional<double> time = time_of(grid);
  return time && std::isfinite(*time) ? time : std::nullopt;
}

}  // namespace meshgrad
