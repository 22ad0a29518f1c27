// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/cell_graph.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <meshgrad/engine/error.h>

#include <algorithm>
#include <array>
#include <compare>
#include <string_view>
#include <utility>
#include <vector>

namespace meshgrad {
namespace {

using Corners = std::span<const int32_t>;

constexpr std::array<std::array<size_t, 3>, 4> kTetrahedronFaces{
    {{0, 1, 2}, {0, 1, 3}, {0, 2, 3}, {1, 2, 3}}};
constexpr std::array<std::array<size_t, 4>, 6> kHexahedronFaces{
    {{0, 1, 2, 3}, {4, 5, 6, 7}, {0, 1, 5, 4}, {1, 2, 6, 5}, {2, 3, 7, 6}, {3, 0, 4, 7}}};

void make_unique(std::vector<int32_t>& nodes) {
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
}

// A side of two nodes at least, a face of three; less is what a repeated corner leaves of one.
void add_face(std::vector<int32_t> nodes, size_t least, FacedCells& cells) {
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  while (nodes.size() > 1 && nodes.back() == nodes.front()) nodes.pop_back();
  if (nodes.size() < least) return;
  cells.nodes.insert(cells.nodes.end(), nodes.begin(), nodes.end());
  cells.face_ends.push_back(static_cast<int64_t>(cells.nodes.size()));
}

// Calls visit(number of the cell, nodes of the face) for each face, cell after cell.
template <class Visit>
void for_each_face(const FacedCells& cells, Visit visit) {
  size_t face = 0;
  int64_t begin = 0;
  for (size_t cell = 0; cell < cells.cell_ends.size(); ++cell) {
    for (; std::cmp_less(face, cells.cell_ends[cell]); begin = cells.face_ends[face++]) {
      visit(static_cast<int32_t>(cell),
            Corners(cells.nodes)
                .subspan(static_cast<size_t>(begin), static_cast<size_t>(cells.face_ends[face] - begin)));
    }
  }
}

// The same for the cells of a mesh of either form. Nothing is kept: a mesh may have millions of cells.
template <class Visit>
void for_each_face(const RawTrajectory& mesh, CellKind kind, Visit visit) {
  if (mesh.cells.empty()) {
    for_each_face(mesh.faced, visit);
    return;
  }
  const auto width = static_cast<size_t>(std::max(mesh.nodes_per_cell, 1));
  FacedCells one;
  for (size_t start = 0; start + width <= mesh.cells.size(); start += width) {
    one.nodes.clear();
    one.face_ends.clear();
    one.cell_ends.clear();
    add_faces_of(Corners(mesh.cells).subspan(start, width), kind, one);
    for_each_face(one, [&](int32_t, Corners nodes) { visit(static_cast<int32_t>(start / width), nodes); });
  }
}

// The corners of each cell, each once, in ascending order.
class CellCorners {
 public:
  explicit CellCorners(const RawTrajectory& mesh) {
    const auto width = static_cast<size_t>(std::max(mesh.nodes_per_cell, 1));
    std::vector<int32_t> corners;
    for (size_t start = 0; start + width <= mesh.cells.size(); start += width) {
      const Corners cell = Corners(mesh.cells).subspan(start, width);
      corners.assign(cell.begin(), cell.end());
      add(mesh, corners);
    }
    if (!mesh.cells.empty()) return;
    corners.clear();
    int32_t last = 0;
    for_each_face(mesh.faced, [&](int32_t cell, Corners nodes) {
      for (; last < cell; ++last) add(mesh, corners);
      corners.insert(corners.end(), nodes.begin(), nodes.end());
    });
    while (std::cmp_less(size(), mesh.faced.cell_ends.size())) add(mesh, corners);
  }
  size_t size() const { return ends_.size(); }
  Corners operator[](size_t cell) const {
    const size_t begin = cell == 0 ? 0 : ends_[cell - 1];
    return Corners(nodes_).subspan(begin, ends_[cell] - begin);
  }

 private:
  void add(const RawTrajectory& mesh, std::vector<int32_t>& corners) {
    make_unique(corners);
    const auto wrong = [&](std::string_view needed, const std::string& got, std::string_view fix) {
      return data_error(mesh.name + ": field cells", needed, got, fix);
    };
    if (corners.empty()) {
      throw wrong("polygons of at least two different points", fmt::format("1 point in cell {}", size()),
                  "leave this cell out");
    }
    for (const int32_t node : {corners.front(), corners.back()}) {
      if (node >= 0 && node < mesh.nodes) continue;
      throw wrong(fmt::format("node numbers in 0..{}", mesh.nodes - 1),
                  fmt::format("{} in cell {}", node, size()),
                  "node numbers count from 0 and must be below the number of positions");
    }
    nodes_.insert(nodes_.end(), corners.begin(), corners.end());
    ends_.push_back(nodes_.size());
    corners.clear();
  }

  std::vector<int32_t> nodes_;
  std::vector<size_t> ends_;
};

// The corners of polygons; no cells for solids, which a list of corners does not tell.
CellList polygons_of(const FacedCells& cells) {
  std::vector<std::vector<int32_t>> rings(cells.cell_ends.size());
  bool flat = true;
  for_each_face(cells, [&](int32_t cell, Corners nodes) {
    flat = flat && nodes.size() == 2;
    rings[static_cast<size_t>(cell)].push_back(nodes.front());
  });
  CellList list;
  for (const std::vector<int32_t>& ring : rings) {
    if (!flat || ring.size() < 3) return {};
    add_polygon(list, ring);
  }
  return list;
}

/// [2, pairs] of cells that share a face. A face of more than two cells joins each to the next. Faces are
/// compared only with those of the same lowest node.
std::vector<int32_t> cells_with_one_face(const RawTrajectory& mesh, CellKind kind) {
  std::vector<int32_t> nodes;
  const auto for_each_sorted = [&](auto visit) {
    for_each_face(mesh, kind, [&](int32_t cell, Corners face) {
      nodes.assign(face.begin(), face.end());
      make_unique(nodes);
      visit(cell);
    });
  };
  // By its lowest node each face: its cell, how many other nodes it has, and these.
  std::vector<size_t> ends(static_cast<size_t>(mesh.nodes) + 1, 0);
  for_each_sorted([&](int32_t) { ends[static_cast<size_t>(nodes.front()) + 1] += nodes.size() + 1; });
  for (size_t node = 1; node < ends.size(); ++node) ends[node] += ends[node - 1];
  std::vector<int32_t> records(ends.back());
  for_each_sorted([&](int32_t cell) {
    size_t& at = ends[static_cast<size_t>(nodes.front())];  // becomes the end
    records[at++] = cell;
    records[at++] = static_cast<int32_t>(nodes.size() - 1);
    for (size_t i = 1; i < nodes.size(); ++i) records[at++] = nodes[i];
  });
  struct FaceOfCell {
    Corners nodes;  // ascending, without the lowest
    int32_t cell;
  };
  std::vector<FaceOfCell> faces;
  std::vector<int32_t> first, second;
  size_t at = 0;
  for (size_t node = 0; node + 1 < ends.size(); ++node) {
    for (faces.clear(); at < ends[node]; at += faces.back().nodes.size() + 2)
      faces.push_back({Corners(records).subspan(at + 2, static_cast<size_t>(records[at + 1])), records[at]});
    std::sort(faces.begin(), faces.end(), [](const FaceOfCell& a, const FaceOfCell& b) {
      const auto order = std::lexicographical_compare_three_way(a.nodes.begin(), a.nodes.end(),
                                                                b.nodes.begin(), b.nodes.end());
      return order != 0 ? order < 0 : a.cell < b.cell;
    });
    for (size_t i = 1; i < faces.size(); ++i) {
      const FaceOfCell &a = faces[i - 1], &b = faces[i];
      if (a.cell == b.cell || !std::equal(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end()))
        continue;
      first.push_back(a.cell);
      second.push_back(b.cell);
    }
  }
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Means over the corners of each cell, of rows [frames, nodes, width].
std::vector<double> cell_means(const CellCorners& cells, std::span<const double> values, size_t nodes,
                               size_t width) {
  std::vector<double> means;
  means.reserve(values.size() / nodes * cells.size());
  for (size_t frame = 0; frame < values.size(); frame += nodes * width) {
    for (size_t cell = 0; cell < cells.size(); ++cell) {
      const Corners corners = cells[cell];
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
  if (mesh.rows(FieldOn::cell) == 0) {
    throw data_error(mesh.name, "cells, for a graph on cells", "none",
                     "give the cells of the mesh, or use --graph nodes");
  }
  const CellCorners cells(mesh);
  const auto nodes = static_cast<size_t>(mesh.nodes);

  RawTrajectory graph;
  graph.name = mesh.name;
  graph.record = mesh.record;
  graph.first_frame = mesh.first_frame;
  graph.frames = mesh.frames;
  graph.dt = mesh.dt;
  graph.times = mesh.times;
  graph.dim = mesh.dim;
  graph.nodes = static_cast<int64_t>(cells.size());
  const std::vector<double> centres = cell_means(cells, doubles_of(mesh.positions, mesh.wide_positions),
                                                 nodes, static_cast<size_t>(mesh.dim));
  graph.positions.assign(centres.begin(), centres.end());
  if (!mesh.wide_positions.empty()) graph.wide_positions = centres;
  graph.edges = cells_with_one_face(mesh, kind);
  graph.source_cells = mesh.cells.empty() ? polygons_of(mesh.faced) : cells_of(mesh.cells, kind);
  if (!graph.source_cells.ends.empty()) graph.source_points = doubles_of(mesh.positions, mesh.wide_positions);
  graph.node_type = mesh.cell_type;
  if (graph.node_type.empty() && !mesh.node_type.empty()) {
    for (size_t cell = 0; cell < cells.size(); ++cell) {
      const Corners corners = cells[cell];
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

void add_faces_of(Corners corners, CellKind kind, FacedCells& cells) {
  const auto add_numbered = [&](const auto& numbers) {
    std::vector<int32_t> nodes;
    for (const size_t number : numbers) nodes.push_back(corners[number]);
    add_face(std::move(nodes), 3, cells);
  };
  if (kind == CellKind::tetrahedron) {
    for (const auto& face : kTetrahedronFaces) add_numbered(face);
  } else if (kind == CellKind::hexahedron) {
    for (const auto& face : kHexahedronFaces) add_numbered(face);
  } else {
    for (size_t i = 0; i < corners.size(); ++i)
      add_face({corners[i], corners[(i + 1) % corners.size()]}, 2, cells);
  }
  cells.cell_ends.push_back(static_cast<int64_t>(cells.face_ends.size()));
}

std::vector<float> points_of_source(const RawTrajectory& mesh) {
  const auto dim = static_cast<size_t>(mesh.dim);
  std::vector<float> points;
  points.reserve(mesh.source_points.size());
  for (size_t i = 0; i < mesh.source_points.size(); ++i)
    points.push_back(static_cast<float>(mesh.source_points[i] - mesh.origin[i % dim]));
  return points;
}

void faces_to_edges(RawTrajectory& mesh, const WarningCallback& warn) {
  std::vector<std::pair<int32_t, int32_t>> sides;
  for_each_face(mesh.faced, [&](int32_t, Corners nodes) {
    for (size_t i = 0; i < nodes.size(); ++i) {
      const auto [a, b] = std::minmax(nodes[i], nodes[(i + 1) % nodes.size()]);
      if (a != b) sides.emplace_back(a, b);
    }
  });
  std::sort(sides.begin(), sides.end());
  sides.erase(std::unique(sides.begin(), sides.end()), sides.end());
  for (const auto& [a, b] : sides) mesh.edges.push_back(a);
  for (const auto& [a, b] : sides) mesh.edges.push_back(b);
  mesh.source_cells = polygons_of(mesh.faced);
  mesh.faced = {};
  std::vector<std::string> left_out;
  for (const RawField& field : mesh.fields)
    if (field.on == FieldOn::cell) left_out.push_back(field.name);
  std::erase_if(mesh.fields, [](const RawField& field) { return field.on == FieldOn::cell; });
  if (!left_out.empty() && warn) {
    warn(
        fmt::format("[{}] fields on polygons or polyhedra left out, since the graph's nodes are the points: "
                    "{}; --graph cells keeps them",
                    mesh.name, fmt::join(left_out, ", ")));
  }
}

}  // namespace meshgrad
