// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/made_edges.h>
#include <meshgrad/train/data/memory_data.h>

#include <fmt/format.h>

#include <utility>

namespace meshgrad {

int64_t MemoryData::add_mesh(std::string_view name, std::span<const float> positions,
                             std::span<const int32_t> node_type, CellKind kind,
                             std::span<const int32_t> cells) {
  const auto nodes = static_cast<int64_t>(node_type.size());
  if (in_parts && cells.empty())
    return add(name, positions, node_type, directed_edges({}, {}, nodes, name).edges);
  return add(name, positions, node_type, edges_from_cells(cells, kind, nodes, name));
}

int64_t MemoryData::add_mesh(std::string_view name, std::span<const float> positions,
                             std::span<const int32_t> node_type, std::span<const int32_t> first,
                             std::span<const int32_t> second) {
  const auto nodes = static_cast<int64_t>(node_type.size());
  return add(name, positions, node_type,
             directed || (in_parts && first.empty()) ? directed_edges(first, second, nodes, name).edges
                                                     : edges_from_pairs(first, second, nodes, name));
}

int64_t MemoryData::add(std::string_view name, std::span<const float> positions,
                        std::span<const int32_t> node_type, MeshEdges edges) {
  if (positions.size() != node_type.size() * static_cast<size_t>(dim)) {
    throw data_error(name, fmt::format("positions [{}, {}]", node_type.size(), dim),
                     fmt::format("{} numbers", positions.size()), "give one position a node");
  }
  for (size_t i = 0; i < node_type.size(); ++i) {
    if (node_type[i] >= 0 && node_type[i] < node_types) continue;
    throw data_error(fmt::format("{}: type of node {}", name, i), fmt::format("0..{}", node_types - 1),
                     fmt::format("{}", node_type[i]), "number node types as in training (data.node_types)");
  }
  MemoryMesh& mesh = meshes.emplace_back();
  mesh.edges = std::move(edges);
  MeshView& view = mesh.view;
  view.index = static_cast<int64_t>(meshes.size()) - 1;
  view.nodes = static_cast<int64_t>(node_type.size());
  view.edges = static_cast<int64_t>(mesh.edges.senders.size());
  view.dim = dim;
  view.directed = directed;
  view.positions = positions;
  view.node_type = node_type;
  view.senders = mesh.edges.senders;
  view.receivers = mesh.edges.receivers;
  view.receiver_offsets = mesh.edges.receiver_offsets;
  view.sender_offsets = mesh.edges.sender_offsets;
  view.sender_order = mesh.edges.sender_order;
  view.file = "memory";
  if (edge_options != MeshEdgeOptions{}) {
    mesh.edges = made_edges(view, edge_options);
    set_edges(view, mesh.edges);
    view.period = edge_options.period;
  }
  return view.index;
}

}  // namespace meshgrad
