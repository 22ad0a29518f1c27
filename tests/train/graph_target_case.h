// SPDX-License-Identifier: Apache-2.0
// Meshes whose fields on nodes make numbers of the whole mesh, and runs that learn both.
#pragma once
#include <meshgrad/engine/random.h>
#include <meshgrad/train/data/packed_file_writer.h>

#include "train/small_run.h"

namespace meshgrad::test {

struct TargetData {
  int64_t frames = 1;
  int train = 24;
  bool one_size = true;
  float bad = 0.0F;  ///< in the place of a mesh's drag, unless 0
  uint64_t bad_mesh = 0;
  bool alone = false;  ///< the number is the only target
};

/// Grids of 4 x 4 nodes, or of other sizes, with the fields g and u [m/s] on nodes: without time u = tanh(g),
/// else u grows by 0.2 g a frame. On graphs: `drag` [N], 3 + 2 mean(u) and 5 - mean(g), and a static `load`.
inline std::filesystem::path pack_targets(const std::filesystem::path& folder, const TargetData& shape = {}) {
  const std::filesystem::path path = folder / "targets.mgd";
  const bool over_time = shape.frames > 1;
  PackedFileWriter writer(path, 2,
                          {{"g", 1, false, ""},
                           {"u", 1, over_time, "m/s"},
                           {"drag", 2, over_time, "N", FieldOn::graph},
                           {"load", 1, false, "", FieldOn::graph},
                           {"kind", 1, false, "", FieldOn::graph, DType::i32}});
  DataStatistics statistics;
  statistics.fields = {FieldMoments(1), FieldMoments(1), FieldMoments(2), FieldMoments(1),
                       FieldMoments(1, DType::i32)};
  statistics.edges.assign(3, Moments{6, 0.0, 0.5});
  const std::vector<int32_t> graph{0};
  uint64_t number = 0;
  const auto add = [&](const std::string& split) {
    const uint64_t own = number++;
    const int side = shape.one_size ? 4 : 3 + static_cast<int>(own % 3);
    std::vector<float> positions, g, u, drag;
    std::vector<int32_t> types, cells;
    const auto level = static_cast<float>(normal(11, own, 1'000));
    float mean_g = 0;
    for (int y = 0; y < side; ++y) {
      for (int x = 0; x < side; ++x) {
        positions.insert(positions.end(), {static_cast<float>(x), static_cast<float>(y)});
        types.push_back(x == 0 ? 6 : 0);
        g.push_back(level + 0.3F * static_cast<float>(normal(11, own, g.size())));
        mean_g += g.back() / static_cast<float>(side * side);
        if (x + 1 == side || y + 1 == side) continue;
        const int32_t at = y * side + x;
        for (const int32_t node : {at, at + 1, at + side, at + 1, at + side + 1, at + side})
          cells.push_back(node);
      }
    }
    for (int64_t t = 0; t < shape.frames; ++t) {
      float mean = 0;
      for (const float value : g) {
        u.push_back(over_time ? 0.5F + 0.2F * static_cast<float>(t) * value : std::tanh(value));
        mean += u.back() / static_cast<float>(g.size());
      }
      drag.insert(drag.end(), {3.0F + 2.0F * mean, 5.0F - mean_g});
    }
    if (own == shape.bad_mesh && shape.bad != 0.0F) drag.front() = shape.bad;
    const PackedMesh packed{2, CellKind::triangle, positions, types, cells};
    const PackedFileWriter::MeshKey key = PackedFileWriter::mesh_key(packed, {});
    int64_t mesh = writer.find_mesh(key);
    if (mesh < 0)
      mesh = writer.add_mesh(
          key, packed,
          edges_from_cells(cells, CellKind::triangle, static_cast<int64_t>(types.size()), "grid"));
    const std::vector<float> load{level};
    const std::vector<int32_t> kind{static_cast<int32_t>(own % 2)};
    writer.add_trajectory({split + std::to_string(own),
                           split,
                           mesh,
                           shape.frames,
                           0,
                           over_time ? 0.1 : 0.0,
                           {g, u, drag, load, kind}});
    if (split != "train") return;
    statistics.fields[0].add(g, types, 1);
    statistics.fields[1].add(u, types, shape.frames);
    statistics.fields[2].add(drag, graph, shape.frames);
    statistics.fields[3].add(load, graph, 1);
    statistics.fields[4].add(kind, graph, 1);
    statistics.count_nodes(types, shape.frames);
  };
  for (int i = 0; i < shape.train; ++i) add("train");
  for (int i = 0; i < 5; ++i) add("valid");
  for (int i = 0; i < 6; ++i) add("test");
  writer.finish({"train", "valid", "test"}, statistics, "train", "targets");
  return path;
}

/// Of SteadyField, or with several frames of MeshDynamics.
inline Config target_config(const std::filesystem::path& folder, const TargetData& shape = {}) {
  Config config = small_config(folder, pack_targets(folder, shape));
  config.task.name = shape.frames > 1 ? TaskName::mesh_dynamics : TaskName::steady_field;
  config.data.inputs = {"g"};
  if (shape.frames > 1) config.data.inputs.insert(config.data.inputs.begin(), "u");
  config.data.targets = {"u", "drag"};
  if (shape.alone) config.data.targets.erase(config.data.targets.begin());
  config.data.predicted_types = {0};
  config.train.noise = 0.0;
  config.train.accumulate = 1;
  config.train.batch = 3;
  config.train.validate_samples = 0;
  return config;
}

}  // namespace meshgrad::test
