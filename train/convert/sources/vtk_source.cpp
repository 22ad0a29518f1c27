// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <pugixml.hpp>

#include <algorithm>
#include <map>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/grid_frames.h>
#include <meshgrad/train/convert/sources/vtk_grid.h>
#include <meshgrad/train/convert/sources/vtk_source.h>
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
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  return text.starts_with("# vtk") ? parse_vtk_legacy(file.bytes(), path.string())
                                   : parse_vtk_xml(file.bytes(), path.string());
}

std::vector<VtkFrame> frames_of_pvd(std::span<const std::byte> content, const fs::path& path) {
  const pugi::xml_document document = read_xml(content, path, "XML with a Collection of DataSets");
  std::vector<VtkFrame> frames;
  for (const pugi::xml_node& entry : document.child("VTKFile").child("Collection").children("DataSet")) {
    frames.push_back({path.parent_path() / entry.attribute("file").value(), std::nullopt});
    if (const auto time = entry.attribute("timestep")) frames.back().time = time.as_double();
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

// "flow_" and 12 of "flow_12"; the number is empty for "flow".
std::pair<std::string, std::string> split_number(const std::string& stem) {
  size_t begin = stem.size();
  while (begin > 0 && stem[begin - 1] >= '0' && stem[begin - 1] <= '9') --begin;
  return {stem.substr(0, begin), stem.substr(begin)};
}

enum class Alike : uint8_t { no, cells, mesh };

Alike compare(const fs::path& a, const fs::path& b) {
  const VtkGrid first = read_grid(file_with_mesh(a)), second = read_grid(file_with_mesh(b));
  if (first.types != second.types || first.ends != second.ends || first.connectivity != second.connectivity)
    return Alike::no;
  return first.points.values == second.points.values ? Alike::mesh : Alike::cells;
}

}  // namespace

bool is_frame_list(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".pvd" || extension == ".series";
}

std::vector<VtkFrame> frames_of_list(const fs::path& path) {
  const MappedFile file(path);
  return parse_frame_list(file.bytes(), path);
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
    throw data_error(path.string(), "one file for each time",
                     fmt::format("{} and {} at time {}", frames[i - 1].path.filename().string(),
                                 frames[i].path.filename().string(), *frames[i].time),
                     "merge the parts of a frame: in ParaView, Merge Blocks, then save as .vtu");
  }
  return frames;
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

std::vector<std::vector<VtkFrame>> group_frames(std::vector<fs::path> files, bool separate,
                                                const WarningCallback& warn) {
  std::map<std::pair<fs::path, std::string>, std::vector<std::pair<std::string, fs::path>>> families;
  for (const fs::path& file : files) {
    const auto [prefix, number] = split_number(file.stem().string());
    const std::string family = number.empty() || separate ? file.filename().string() + "/" : prefix;
    families[{file.parent_path(), family + file.extension().string()}].emplace_back(number, file);
  }
  std::vector<std::vector<VtkFrame>> groups;
  for (auto& [name, members] : families) {
    std::sort(members.begin(), members.end(), [](const auto& a, const auto& b) {
      // Numbers without their leading zeros: the longer one is larger.
      const std::string x = a.first.substr(std::min(a.first.find_first_not_of('0'), a.first.size()));
      const std::string y = b.first.substr(std::min(b.first.find_first_not_of('0'), b.first.size()));
      return x.size() != y.size() ? x.size() < y.size() : x != y ? x < y : a.second < b.second;
    });
    const Alike alike = members.size() > 1 ? compare(members[0].second, members[1].second) : Alike::no;
    const bool series = alike == Alike::mesh;
    if (alike == Alike::cells && warn) {
      warn(fmt::format(
          "[{}] has the cells of {} and other points: each of these {} files is a mesh of its own; for the "
          "frames of one mesh that moves, list them in a .pvd or .series file and convert that",
          members[1].second.string(), members[0].second.filename().string(), members.size()));
    }
    for (size_t i = 0; i < members.size(); ++i) {
      if (!series || i == 0) groups.emplace_back();
      groups.back().push_back({members[i].second, std::nullopt});
    }
  }
  return groups;
}

}  // namespace meshgrad
