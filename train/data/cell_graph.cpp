// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/cell_graph.h>

#include <fmt/format.h>
#include <meshgrad/engine/error.h>

#include <algorithm>
#include <array>
#include <utility>

namespace meshgrad {
namespace {

using Corners = std::span<const int32_t>;
using Face = std::array<int32_t, 4>;  // its nodes, ascending, then -1

constexpr std::array<std::array<size_t, 3>, 4> kTetrahedronFaces{
    {{0, 1, 2}, {0, 1, 3}, {0, 2, 3}, {1, 2, 3}}};
constexpr std::array<std::array<size_t, 4>, 6> kHexahedronFaces{
    {{0, 1, 2, 3}, {4, 5, 6, 7}, {0, 1, 5, 4}, {1, 2, 6, 5}, {2, 3, 7, 6}, {3, 0, 4, 7}}};

std::vector<int32_t> unique_nodes(Corners corners) {
  std::vector<int32_t> nodes(corners.begin(), corners.end());
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

struct FaceOfCell {
  Face face;
  int32_t cell;
  bool operator<(const FaceOfCell& other) const {
    return face != other.face ? face < other.face : cell < other.cell;
  }
};

class FaceList {
 public:
  /// A side of two nodes at least, a face of three; less is what a repeated corner leaves of one.
  void add(Corners nodes, size_t least, int32_t cell) {
    const std::vector<int32_t> corners = unique_nodes(nodes);
    if (corners.size() < least) return;
    Face face{-1, -1, -1, -1};
    std::copy(corners.begin(), corners.end(), face.begin());
    faces_.push_back({face, cell});
  }

  void add_cell(Corners corners, CellKind kind, int32_t cell) {
    const auto add_face = [&](const auto& numbers) {
      std::vector<int32_t> nodes;
      for (const size_t number : numbers) nodes.push_back(corners[number]);
      add(nodes, 3, cell);
    };
    if (kind == CellKind::tetrahedron) {
      for (const auto& face : kTetrahedronFaces) add_face(face);
    } else if (kind == CellKind::hexahedron) {
      for (const auto& face : kHexahedronFaces) add_face(face);
    } else {
      for (size_t i = 0; i < corners.size(); ++i)
        add(std::array{corners[i], corners[(i + 1) % corners.size()]}, 2, cell);
    }
  }

  /// [2, pairs] of cells that share one. A face of more than two cells joins each to the next.
  std::vector<int32_t> pairs() {
    std::sort(faces_.begin(), faces_.end());
    std::vector<int32_t> first, second;
    for (size_t i = 1; i < faces_.size(); ++i) {
      if (faces_[i].face != faces_[i - 1].face || faces_[i].cell == faces_[i - 1].cell) continue;
      first.push_back(faces_[i - 1].cell);
      second.push_back(faces_[i].cell);
    }
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }

 private:
  std::vector<FaceOfCell> faces_;
};

/// Means over the corners of each cell, of rows [frames, nodes, width].
std::vector<double> cell_means(const std::vector<std::vector<int32_t>>& cells, std::span<const double> values,
                               size_t nodes, size_t width) {
  std::vector<double> means;
  means.reserve(values.size() / nodes * cells.size());
  for (size_t frame = 0; frame < values.size(); frame += nodes * width) {
    for (const std::vector<int32_t>& corners : cells) {
      for (size_t c = 0; c < width; ++c) {
        double sum = 0;
        for (const int32_t node : corners) sum += values[frame + static_cast<size_t>(node) * width + c];
        means.push_back(sum / static_cast<double>(corners.size()));
      }
    }
  }
  return means;
}

std::vector<double> doubles_of(const std::vector<float>& values, const std::vector<double>& wide) {
  return wide.empty() ? std::vector<double>(values.begin(), values.end()) : wide;
}

}  // namespace

bool fields_are_on_cells(const RawTrajectory& mesh) {
  const auto has = [&](FieldOn on) {
    return std::any_of(mesh.fields.begin(), mesh.fields.end(),
                       [&](const RawField& field) { return field.on == on && field.dtype() == DType::f32; });
  };
  return has(FieldOn::cell) && !has(FieldOn::node);
}

RawTrajectory graph_on_cells(const RawTrajectory& mesh, CellKind kind, const WarningCallback& warn) {
  if (mesh.cells.empty()) {
    throw data_error(mesh.name, "cells, for a graph on cells", "none",
                     "give the cells of the mesh, or use --graph nodes");
  }
  const auto width = static_cast<size_t>(mesh.nodes_per_cell);
  std::vector<std::vector<int32_t>> cells;
  FaceList faces;
  for (size_t start = 0; start + width <= mesh.cells.size(); start += width) {
    const Corners corners = Corners(mesh.cells).subspan(start, width);
    for (const int32_t node : corners) {
      if (node >= 0 && node < mesh.nodes) continue;
      throw data_error(mesh.name + ": field cells", fmt::format("node numbers in 0..{}", mesh.nodes - 1),
                       fmt::format("{} in cell {}", node, start / width),
                       "node numbers count from 0 and must be below the number of positions");
    }
    faces.add_cell(corners, kind, static_cast<int32_t>(cells.size()));
    cells.push_back(unique_nodes(corners));
  }
  const auto nodes = static_cast<size_t>(mesh.nodes);

  RawTrajectory graph;
  graph.name = mesh.name;
  graph.record = mesh.record;
  graph.first_frame = mesh.first_frame;
  graph.frames = mesh.frames;
  graph.dt = mesh.dt;
  graph.dim = mesh.dim;
  graph.nodes = static_cast<int64_t>(cells.size());
  const std::vector<double> centres = cell_means(cells, doubles_of(mesh.positions, mesh.wide_positions),
                                                 nodes, static_cast<size_t>(mesh.dim));
  graph.positions.assign(centres.begin(), centres.end());
  if (!mesh.wide_positions.empty()) graph.wide_positions = centres;
  graph.edges = faces.pairs();
  graph.source_cells =
      mesh.polygons ? polygons_of(mesh.cells, mesh.nodes_per_cell) : cells_of(mesh.cells, kind);
  graph.source_points = doubles_of(mesh.positions, mesh.wide_positions);
  graph.node_type = mesh.cell_type;
  if (graph.node_type.empty() && !mesh.node_type.empty()) {
    for (const std::vector<int32_t>& corners : cells) {
      const int32_t type = mesh.node_type[static_cast<size_t>(corners.front())];
      const bool all = std::all_of(corners.begin(), corners.end(), [&](int32_t node) {
        return mesh.node_type[static_cast<size_t>(node)] == type;
      });
      graph.node_type.push_back(all ? type : 0);
    }
  }
  std::vector<std::string> left_out;
  for (const RawField& field : mesh.fields) {
    if (field.on == FieldOn::cell || field.on == FieldOn::graph) {
      graph.fields.push_back(field);
      if (field.on == FieldOn::cell) graph.fields.back().on = FieldOn::node;
    } else if (field.on == FieldOn::node && field.dtype() == DType::f32) {
      RawField mean = field;
      const std::vector<double> means =
          cell_means(cells, doubles_of(std::get<std::vector<float>>(field.values), field.wide), nodes,
                     static_cast<size_t>(field.components));
      mean.values = std::vector<float>(means.begin(), means.end());
      if (!field.wide.empty()) mean.wide = means;
      graph.fields.push_back(std::move(mean));
    } else {
      left_out.push_back(field.name);
    }
  }
  if (!left_out.empty() && warn) {
    warn(fmt::format("[{}] left out of the graph on cells, which has no such rows: {}", mesh.name,
                     fmt::join(left_out, ", ")));
  }
  return graph;
}

void polygons_to_edges(RawTrajectory& mesh, const WarningCallback& warn) {
  const auto width = static_cast<size_t>(mesh.nodes_per_cell);
  std::vector<std::pair<int32_t, int32_t>> sides;
  for (size_t start = 0; start + width <= mesh.cells.size(); start += width) {
    const Corners corners = Corners(mesh.cells).subspan(start, width);
    for (size_t i = 0; i < width; ++i) {
      const auto [a, b] = std::minmax(corners[i], corners[(i + 1) % width]);
      if (a != b) sides.emplace_back(a, b);
    }
  }
  std::sort(sides.begin(), sides.end());
  sides.erase(std::unique(sides.begin(), sides.end()), sides.end());
  for (const auto& [a, b] : sides) mesh.edges.push_back(a);
  for (const auto& [a, b] : sides) mesh.edges.push_back(b);
  mesh.source_cells = polygons_of(mesh.cells, mesh.nodes_per_cell);
  mesh.cells.clear();
  mesh.nodes_per_cell = 0;
  mesh.polygons = false;
  std::vector<std::string> left_out;
  for (const RawField& field : mesh.fields)
    if (field.on == FieldOn::cell) left_out.push_back(field.name);
  std::erase_if(mesh.fields, [](const RawField& field) { return field.on == FieldOn::cell; });
  if (!left_out.empty() && warn) {
    warn(
        fmt::format("[{}] fields of polygons left out, since the graph's nodes are the points: {}; "
                    "--graph cells keeps them",
                    mesh.name, fmt::join(left_out, ", ")));
  }
}

}  // namespace meshgrad
