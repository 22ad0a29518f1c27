// SPDX-License-Identifier: Apache-2.0
// What is written of a prediction for programs: arrays in NPZ, and CSV tables of points and of integrals.
#pragma once
#include <meshgrad/train/tools/program/mesh_weights.h>
#include <meshgrad/train/tools/program/point_field.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace meshgrad {

/// Which files a prediction on new data gives.
struct PredictionOutputs {
  bool vtu = true;
  bool npz = false;
  std::vector<Probe> probes;  ///< a row of the table for each point and time
  bool integrals = false;     ///< rows for each region of regions_of
};

struct SourceOfMesh {
  std::string source;  ///< for people
  MeshView mesh;
};

/// What is to be said of the probes: which are outside of some meshes, and whether values are those of nodes.
/// Throws DataError for one that is in none of the meshes, with its nearest node, and ConfigError for one of
/// other dimensions.
std::vector<std::string> check_probes(std::span<const Probe> probes, std::span<const SourceOfMesh> meshes);

/// Tables of one trajectory, or of one steady field: STEM.npz (mesh_pos, node_type, cells, of a graph without
/// cells mesh_edge, times, and each field [frames, nodes, components]), STEM_probes.csv and
/// STEM_integrals.csv. CSV files begin with comments (#) and a line of names; FIELD[C] is component C of a
/// field with several. Values are real ones, offsets included. All is kept in memory until write().
class PredictionTables {
 public:
  /// Of `frames` frames; names are those of the targets. `source` is for people. Throws ConfigError for
  /// probes of other dimensions, DataError for more than an NPZ file holds.
  PredictionTables(const MeshView& mesh, const PredictionOutputs& outputs, std::string source,
                   std::span<const FieldInfo> targets, int64_t frames);

  void add(double time, std::span<const PointField> fields);

  /// The files that write() makes.
  static std::vector<std::filesystem::path> files(const std::filesystem::path& stem,
                                                  const PredictionOutputs& outputs);
  void write(const std::filesystem::path& stem) const;

 private:
  struct Array {  // of one field
    std::string name;
    int components = 1;
    bool wide = false;  // has an offset
    std::vector<float> narrow_values;
    std::vector<double> wide_values;
  };
  std::string values_text(const NodeWeights& weights, double divisor,
                          std::span<const PointField> fields) const;
  void write_npz(const std::filesystem::path& path) const;

  const MeshView& mesh_;
  const PredictionOutputs& outputs_;
  std::string source_, columns_;
  std::vector<ProbePlace> places_;
  std::vector<MeshRegion> regions_;
  std::vector<Array> arrays_;
  std::vector<double> times_;
  std::string probe_rows_, integral_rows_;
};

}  // namespace meshgrad
