// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/sources/trajectory_source.h>
#include <meshgrad/train/data/statistics.h>

namespace meshgrad {
namespace {

void check_size(const RawTrajectory& t, std::string_view field, size_t got, int64_t rows, int64_t columns) {
  if (got == static_cast<size_t>(rows) * static_cast<size_t>(columns)) return;
  throw data_error(fmt::format("{}: field {}", t.name, field),
                   fmt::format("{} x {} numbers for {} nodes", rows, columns, t.nodes),
                   fmt::format("{}", got),
                   "all fields of a trajectory must have the same number of nodes and frames");
}

void check_finite(const RawTrajectory& t, std::string_view field, std::span<const float> values,
                  int64_t components) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    const auto row = static_cast<int64_t>(i) / components;
    throw data_error(
        fmt::format("{}: field {}", t.name, field), "finite numbers",
        fmt::format("{} at frame {}, node {}", values[i], row / t.nodes, row % t.nodes),
        "leave out this trajectory, or the frames from there on; the simulation may have diverged");
  }
}

void check_node_types(const RawTrajectory& t) {
  if (t.node_type.empty()) return;
  check_size(t, "node_type", t.node_type.size(), t.nodes, 1);
  for (size_t n = 0; n < t.node_type.size(); ++n) {
    if (t.node_type[n] >= 0 && t.node_type[n] < kNodeTypes) continue;
    throw data_error(
        fmt::format("{}: field node_type", t.name), "types 0..8",
        fmt::format("{} at node {}", t.node_type[n], n),
        "map your types to 0 normal, 1 obstacle, 2 airfoil, 3 handle, 4 inflow, 5 outflow, 6 wall");
  }
}

}  // namespace

void validate(const RawTrajectory& t) {
  if (t.nodes < 1 || t.frames < 1) {
    throw data_error(t.name, "at least one node and one frame", fmt::format("{} and {}", t.nodes, t.frames),
                     "leave this trajectory out");
  }
  if (t.dim != 2 && t.dim != 3) {
    throw data_error(fmt::format("{}: field mesh_pos", t.name), "positions in 2 or 3 dimensions",
                     fmt::format("{}", t.dim), "give mesh_pos as [nodes, 2] or [nodes, 3]");
  }
  check_size(t, "mesh_pos", t.positions.size(), t.nodes, t.dim);
  check_finite(t, "mesh_pos", t.positions, t.dim);
  check_node_types(t);
  if (t.cells.empty() && t.edges.empty()) {
    throw data_error(t.name, "a mesh with cells or edges", "neither",
                     "add the cells (or the edges) of the mesh");
  }
  for (const RawField& field : t.fields) {
    check_size(t, field.name, field.values.size(), (field.dynamic ? t.frames : 1) * t.nodes,
               field.components);
    check_finite(t, field.name, field.values, field.components);
  }
}

RawTrajectory cut_frames(const RawTrajectory& trajectory, int64_t first, int64_t count) {
  RawTrajectory part = trajectory;
  part.first_frame += first;
  part.frames = count;
  for (RawField& field : part.fields) {
    if (!field.dynamic) continue;
    const int64_t size = trajectory.nodes * field.components;
    field.values.erase(field.values.begin() + (first + count) * size, field.values.end());
    field.values.erase(field.values.begin(), field.values.begin() + first * size);
  }
  return part;
}

}  // namespace meshgrad
