// SPDX-License-Identifier: Apache-2.0
// Writes a packed file (packed_file.h) as trajectories come, one at a time.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/data/cell_list.h>
#include <meshgrad/train/data/mesh_edges.h>
#include <meshgrad/train/data/packed_file.h>

namespace meshgrad {

/// A mesh as it goes into the file; spans are read during the call only.
struct PackedMesh {
  int dim = 2;  ///< 0: no positions
  CellKind cell_kind = CellKind::none;
  std::span<const float> positions;        ///< [nodes, dim]
  std::span<const int32_t> node_type;      ///< [nodes], 0 <= type < kMaxNodeTypes
  std::span<const int32_t> cells;          ///< [cells, nodes_per_cell(cell_kind)]
  std::array<double, 3> origin{};          ///< what was subtracted from positions
  const CellList* source_cells = nullptr;  ///< of its source, where `cells` are not those; not empty
  std::span<const float> source_points;    ///< [points, dim], where nodes are the source's cells
};

/// What the manifest says beside the trajectories.
struct PackedFrom {
  std::map<std::string, std::string> read_as{};  ///< field or role -> array of the input
  std::string input{};                           ///< identifies what was read
  std::string options = "{}";                    ///< of the conversion, JSON
};

/// Memory does not grow with the data, only with the number of trajectories and meshes. Nothing appears at
/// the target before finish() returns; without it, or after an error, the target is as it was.
class PackedFileWriter {
 public:
  /// `dim` is 0 for graphs without positions; of `directed` graphs the edges stay as they are given.
  PackedFileWriter(std::filesystem::path target, int dim, std::vector<FieldInfo> fields,
                   bool directed = false);

  /// Identifies a mesh by its whole content (positions, node types, cells, and given edges).
  struct MeshKey {
    uint64_t low, high;
    auto operator<=>(const MeshKey&) const = default;
  };
  static MeshKey mesh_key(const PackedMesh& mesh, std::span<const int32_t> given_edges);
  /// The mesh's number, or -1 when it is not in the file yet.
  int64_t find_mesh(const MeshKey& key) const;
  /// Writes a mesh that is not in the file yet; its number.
  int64_t add_mesh(const MeshKey& key, const PackedMesh& mesh, const MeshEdges& edges);

  struct Trajectory {
    std::string name;
    std::string split;
    int64_t mesh = 0;
    int64_t frames = 0;
    int64_t first_frame = 0;
    double dt = 0;
    /// In schema order, each [frames, rows, components] with 1 frame when static; rows of an edge field are
    /// directed edges in the mesh's order.
    std::vector<FieldData> fields;
    std::vector<std::string> files = {};  ///< what it was read from, for the manifest
    std::vector<int64_t> lists = {};      ///< where these are the frames of lists: how many of each
    int64_t record = 0;                   ///< which trajectory of its file
    std::vector<double> times = {};       ///< of its frames, in seconds; empty: unknown
  };
  void add_trajectory(const Trajectory& trajectory);

  struct Summary {
    std::vector<SplitInfo> splits;
    int64_t meshes = 0;
    uint64_t bytes = 0;
  };
  /// Writes the index and puts the file in place. Trajectories are grouped by split, in the given order of
  /// splits (those not named follow), and keep their order within one. A run on the data repeats `warnings`.
  /// Throws DataError, before anything is replaced, for metadata that no reader would accept.
  Summary finish(const std::vector<std::string>& split_order, const DataStatistics& statistics,
                 const std::string& statistics_split, const std::string& source,
                 const std::vector<std::string>& warnings = {}, const PackedFrom& from = {});

  /// The rows that a field of mesh `mesh` has.
  RowCounts mesh_rows(int64_t mesh) const { return row_counts(meshes_[static_cast<size_t>(mesh)]); }

 private:
  /// A trajectory as the index has it.
  struct Entry {
    std::string split, name;
    std::vector<std::string> files;
    std::vector<int64_t> lists;
    int64_t number = 0;  ///< in its file
    std::vector<double> times;
    TrajectoryRecord record;
  };
  void write_manifest(const std::vector<const Entry*>& ordered, const PackedFrom& from);
  void write_index(const std::vector<const Entry*>& ordered, DataStatistics statistics);
  void add_source(const PackedMesh& mesh, int64_t number);
  uint64_t append_section(std::span<const std::byte> bytes);

  AtomicFile file_;
  PackedMetadata metadata_;
  std::vector<MeshRecord> meshes_;
  std::vector<SourceMeshRecord> source_meshes_;
  std::map<MeshKey, int64_t> mesh_numbers_;
  std::vector<Entry> trajectories_;
  std::vector<std::byte> section_;  ///< the section under construction
};

}  // namespace meshgrad
