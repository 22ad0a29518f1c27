// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/cell_list.h>
#include <meshgrad/train/data/mesh_edges.h>
#include <meshgrad/train/tools/program/point_field.h>

#include <utility>

namespace meshgrad {
namespace {

void check_indices(std::string_view where, std::string_view what, std::span<const int32_t> indices,
                   int64_t nodes) {
  for (const int32_t index : indices) {
    if (index < 0 || index >= nodes) {
      throw invalid_argument(where, fmt::format("{} with nodes below {}", what, nodes),
                             fmt::format("node {}", index));
    }
  }
}

}  // namespace

void check_mesh(std::string_view where, const MeshView& mesh) {
  if (mesh.dim != 2 && mesh.dim != 3) {
    throw invalid_argument(where, "a mesh of 2 or 3 dimensions", std::to_string(mesh.dim));
  }
  if (std::cmp_not_equal(mesh.positions.size(), mesh.nodes * mesh.dim)) {
    throw invalid_argument(where, fmt::format("positions [{}, {}]", mesh.nodes, mesh.dim),
                           fmt::format("{} values", mesh.positions.size()));
  }
  const auto each = static_cast<std::size_t>(nodes_per_cell(mesh.cell_kind));
  if (each == 0 ? !mesh.cells.empty() : mesh.cells.size() % each != 0) {
    throw invalid_argument(where, fmt::format("cells of {} nodes each", each),
                           fmt::format("{} indices", mesh.cells.size()));
  }
  if (mesh.source != nullptr) {
    const SourceMesh& source = *mesh.source;
    const bool on_cells = source.nodes_are_cells();
    const int64_t points = on_cells ? std::ssize(source.points) / mesh.dim : mesh.nodes;
    const std::string fault = on_cells && std::ssize(source.ends) != mesh.nodes
                                  ? fmt::format("{} cells for {} nodes", source.ends.size(), mesh.nodes)
                                  : find_cell_fault(source.corners, source.ends, source.types, points);
    if (!fault.empty())
      throw invalid_argument(where, "a source mesh whose cells fit its points and the nodes", fault);
  }
  if (mesh.senders.size() != mesh.receivers.size()) {
    throw invalid_argument(where, "as many senders as receivers",
                           fmt::format("{} and {}", mesh.senders.size(), mesh.receivers.size()));
  }
  check_indices(where, "cells", mesh.cells, mesh.nodes);
  check_indices(where, "senders", mesh.senders, mesh.nodes);
  check_indices(where, "receivers", mesh.receivers, mesh.nodes);
}

void check_field(std::string_view where, const MeshView& mesh, const PointField& field) {
  if (field.components < 1 || std::cmp_not_equal(field.values.size(), mesh.nodes * field.components)) {
    throw invalid_argument(fmt::format("{}: field \"{}\"", where, field.name),
                           fmt::format("values [{}, {}]", mesh.nodes, field.components),
                           fmt::format("{} values", field.values.size()));
  }
}

}  // namespace meshgrad
