// SPDX-License-Identifier: Apache-2.0
// A packed data set (.mgd), memory-mapped: meshes with sorted edges, fields over time, splits, statistics.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <meshgrad/train/data/field_info.h>

#pragma GCC visibility push(default)
namespace meshgrad {

class MadeEdges;
class PackedFile;
struct MemoryData;
struct MeshEdges;

/// Which edges are made of a mesh's own (made_edges.h); with the defaults those of the file are used.
struct MeshEdgeOptions {
  std::array<double, 3> period{};  ///< of the domain along each axis; 0: not periodic
  int64_t hops = 1;                ///< edges join nodes that are at most so many edges apart
  bool periodic() const { return period != std::array<double, 3>{}; }
  bool operator==(const MeshEdgeOptions&) const = default;
};

struct SplitInfo {
  std::string name;
  int64_t first = 0;  ///< index of its first trajectory within the file
  int64_t count = 0;
};

/// The cells of the source where a mesh does not have them: the polygons of its nodes, or the mesh around a
/// graph on cells. For files and pictures.
struct SourceMesh {
  std::span<const float> points;     ///< [points, dim], less the mesh's origin; empty: the nodes of the mesh
  std::span<const int32_t> corners;  ///< points of all cells, one cell after another
  std::span<const int32_t> ends;     ///< [cells]: where a cell's corners end
  std::span<const uint8_t> types;    ///< [cells]: VTK's numbers of their types

  /// Whether the nodes of the mesh are these cells, in this order.
  bool nodes_are_cells() const { return !points.empty(); }
};

/// A mesh inside the mapped file; valid as long as the Dataset it came from (or a copy of it) lives.
/// Edges are directed and sorted by (receiver, sender). Unless `directed`, they are unique, no loops, and
/// each connection appears both ways.
struct MeshView {
  int64_t index = 0;  ///< number of this mesh within the file; trajectories on one mesh share it
  int64_t nodes = 0;
  int64_t edges = 0;
  int dim = 0;            ///< 0 (no positions) to 3
  bool directed = false;  ///< edges are as they were given: perhaps one way, loops, several between two nodes
  CellKind cell_kind = CellKind::none;
  int nodes_per_cell = 0;                     ///< of cell_kind; 0 when there are no cells
  std::span<const float> positions;           ///< [nodes, dim], less `origin`
  std::array<double, 3> origin{};             ///< positions of the data are `positions` plus this
  std::span<const int32_t> node_type;         ///< [nodes], 0 <= type < Dataset::node_types()
  std::span<const int32_t> senders;           ///< [edges]
  std::span<const int32_t> receivers;         ///< [edges], ascending
  std::span<const int32_t> receiver_offsets;  ///< [nodes + 1]: edges of receiver n are [n], [n + 1] - 1
  std::span<const int32_t> sender_offsets;    ///< [nodes + 1] into sender_order
  std::span<const int32_t> sender_order;      ///< [edges]: edge numbers sorted by sender, then by number
  std::span<const int32_t> cells;             ///< [cells, nodes_per_cell]; empty when edges were given
  std::string_view file;                      ///< where it was read from, for errors
  std::array<double, 3> period{};  ///< relative positions are those of the nearest image; 0: not periodic
  std::shared_ptr<const MeshEdges> made = {};  ///< the edges, where they are not the file's: perhaps one way
  std::span<const int32_t> given_senders;      ///< the file's edges, where they are not those of `made`
  std::span<const int32_t> given_receivers;
  const SourceMesh* source = nullptr;  ///< null: `cells` are those of the source
  /// [nodes]: MeshEdges::points, the node that stands for all periodic images of a point; or, of a part of a
  /// mesh, the number by which all ranks know the node. Empty: each node has its own.
  std::span<const int32_t> points = {};

  /// Nodes of one number have the same noise.
  size_t point_of(size_t node) const { return points.empty() ? node : static_cast<size_t>(points[node]); }
  int64_t cell_count() const {
    return nodes_per_cell == 0 ? 0 : static_cast<int64_t>(cells.size()) / nodes_per_cell;
  }
};

/// One field of one trajectory: [frames, rows, components] of its dtype, less FieldInfo::offset.
struct FieldView {
  std::string_view name;
  FieldOn on = FieldOn::node;
  DType dtype = DType::f32;
  int components = 0;
  int64_t frames = 0;  ///< 1 when the field is static
  int64_t rows = 0;    ///< nodes, directed edges, cells, or 1 for the graph
  bool dynamic = true;
  std::span<const std::byte> bytes;  ///< all frames
  std::span<const float> values;     ///< the same; empty unless dtype is f32

  /// [rows, components] at time index t of an f32 field; a static field gives its one frame for every t.
  /// Throws InvalidArgument when t is out of range or the dtype is another.
  std::span<const float> frame(int64_t t) const { return frame_of<float>(t); }
  /// Likewise for T = float (f32), int32_t (i32) or int64_t (i64).
  template <class T>
  std::span<const T> frame_of(int64_t t) const;
};

/// One trajectory; a light view, valid as long as the Dataset it came from (or a copy of it) lives.
class TrajectoryView {
 public:
  std::string_view name() const;            ///< where it came from: "train.tfrecord: record 3"
  int64_t index() const { return index_; }  ///< within the file
  int64_t frames() const;
  int64_t first_frame() const;  ///< of the recorded trajectory; > 0 where it was split by time
  double dt() const;            ///< seconds between frames; 0 when unknown
  const MeshView& mesh() const { return mesh_; }
  /// Throws ConfigError naming the fields that exist.
  FieldView field(std::string_view name) const;
  /// By position in Dataset::fields().
  FieldView field(int64_t field_index) const;
  /// [nodes]: a NodeSplit for each node, as a number. Throws ConfigError naming the node splits that exist.
  std::span<const int32_t> node_split(std::string_view name) const;
  /// A stable identity of a sample: index within the file * 2^32 + frame.
  uint64_t sample_id(int64_t frame) const {
    return (static_cast<uint64_t>(index_) << 32U) + static_cast<uint64_t>(frame);
  }

 private:
  friend class Dataset;
  TrajectoryView(const PackedFile* file, const MadeEdges* made, int64_t index);
  const PackedFile* file_;
  int64_t index_;
  MeshView mesh_;
};

/// A set of node types.
class NodeTypeSet {
 public:
  NodeTypeSet(std::initializer_list<int64_t> types) : types_(types) {}
  explicit NodeTypeSet(std::span<const int64_t> types) : types_(types.begin(), types.end()) {}
  static NodeTypeSet all();
  bool contains(int64_t type) const;

 private:
  std::vector<int64_t> types_;
  bool all_ = false;
};

/// Per component, over the training split.
struct FieldStatistics {
  double count = 0;          ///< values per component; 0: no such node, then all others are 0
  std::vector<double> mean;  ///< empty for integers
  std::vector<double> std;   ///< of the population; empty for integers
  std::vector<double> min;   ///< of values; empty for changes, and in a packed file of version 1
  std::vector<double> max;
};

/// A packed data set. Copies share one mapping; all calls are safe from several threads.
class Dataset {
 public:
  /// Maps the file and reads its header; the cost does not depend on the amount of data.
  /// Throws DataError when the file is missing, of another kind or version, cut short or damaged.
  static Dataset open(const std::filesystem::path& path);
  /// A data set of which only sizes are known, for memory plans: one trajectory of `frames` in `split`, on a
  /// mesh in `dim` dimensions. Reading values throws DataError.
  static Dataset of_sizes(int64_t nodes, int64_t edges, int dim, std::vector<FieldInfo> fields,
                          int64_t frames, std::string split);
  /// Meshes and fields in memory (memory_data.h). Without statistics, and nothing is verified.
  static Dataset over(std::shared_ptr<const MemoryData> data);

  /// The same data, whose meshes have edges that are made when they are first asked for. Copies share them.
  /// Sizes without data and meshes in memory stay as they are. Throws ConfigError for a period along an axis
  /// that the data does not have, and for directed edges.
  Dataset with_edges(const MeshEdgeOptions& options) const;

  const std::filesystem::path& path() const;
  const std::vector<SplitInfo>& splits() const;
  const std::vector<FieldInfo>& fields() const;
  const std::string& source() const;  ///< what was converted, for people
  /// What the conversion found that makes results on this data doubtful; a run repeats it.
  const std::vector<std::string>& warnings() const;
  int dim() const;               ///< of positions, 1 to 3; 0: the graphs have none
  bool directed() const;         ///< MeshView::directed of all meshes
  double dt() const;             ///< of the first trajectory; 0 when unknown
  int64_t trajectories() const;  ///< of all splits
  int64_t meshes() const;        ///< distinct ones
  uint64_t bytes() const;        ///< size of the file
  /// A value that changes with any content: checkpoints keep it to recognise the data they were trained on.
  uint64_t fingerprint() const;

  bool has_split(std::string_view split) const;
  /// Number of trajectories. Throws ConfigError naming the splits that exist.
  int64_t size(std::string_view split) const;
  /// Throws ConfigError for an unknown split or field, saying which exist.
  const SplitInfo& split(std::string_view name) const;
  int64_t field_index(std::string_view name) const;
  const FieldInfo& field(std::string_view name) const;
  /// Names of the fields that split the nodes of each graph (TrajectoryView::node_split).
  std::vector<std::string> node_splits() const;
  /// What was read from where, as JSON (packed_file.h); empty where the file does not say it.
  std::string manifest() const;

  /// Trajectory i of a split, or of the file. The first touch verifies its checksum and that of its mesh,
  /// as does the first after check_unchanged saw a change, and throws DataError when one is wrong.
  TrajectoryView trajectory(std::string_view split, int64_t i) const;
  TrajectoryView trajectory(int64_t index) const;

  /// Throws DataError when the file was cut short since it was opened, or the content of a trajectory that
  /// was used since the last call but one has changed. To be called before results count. One system call.
  void check_unchanged() const;
  /// From now on the first touch of each trajectory verifies it again.
  void verify_again() const;

  /// Says that trajectory i of a split is needed soon, so that the system reads it from the disk in the
  /// background. Costs nothing when it was read before.
  void read_ahead(std::string_view split, int64_t i) const;

  /// Frames of trajectory i of a split; reads only the index and verifies nothing.
  int64_t frames(std::string_view split, int64_t i) const;
  /// The most nodes and the most edges that a mesh of a split has; likewise, unless edges are made.
  struct MeshSizes {
    int64_t nodes = 0, edges = 0;
  };
  MeshSizes largest_mesh(std::string_view split) const;
  /// Of the mesh of trajectory i of a split; likewise.
  MeshSizes mesh_sizes(std::string_view split, int64_t i) const;

  /// Over all rows and all frames (or pairs, or triples of frames) of the training split; of a field on
  /// nodes, over only the nodes of the named types. Integers have values, no changes. Values are those
  /// stored, less FieldInfo::offset.
  FieldStatistics field_stats(std::string_view name, const NodeTypeSet& types = NodeTypeSet::all(),
                              Quantity which = Quantity::value) const;
  /// Edge features [relative position (sender minus receiver), norm], over the training split's meshes, each
  /// counted once a trajectory; none where the graphs have no positions.
  FieldStatistics edge_stats() const;
  /// (frame, node) pairs of each type in the training split: [node_types()], or 9 in a file of version 1.
  const std::vector<double>& node_type_counts() const;
  /// One more than the largest node type of the file; of version 1, of its training split.
  int64_t node_types() const;
  /// The split the statistics were taken from: "train", or the first one when there is no "train".
  const std::string& statistics_split() const;

 private:
  explicit Dataset(std::shared_ptr<const PackedFile> file) : file_(std::move(file)) {}
  std::shared_ptr<const PackedFile> file_;
  std::shared_ptr<const MadeEdges> made_;  ///< null: the edges are the file's
};

}  // namespace meshgrad
#pragma GCC visibility pop
