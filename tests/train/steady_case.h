// SPDX-License-Identifier: Apache-2.0
// A small data set of steady fields, and a run on it.
#pragma once
#include <meshgrad/train/data/packed_file_writer.h>

#include <cmath>

#include "train/small_run.h"

namespace meshgrad::test {

constexpr int kSide = 5;  // nodes

inline float exact(double x, double y, double phase) {
  return static_cast<float>(std::sin(2.0 * x + phase) * std::cosh(2.0 * y));
}

/// Squares with a harmonic field u [K]; its boundary values g are the input, and `load` a condition.
inline void add_square(PackedFileWriter& writer, const std::string& split, double phase,
                       DataStatistics* statistics) {
  std::vector<float> positions, u, g;
  std::vector<int32_t> types, cells;
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      positions.push_back(0.2f * static_cast<float>(x) + 0.01f * static_cast<float>(phase));
      positions.push_back(0.2f * static_cast<float>(y));
      const bool inside = x > 0 && y > 0 && x + 1 < kSide && y + 1 < kSide;
      types.push_back(inside ? 0 : 6);
      u.push_back(exact(0.2 * x, 0.2 * y, phase));
      g.push_back(inside ? 0.0f : u.back());
      if (x + 1 == kSide || y + 1 == kSide) continue;
      const int32_t at = y * kSide + x;
      for (const int32_t node : {at, at + 1, at + kSide, at + 1, at + kSide + 1, at + kSide})
        cells.push_back(node);
    }
  }
  const PackedMesh packed{2, CellKind::triangle, positions, types, cells};
  const int64_t mesh = writer.add_mesh(PackedFileWriter::mesh_key(packed, {}), packed,
                                       edges_from_cells(cells, CellKind::triangle, kSide * kSide, "square"));
  const std::vector<float> load{static_cast<float>(phase)};
  writer.add_trajectory({split, split, mesh, 1, 0, 0.0, {g, u, load}});
  if (statistics == nullptr) return;
  statistics->fields[0].add(g, types, 1);
  statistics->fields[1].add(u, types, 1);
}

inline std::filesystem::path pack_squares(const std::filesystem::path& folder,
                                          const std::string& unit = "K") {
  const std::filesystem::path path = folder / "squares.mgd";
  PackedFileWriter writer(
      path, 2, {{"g", 1, true, unit}, {"u", 1, true, unit}, {"load", 1, true, "W", FieldOn::graph}});
  DataStatistics statistics;
  statistics.fields = {FieldMoments(1), FieldMoments(1), FieldMoments(1)};
  statistics.edges.assign(3, Moments{6, 0.0, 0.2});
  statistics.node_type_counts = {9, 0, 0, 0, 0, 0, 16, 0, 0};
  for (int i = 0; i < 6; ++i) add_square(writer, "train", 0.5 * i, &statistics);
  add_square(writer, "valid", 0.7, nullptr);
  for (const double phase : {0.3, 1.2}) add_square(writer, "test", phase, nullptr);
  writer.finish({"train", "valid", "test"}, statistics, "train", "squares");
  return path;
}

/// 150 windows of a batch of 2 squares.
inline Config steady_config(const std::filesystem::path& folder) {
  Config config = small_config(folder, pack_squares(folder));
  config.task.name = TaskName::steady_field;
  config.data.inputs = {"g"};
  config.data.targets = {"u"};
  config.data.predicted_types = {0};
  config.train.noise = 0.0;
  config.train.accumulate = 1;
  config.train.steps = 150;
  config.train.validate_every = 50;
  config.train.checkpoint_every = 50;
  return config;
}

}  // namespace meshgrad::test
