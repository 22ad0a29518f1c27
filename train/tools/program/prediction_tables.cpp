// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/tools/program/markup.h>
#include <meshgrad/train/tools/program/npz_file.h>
#include <meshgrad/train/tools/program/prediction_tables.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kProbes = "_probes.csv", kIntegrals = "_integrals.csv";

fs::path with(const fs::path& stem, std::string_view end) {
  return stem.parent_path() / (stem.filename().string() + std::string(end));
}

/// A cell of CSV.
std::string csv_cell(std::string text) {
  if (text.find_first_of(",\"\n\r") == text.npos) return text;
  for (size_t at = text.find('"'); at != text.npos; at = text.find('"', at + 2)) text.insert(at, 1, '"');
  return '"' + text + '"';
}

/// Names that an NPZ file has for other arrays than fields.
bool is_taken(const std::string& name) {
  constexpr std::array<std::string_view, 6> kTaken{"mesh_pos",  "node_type", "cells",
                                                   "mesh_edge", "times",     "dt"};
  return std::ranges::find(kTaken, name) != kTaken.end() || name.find(':') != name.npos;
}

std::string comment(const std::string& source, std::string_view what) {
  return fmt::format("# {}: {}, {}\n", kMarkWords, printable(source), what);
}

std::string position_text(const MeshView& mesh, int32_t node) {
  std::string text;
  for (size_t axis = 0; axis < static_cast<size_t>(mesh.dim); ++axis) {
    const size_t at = static_cast<size_t>(node) * static_cast<size_t>(mesh.dim) + axis;
    text += fmt::format("{}{:.6g}", axis == 0 ? "" : ",",
                        static_cast<double>(mesh.positions[at]) + mesh.origin[axis]);
  }
  return text;
}

}  // namespace

std::vector<std::string> check_probes(std::span<const Probe> probes, std::span<const SourceOfMesh> meshes) {
  std::vector<std::string> notes;
  bool at_nodes = false;
  for (const Probe& probe : probes) {
    std::string first, nearest;
    int64_t lack = 0;
    for (const auto& [source, mesh] : meshes) {
      const ProbePlace place = place_of(probe, mesh);
      at_nodes = at_nodes || place.in == ProbePlace::In::node;
      if (place.in != ProbePlace::In::outside || ++lack > 1) continue;
      first = source;
      nearest = fmt::format("{:.3g} from the nearest node, {} at {}", place.distance, place.nearest,
                            position_text(mesh, place.nearest));
    }
    if (lack == 0) continue;
    if (std::cmp_equal(lack, meshes.size())) {
      throw data_error("--probe " + probe.text, "a point inside of " + first, nearest,
                       "give it in the unit of the data's positions, inside of a cell");
    }
    notes.push_back(fmt::format("probe {} is outside of {} of {}, where its values are nan; the first is {}",
                                probe.text, lack, counted(std::ssize(meshes), "mesh", "meshes"), first));
  }
  if (at_nodes)
    notes.emplace_back("values at probes are those of the nearest node, as no cells are around points");
  return notes;
}

PredictionTables::PredictionTables(const MeshView& mesh, const PredictionOutputs& outputs, std::string source,
                                   std::span<const FieldInfo> targets, int64_t frames)
    : mesh_(mesh), outputs_(outputs), source_(std::move(source)) {
  std::ranges::replace(source_, '\n', ' ');
  uint64_t bytes = 0;
  for (const FieldInfo& target : targets) {
    for (int c = 0; c < target.components; ++c)
      columns_ +=
          ',' + csv_cell(target.components == 1 ? target.name : fmt::format("{}[{}]", target.name, c));
    bytes += static_cast<uint64_t>(frames * mesh.nodes * target.components) *
             (target.offset.empty() ? sizeof(float) : sizeof(double));
  }
  if (outputs.npz && bytes > NpzFile::kMostBytes) {
    throw data_error("--format npz", "fields of less than 4 GiB in an NPZ file",
                     fmt::format("{} bytes", bytes), "predict fewer steps, or write VTU only (--format vtu)");
  }
  for (const Probe& probe : outputs.probes) places_.push_back(place_of(probe, mesh));
  if (outputs.integrals) regions_ = regions_of(mesh);
}

std::string PredictionTables::values_text(const NodeWeights& weights, double divisor,
                                          std::span<const PointField> fields) const {
  std::string text;
  for (const PointField& field : fields) {
    for (int c = 0; c < field.components; ++c) {
      const double offset = field.offset.empty() ? 0.0 : field.offset[static_cast<size_t>(c)];
      double sum = 0.0;
      for (size_t i = 0; i < weights.nodes.size(); ++i) {
        const auto row = static_cast<size_t>(weights.nodes[i]) * static_cast<size_t>(field.components);
        const auto value = static_cast<double>(field.values[row + static_cast<size_t>(c)]);
        sum += weights.weights[i] * (value + offset);
      }
      text += weights.nodes.empty() ? ",nan" : fmt::format(",{:.9g}", sum / divisor);
    }
  }
  return text + '\n';
}

void PredictionTables::add(double time, std::span<const PointField> fields) {
  times_.push_back(time);
  for (size_t p = 0; p < places_.size(); ++p) {
    const ProbePlace& place = places_[p];
    probe_rows_ += fmt::format("{},{}", time, p + 1);
    for (const double at : outputs_.probes[p].at) probe_rows_ += fmt::format(",{}", at);
    probe_rows_ += fmt::format(",{},{},{:.6g}", name_of(place.in), place.nearest, place.distance) +
                   values_text(place.weights, 1.0, fields);
  }
  for (const MeshRegion& region : regions_) {
    const std::string type = region.node_type < 0 ? "all" : fmt::format("{}", region.node_type);
    const auto row = [&](std::string_view quantity, double divisor) {
      integral_rows_ +=
          fmt::format("{},{},{},{},{:.9g}", time, name_of(region.over), type, quantity, region.measure) +
          values_text(region.weights, divisor, fields);
    };
    row(region.over == MeshRegion::Over::nodes ? "sum" : "integral", 1.0);
    row("mean", region.measure);
  }
  if (!outputs_.npz) return;
  for (size_t f = 0; f < fields.size(); ++f) {
    const PointField& field = fields[f];
    if (arrays_.size() == f) arrays_.push_back({field.name, field.components, !field.offset.empty(), {}, {}});
    Array& array = arrays_[f];
    if (!array.wide)
      array.narrow_values.insert(array.narrow_values.end(), field.values.begin(), field.values.end());
    for (size_t i = 0; array.wide && i < field.values.size(); ++i)
      array.wide_values.push_back(static_cast<double>(field.values[i]) +
                                  field.offset[i % field.offset.size()]);
  }
}

std::vector<fs::path> PredictionTables::files(const fs::path& stem, const PredictionOutputs& outputs) {
  std::vector<fs::path> files;
  if (outputs.npz) files.push_back(with(stem, ".npz"));
  if (!outputs.probes.empty()) files.push_back(with(stem, kProbes));
  if (outputs.integrals) files.push_back(with(stem, kIntegrals));
  return files;
}

void PredictionTables::write(const fs::path& stem) const {
  if (outputs_.npz) write_npz(with(stem, ".npz"));
  if (!outputs_.probes.empty()) {
    const std::string axes = std::string(",x,y,z").substr(0, 2 * static_cast<size_t>(mesh_.dim));
    write_file_atomically(with(stem, kProbes),
                          comment(source_,
                                  "values at points: linear in the cell around a point, or those of "
                                  "the nearest node") +
                              "time,probe" + axes + ",in,nearest_node,distance" + columns_ + '\n' +
                              probe_rows_);
  }
  if (outputs_.integrals) {
    write_file_atomically(with(stem, kIntegrals),
                          comment(source_,
                                  "integrals, and sums over nodes where a type has no part of the "
                                  "boundary; measure is a length, area, volume or number of nodes") +
                              "time,over,node_type,quantity,measure" + columns_ + '\n' + integral_rows_);
  }
}

void PredictionTables::write_npz(const fs::path& path) const {
  NpzFile file;
  const auto dim = static_cast<size_t>(mesh_.dim);
  if (std::ranges::any_of(mesh_.origin, [](double origin) { return origin != 0.0; })) {
    std::vector<double> positions(mesh_.positions.begin(), mesh_.positions.end());
    for (size_t i = 0; i < positions.size(); ++i) positions[i] += mesh_.origin[i % dim];
    file.add<double>("mesh_pos", {mesh_.nodes, mesh_.dim}, positions);
  } else {
    file.add<float>("mesh_pos", {mesh_.nodes, mesh_.dim}, mesh_.positions);
  }
  file.add<int32_t>("node_type", {mesh_.nodes}, mesh_.node_type);
  if (mesh_.cells.empty()) {
    std::vector<int32_t> edges(mesh_.senders.begin(), mesh_.senders.end());
    edges.insert(edges.end(), mesh_.receivers.begin(), mesh_.receivers.end());
    file.add<int32_t>("mesh_edge", {2, mesh_.edges}, edges);
  } else {
    file.add<int32_t>("cells", {mesh_.cell_count(), mesh_.nodes_per_cell}, mesh_.cells);
  }
  const auto frames = static_cast<int64_t>(times_.size());
  file.add<double>("times", {frames}, times_);
  for (const Array& array : arrays_) {
    const std::string name = is_taken(array.name) ? "node:" + array.name : array.name;
    const std::vector<int64_t> shape{frames, mesh_.nodes, array.components};
    array.wide ? file.add<double>(name, shape, array.wide_values)
               : file.add<float>(name, shape, array.narrow_values);
  }
  file.write(path);
}

}  // namespace meshgrad
