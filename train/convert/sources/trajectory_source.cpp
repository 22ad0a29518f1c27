// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/trajectory_source.h>
#include <meshgrad/train/data/statistics.h>

namespace meshgrad {
namespace {

void check_size(const RawTrajectory& t, std::string_view field, size_t got, int64_t rows, int64_t columns,
                FieldOn on = FieldOn::node) {
  if (got == static_cast<size_t>(rows) * static_cast<size_t>(columns)) return;
  throw data_error(fmt::format("{}: field {}", t.name, field),
                   fmt::format("{} x {} numbers for {} {}s", rows, columns, t.rows(on), name_of(on)),
                   fmt::format("{}", got),
                   "all fields of a trajectory must have the same number of nodes and frames");
}

void check_finite(const RawTrajectory& t, std::string_view field, std::span<const float> values,
                  int64_t components, FieldOn on = FieldOn::node) {
  const int64_t rows = t.rows(on);
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    const auto row = static_cast<int64_t>(i) / components;
    const auto frame = static_cast<size_t>(row / rows);
    const std::string& file = frame < t.frame_files.size() ? t.frame_files[frame] : t.name;
    throw data_error(
        fmt::format("{}: field {}", file, field), "finite numbers",
        fmt::format("{} at frame {}, {} {}", values[i], row / rows, name_of(on), row % rows),
        "leave out this trajectory, or the frames from there on; the simulation may have diverged");
  }
}

void check_node_types(const RawTrajectory& t) {
  if (t.node_type.empty()) return;
  check_size(t, "node_type", t.node_type.size(), t.nodes, 1);
  for (size_t n = 0; n < t.node_type.size(); ++n) {
    if (t.node_type[n] >= 0 && t.node_type[n] < kMaxNodeTypes) continue;
    throw data_error(
        fmt::format("{}: field node_type", t.name), fmt::format("types 0..{}", kMaxNodeTypes - 1),
        fmt::format("{} at node {}", t.node_type[n], n),
        "number your types from 0; MeshGraphNets' are 0 normal, 1 obstacle, 2 airfoil, 3 handle, 4 inflow, "
        "5 outflow, 6 wall");
  }
}

void check_raw_field(const RawTrajectory& t, const RawField& field) {
  const std::string where = fmt::format("{}: field {}", t.name, field.name);
  if (field.on == FieldOn::edge && t.edges.empty() && t.dim > 0) {
    throw data_error(where, "the edges that its rows belong to", "none",
                     "give them as mesh_edge [2, edges], in the order of the rows");
  }
  if (field.on == FieldOn::cell && t.rows(FieldOn::cell) == 0) {
    throw data_error(where, "the cells that its rows belong to", "none", "give them as cells");
  }
  if (field.name.empty() || std::count_if(t.fields.begin(), t.fields.end(), [&](const RawField& other) {
                              return other.name == field.name;
                            }) > 1) {
    throw data_error(where, "a name that no other field has", fmt::format("\"{}\"", field.name),
                     "rename one of the fields");
  }
  if (std::any_of(field.name.begin(), field.name.end(),
                  [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; })) {
    throw data_error(t.name, "field names without control characters", escaped(field.name),
                     "rename the field");
  }
  check_size(t, field.name, field.size(), (field.dynamic ? t.frames : 1) * t.rows(field.on), field.components,
             field.on);
  if (const auto* values = std::get_if<std::vector<float>>(&field.values)) {
    check_finite(t, field.name, *values, field.components, field.on);
  }
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    result += code < 0x20 || code == 0x7f ? fmt::format("\\x{:02x}", code) : std::string(1, c);
  }
  return result + "\"";
}

DType RawField::dtype() const {
  constexpr std::array<DType, 3> kDTypes{DType::f32, DType::i32, DType::i64};
  return kDTypes[values.index()];
}

size_t RawField::size() const {
  return std::visit([](const auto& numbers) { return numbers.size(); }, values);
}

int64_t RawTrajectory::rows(FieldOn on) const {
  const auto width = static_cast<size_t>(std::max(nodes_per_cell, 1));
  return static_cast<int64_t>(
      RowCounts{static_cast<uint64_t>(nodes), edges.size() / 2, cells.size() / width + faced.cell_ends.size()}
          .of(on));
}

void validate(const RawTrajectory& t) {
  if (t.nodes < 1 || t.frames < 1) {
    throw data_error(t.name, "at least one node and one frame", fmt::format("{} and {}", t.nodes, t.frames),
                     "leave this trajectory out");
  }
  if (t.dim != 0 && t.dim != 2 && t.dim != 3) {
    throw data_error(fmt::format("{}: field mesh_pos", t.name), "positions in 2 or 3 dimensions",
                     fmt::format("{}", t.dim), "give mesh_pos as [nodes, 2] or [nodes, 3]");
  }
  check_size(t, "mesh_pos", t.positions.size(), t.nodes, t.dim);
  check_finite(t, "mesh_pos", t.positions, t.dim);
  check_node_types(t);
  if (t.rows(FieldOn::cell) == 0 && t.edges.empty() && t.dim > 0) {
    throw data_error(t.name, "a mesh with cells or edges", "0 cells and 0 edges",
                     "add the cells (or the edges) of the mesh");
  }
  for (const RawField& field : t.fields) check_raw_field(t, field);
}

std::optional<double> even_spacing(std::span<const double> times) {
  if (times.size() < 2) return std::nullopt;
  constexpr double kEven = 1e-3;
  const double step = (times.back() - times.front()) / static_cast<double>(times.size() - 1);
  if (!std::isfinite(step) || step <= 0) return std::nullopt;
  for (size_t i = 1; i < times.size(); ++i)
    if (!(std::abs(times[i] - times[i - 1] - step) <= kEven * step)) return std::nullopt;
  return step;
}

std::string uneven_text(std::span<const double> times) {
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (size_t i = 1; i < times.size(); ++i) {
    least = std::min(least, times[i] - times[i - 1]);
    most = std::max(most, times[i] - times[i - 1]);
  }
  return fmt::format(
      "are not evenly spaced ({:.6g} to {:.6g} s apart) and were left out: dt is unknown, and a model learns "
      "these "
      "steps as one; fix: write frames at equal distances of time, or say --dt S where the times are wrong",
      least, most);
}

double checked_dt(double dt, std::string_view where) {
  if (std::isfinite(dt) && dt > 0) return dt;
  throw data_error(where, "a positive number of seconds between frames", fmt::format("{}", dt),
                   "correct it, or leave it out and give --dt");
}

RawTrajectory cut_frames(const RawTrajectory& trajectory, int64_t first, int64_t count) {
  RawTrajectory part = trajectory;
  part.first_frame += first;
  part.frames = count;
  if (!part.times.empty())
    part.times.assign(trajectory.times.begin() + first, trajectory.times.begin() + first + count);
  for (RawField& field : part.fields) {
    if (!field.dynamic) continue;
    const int64_t size = trajectory.rows(field.on) * field.components;
    std::visit(
        [&](auto& values) {
          values.erase(values.begin() + (first + count) * size, values.end());
          values.erase(values.begin(), values.begin() + first * size);
        },
        field.values);
  }
  return part;
}

}  // namespace meshgrad
