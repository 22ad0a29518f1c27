// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/value_offset.h>
#include <meshgrad/train/embed/held_arrays.h>

#include <fmt/format.h>

namespace meshgrad {
std::vector<double> far_origin(const Numbers& positions, int dim) {
  const std::span<const double> wide = positions.doubles();
  if (wide.empty() || !are_coarse_positions(wide, dim)) return {};
  RawTrajectory raw;
  raw.dim = dim;
  raw.wide_positions.assign(wide.begin(), wide.end());
  const std::array<double, 3> origin = origin_for(raw);
  return {origin.begin(), origin.begin() + dim};
}

void round_to(std::span<float> to, const Numbers& values, std::span<const double> offset) {
  size_t component = 0;
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] = static_cast<float>(offset.empty() ? values[i] : values[i] - offset[component]);
    if (++component >= offset.size()) component = 0;
  }
}

std::span<const float> HeldNumbers::read() {
  if (!values_.wide() && offset_.empty()) return values_.floats();
  rounded_.resize(values_.size());
  round_to(rounded_, values_, offset_);
  return rounded_;
}

HeldMesh::HeldMesh(MemoryData& data, const MeshArrays& mesh, std::string_view name)
    : positions_(mesh.positions, far_origin(mesh.positions, data.dim)) {
  const size_t nodes = mesh.positions.size() / static_cast<size_t>(data.dim);
  std::span<const int32_t> types = mesh.node_type;
  if (types.empty()) types = node_type_ = std::vector<int32_t>(nodes, 0);
  if (types.size() != nodes) {
    throw invalid_argument(fmt::format("{}: node_type", name), fmt::format("one number a node, {}", nodes),
                           fmt::format("{}", types.size()), "or leave it out: then all are 0");
  }
  if (mesh.nodes_per_cell == 0) {
    data.add_mesh(name, positions_.read(), types, mesh.first, mesh.second);
    return;
  }
  const CellKind kind = cell_kind_of(mesh.nodes_per_cell, data.dim, name);
  data.add_mesh(name, positions_.read(), types, kind, mesh.cells);
}

}  // namespace meshgrad
