// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/value_offset.h>
#include <meshgrad/train/embed/held_arrays.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace meshgrad {
std::vector<double> far_origin(const Numbers& positions, int dim) {
  if (!positions.wide()) return {};
  std::vector<double> gathered;
  if (positions.has_gaps())
    for (size_t i = 0; i < positions.size(); ++i) gathered.push_back(positions[i]);
  const std::span<const double> wide = positions.has_gaps() ? gathered : positions.doubles();
  if (wide.empty() || !are_coarse_positions(wide, dim)) return {};
  const std::array<double, 3> origin = origin_for(wide, dim);
  return {origin.begin(), origin.begin() + dim};
}

void round_to(std::span<float> to, const Numbers& values, std::span<const double> offset) {
  size_t component = 0;
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] = static_cast<float>(offset.empty() ? values[i] : values[i] - offset[component]);
    if (++component >= offset.size()) component = 0;
  }
}

void check_finite(std::string_view where, const Numbers& values, int64_t columns, std::string_view fix,
                  const std::function<bool(int64_t row)>& reads) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  for (size_t i = 0; i < values.size(); ++i) {
    // A comparison with nan that raises no floating-point exception, which some programs trap.
    if (std::islessequal(std::abs(values[i]), kLargest)) continue;
    const int64_t row = static_cast<int64_t>(i) / columns;
    if (reads && !reads(row)) continue;
    throw data_error(fmt::format("{}, row {}", where, row), "finite numbers", fmt::format("{}", values[i]),
                     fix);
  }
}

std::string no_lengths_warning(const MeshView& mesh) {
  const auto dim = static_cast<size_t>(mesh.dim);
  for (size_t e = 0; e < mesh.senders.size(); ++e) {
    const auto a = static_cast<size_t>(mesh.senders[e]), b = static_cast<size_t>(mesh.receivers[e]);
    if (!std::ranges::equal(mesh.positions.subspan(a * dim, dim), mesh.positions.subspan(b * dim, dim)))
      return {};
  }
  if (mesh.senders.empty()) return {};
  return "mesh: positions are the same at both ends of every edge, so the model sees no distances: look for "
         "positions that were never set";
}

std::span<const float> HeldNumbers::read() {
  if (!values_.wide() && !values_.has_gaps() && offset_.empty()) return values_.floats();
  rounded_.resize(values_.size());
  round_to(rounded_, values_, offset_);
  return rounded_;
}

void HeldMesh::check_positions() const {
  check_finite(name_ + ": positions", positions_.values(), dim_, "give each node its place");
}

void HeldMesh::fetch_positions() const {
  positions_.fetch();
  check_positions();
}

HeldMesh::HeldMesh(const Runtime& runtime, MemoryData& data, const MeshArrays& given, std::string_view name)
    : name_(name), dim_(data.dim), given_(given.positions) {
  HostCopies positions(runtime), read(runtime);
  const MeshArrays mesh = read.read_connections(given);
  const Numbers at = positions.read(mesh.positions, "mesh: positions");
  positions_.hold(at, far_origin(at, data.dim), std::move(positions));
  check_positions();
  const size_t nodes = mesh.positions.size() / static_cast<size_t>(data.dim);
  std::span<const int32_t> types = mesh.node_type.values();
  if (mesh.node_type.empty()) types = node_type_ = std::vector<int32_t>(nodes, 0);
  if (mesh.node_type.wide() || mesh.node_type.device() != Device{}) {
    const Integers here = read.read(mesh.node_type, "mesh: node_type");
    types = node_type_ = std::vector<int32_t>(here.values().begin(), here.values().end());
  }
  if (types.size() != nodes) {
    throw invalid_argument(fmt::format("{}: node_type", name), fmt::format("one number a node, {}", nodes),
                           fmt::format("{}", types.size()), "or leave it out: then all are 0");
  }
  if (mesh.nodes_per_cell == 0) {
    data.add_mesh(name, positions_.read(), types, mesh.first.values(), mesh.second.values());
    return;
  }
  const CellKind kind = cell_kind_of(mesh.nodes_per_cell, data.dim, name);
  data.add_mesh(name, positions_.read(), types, kind, mesh.cells.values());
}

}  // namespace meshgrad
