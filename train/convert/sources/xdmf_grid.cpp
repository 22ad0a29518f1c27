// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/sources/xdmf_grid.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/vtk_cells.h>
#include <meshgrad/train/data/mapped_file.h>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

/// XDMF's topologies: the name, the number in a mixed one, VTK's number, and how many nodes (0: any). Nodes
/// are in the order of VTK.
struct Topology {
  std::string_view name;
  int64_t code;
  uint8_t vtk;
  int64_t nodes;
};
constexpr std::array<Topology, 14> kTopologies{{
    {"polyvertex", 1, 2, 0},
    {"polyline", 2, 4, 0},
    {"polygon", 3, 7, 0},
    {"triangle", 4, 5, 3},
    {"quadrilateral", 5, 9, 4},
    {"tetrahedron", 6, 10, 4},
    {"pyramid", 7, 14, 5},
    {"wedge", 8, 13, 6},
    {"hexahedron", 9, 12, 8},
    {"edge_3", 34, 21, 3},
    {"triangle_6", 36, 22, 6},
    {"quadrilateral_8", 37, 23, 8},
    {"quadrilateral_9", 35, 28, 9},
    {"tetrahedron_10", 38, 24, 10},
}};

/// As meshio and older files spell them.
std::string_view full_name(std::string_view name) {
  if (name == "tri_6") return "triangle_6";
  if (name == "quad_8") return "quadrilateral_8";
  if (name == "quad_9") return "quadrilateral_9";
  if (name == "tet_10") return "tetrahedron_10";
  return name;
}

std::vector<int64_t> integers(VtkValues values) {
  if (auto* whole = std::get_if<std::vector<int64_t>>(&values)) return std::move(*whole);
  return std::visit(
      [](const auto& numbers) {
        std::vector<int64_t> whole;
        for (const auto number : numbers) {
          const auto value = static_cast<double>(number);
          whole.push_back(value >= 0 && value < 9e15 ? static_cast<int64_t>(value) : -1);
        }
        return whole;
      },
      values);
}

size_t count_of(const VtkValues& values) {
  return std::visit([](const auto& numbers) { return numbers.size(); }, values);
}

/// [points, dim] to [points, 3].
VtkArray points_in_space(VtkValues values, int dim) {
  VtkArray points{"points", 3, std::move(values)};
  if (auto* whole = std::get_if<std::vector<int64_t>>(&points.values))
    points.values = std::vector<double>(whole->begin(), whole->end());
  if (dim == 3) return points;
  std::visit(
      [](auto& flat) {
        std::remove_cvref_t<decltype(flat)> all;
        for (size_t i = 0; i + 1 < flat.size(); i += 2) all.insert(all.end(), {flat[i], flat[i + 1], 0});
        flat = std::move(all);
      },
      points.values);
  return points;
}

/// Whether `file` is in the folder of `document` or below it, by its name or where links lead.
bool is_beside(const fs::path& file, const fs::path& document) {
  const auto is_below = [](const fs::path& path, const fs::path& folder) {
    const fs::path rest = path.lexically_relative(folder);
    return !rest.empty() && *rest.begin() != "..";
  };
  const auto named = [](const fs::path& path) { return fs::absolute(path).lexically_normal(); };
  return is_below(named(file), named(document).parent_path()) ||
         is_below(fs::weakly_canonical(file), fs::weakly_canonical(document).parent_path());
}

}  // namespace

fs::path file_of(const XdmfItem& item, const fs::path& document) {
  if (item.format == XdmfItem::Format::text) return {};
  const std::string& text = item.text;
  const fs::path file = document.parent_path() /
                        (item.format == XdmfItem::Format::hdf5 ? text.substr(0, text.rfind(':')) : text);
  if (is_beside(file, document)) return file;
  throw data_error(document.string(), "files in its folder or below", file.lexically_normal().string(),
                   "move it there, or make a link to it there and name that");
}

XdmfGridReader::XdmfGridReader(fs::path path, ReadHdf5Numbers read_hdf5)
    : path_(std::move(path)), read_hdf5_(std::move(read_hdf5)) {}

VtkValues XdmfGridReader::numbers(const XdmfItem& item, const std::string& array) const {
  const std::string where = fmt::format("{}: {}", path_.string(), array);
  const auto size = static_cast<size_t>(item.size());
  const auto wrong = [&](const std::string& got) {
    return data_error(where, fmt::format("{} numbers, as its Dimensions say", size), got,
                      "write the file again, or copy it and the files beside it again");
  };
  const fs::path file = file_of(item, path_);
  if (item.format == XdmfItem::Format::hdf5) {
    const size_t colon = item.text.rfind(':');
    if (colon == std::string::npos) {
      throw data_error(where, "FILE:/path/of/dataset", fmt::format("\"{}\"", item.text.substr(0, 200)),
                       "write the file again with FEniCS, ParaView or meshio");
    }
    VtkValues values = read_hdf5_(file, item.text.substr(colon + 1));
    if (count_of(values) != size) throw wrong(fmt::format("{}", count_of(values)));
    return values;
  }
  if (item.format == XdmfItem::Format::binary) {
    const MappedFile mapped(file);
    const size_t bytes = size * item.type.bytes, stored = mapped.bytes().size();
    if (item.seek > stored || bytes > stored - item.seek)
      throw wrong(fmt::format("{} of {} bytes", file.string(), stored));
    return vtk_values(mapped.bytes().subspan(item.seek, bytes), item.type, item.big_endian);
  }
  VtkText words(item.text);
  if (size > item.text.size()) throw wrong(words.fault(size, item.type));
  auto values = words.values(size, item.type);
  if (!values || !words.word().empty()) throw wrong(VtkText(item.text).fault(size, item.type));
  return std::move(*values);
}

VtkGrid XdmfGridReader::read(const XdmfFrame& frame, std::span<const XdmfArray> still) {
  if (mesh_ == nullptr || (mesh_ != frame.mesh && !(*mesh_ == *frame.mesh))) {
    mesh_ = nullptr;
    read_mesh(*frame.mesh);
    mesh_ = frame.mesh;
  }
  VtkGrid grid = known_;
  for (const XdmfArray& array : frame.arrays) read_array(array, grid);
  for (const XdmfArray& array : still) read_array(array, grid);
  return linear_grid(std::move(grid), path_.string());
}

void XdmfGridReader::read_array(const XdmfArray& array, VtkGrid& grid) const {
  VtkArray read{array.name, 1, numbers(array.item, "Attribute " + array.name)};
  const auto rows = static_cast<size_t>(array.of_points ? grid.point_count() : grid.cell_count());
  const size_t count = read.size();
  constexpr size_t kMostComponents = 65535;
  if (rows == 0 || count % rows != 0 || count == 0 || count / rows > kMostComponents) {
    throw data_error(fmt::format("{}: Attribute {}", path_.string(), array.name),
                     fmt::format("a row for each of the {} {}", rows, array.of_points ? "nodes" : "cells"),
                     fmt::format("{} numbers", count), "save it on nodes or on cells");
  }
  read.components = static_cast<int>(count / rows);
  (array.of_points ? grid.point_arrays : grid.cell_arrays).push_back(std::move(read));
}

void XdmfGridReader::read_mesh(const XdmfMesh& mesh) {
  known_ = {};
  const auto dim = static_cast<size_t>(mesh.dim);
  VtkValues points = numbers(mesh.points, "Geometry");
  if (count_of(points) % dim != 0) {
    throw data_error(fmt::format("{}: Geometry", path_.string()), fmt::format("[nodes, {}]", dim),
                     fmt::format("{} numbers", count_of(points)), "write the file again");
  }
  known_.points = points_in_space(std::move(points), mesh.dim);
  read_cells(mesh);
}

void XdmfGridReader::read_cells(const XdmfMesh& mesh) {
  std::vector<int64_t> nodes = integers(numbers(mesh.cells, "Topology"));
  const std::string where = path_.string() + ": Topology";
  if (mesh.type == "mixed") {
    read_mixed(nodes);
  } else {
    const auto topology = std::ranges::find(kTopologies, full_name(mesh.type), &Topology::name);
    if (topology == kTopologies.end()) {
      throw data_error(where, "triangles, quadrilaterals, polygons, solids or lines", mesh.type,
                       "save an unstructured grid of linear cells, or convert it: scripts/to-vtu");
    }
    const int64_t last = mesh.cells.shape.size() > 1 ? mesh.cells.shape.back() : mesh.nodes_per_cell;
    const int64_t width = topology->nodes > 0 ? topology->nodes : std::max(last, mesh.nodes_per_cell);
    if (width < 1 || nodes.size() % static_cast<size_t>(width) != 0) {
      throw data_error(where, fmt::format("{} nodes a cell", width), fmt::format("{} numbers", nodes.size()),
                       "say NodesPerElement");
    }
    for (size_t end = static_cast<size_t>(width); end <= nodes.size(); end += static_cast<size_t>(width)) {
      known_.ends.push_back(static_cast<int64_t>(end));
      known_.types.push_back(topology->vtk);
    }
    known_.connectivity = std::move(nodes);
  }
  for (int64_t& node : known_.connectivity) {
    const int64_t given = node;
    if (!__builtin_sub_overflow(given, mesh.first_node, &node) && node >= 0 && node < known_.point_count())
      continue;
    throw data_error(
        where, fmt::format("{} nodes from {}, its BaseOffset, on", known_.point_count(), mesh.first_node),
        fmt::format("{}", given), "write the file again");
  }
}

/// [code of the cell, its number of nodes where the code does not say it, nodes, code, ..].
void XdmfGridReader::read_mixed(const std::vector<int64_t>& stream) {
  for (size_t at = 0; at < stream.size();) {
    const auto topology = std::ranges::find(kTopologies, stream[at], &Topology::code);
    const auto wrong = [&](const std::string& got) {
      return data_error(fmt::format("{}: Topology, number {}", path_.string(), at), "a cell of XDMF", got,
                        "save linear cells, or convert the file: scripts/to-vtu");
    };
    if (topology == kTopologies.end()) throw wrong(fmt::format("code {}", stream[at]));
    ++at;
    const bool counted = topology->nodes == 0;
    if (counted && at == stream.size()) throw wrong("no number of nodes");
    const int64_t width = counted ? stream[at++] : topology->nodes;
    if (width < 1 || width > static_cast<int64_t>(stream.size() - at)) throw wrong("fewer nodes");
    const auto first = stream.begin() + static_cast<std::ptrdiff_t>(at);
    known_.connectivity.insert(known_.connectivity.end(), first, first + width);
    known_.ends.push_back(static_cast<int64_t>(known_.connectivity.size()));
    known_.types.push_back(topology->vtk);
    at += static_cast<size_t>(width);
  }
}

}  // namespace meshgrad
