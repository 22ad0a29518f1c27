// SPDX-License-Identifier: Apache-2.0
// The packed file (.mgd), byte by byte, and its reader. Little endian; every section starts at a multiple of
// 64, and the bytes between sections are zeros.
//
//   header       64 bytes: PackedHeader
//   data         one section for each mesh, each source mesh and each trajectory, in any order
//   manifest     JSON, may be missing; see below
//   meshes       MeshRecord [meshes]
//   trajectories TrajectoryRecord [trajectories], grouped by split
//   statistics   f64 [..]; see below
//   metadata     JSON; see below
//   source meshes  SourceMeshRecord [source meshes], may be missing
//   trailer      the last 128 bytes: PackedTrailer, which says where the last four sections are
//
// A mesh's section holds, each part from a multiple of 64 (sizes from its MeshRecord):
//   positions         f32 [nodes, dim]   none where dim is 0: a graph without positions
//   node_type         i32 [nodes]        0 <= type < node_types
//   senders           i32 [edges]        sorted by (receiver, sender); parallel edges as in the input
//   receivers         i32 [edges]
//   receiver_offsets  i32 [nodes + 1]    edges of receiver n are [n], .., [n + 1] - 1
//   sender_offsets    i32 [nodes + 1]    into sender_order
//   sender_order      i32 [edges]        edge numbers by sender, then by number
//   cells             i32 [cells, nodes of a cell]   as in the input; none where edges were given
// Unless the file is "directed", each connection is there both ways, once, and no edge is a loop.
//
// Where a mesh does not have the cells of its source (polygons, a graph on cells), a source mesh has them.
// Its section holds, each part from a multiple of 64:
//   points           f32 [points, dim]  less the mesh's origin; none where the points are the mesh's nodes
//   corners          i32 [corners]      points of all cells; where there are points, cell i is node i
//   ends             i32 [cells]        where the corners of a cell end
//   types            u8 [cells]         VTK's numbers: 1 vertex, 3 line, 5 triangle, 7 polygon, 9 quad,
//                                       10 tetrahedron, 12 hexahedron, 13 wedge, 14 pyramid
// Programs of before do not look at them, and read the rest.
//
// A trajectory's section holds its fields in the order of the metadata, each from a multiple of 64, as
// [frames, rows, components] of the field's dtype; frames is 1 for a static field, and a trajectory of one
// frame is legal. Rows are the mesh's nodes, its directed edges in the order above, its cells, or 1 (graph).
//
// Metadata: {"dim": 0 to 3, "directed", "dt", "node_types", "statistics_types", "source", "statistics_split",
//   "fields": [{"name", "components", "dynamic", "unit", "on": "node" | "edge" | "cell" | "graph",
//               "dtype": "f32" | "i32" | "i64", "offset": [components], or missing where it is 0,
//               "role": "node split", or missing}],
//   "splits": [{"name", "first", "count"}], "warnings": [text], "manifest": {"offset", "bytes", "hash"}}
// "warnings" and "manifest" may be missing. node_types is one more than the largest node type in the file. A
// node split is a static i32 field of one component on nodes: 0 for a node in none of its splits, 1 train,
// 2 valid, 3 test. A file may have several.
//
// Statistics, of the split statistics_split, all f64; statistics_types are its node types, ascending:
//   node type counts [statistics_types]: (frame, node) pairs
//   for each field, with groups = statistics_types for a field on nodes, else 1:
//     (count, mean, m2) [3, groups, components], of floats only: value, change, second change (Quantity)
//     (count, min, max) [groups, components]: of values
//   edges [dim + 1] x (count, mean, m2): relative position (sender minus receiver), then its norm; none where
//     dim is 0
//
// The manifest says what was read from where: {"options": {name: value}, "read_as": {field or role: array of
//   the input}, "input": text, "trajectories": [{"name", "split", "record", "first_frame", "frames", "dt",
//   "times": [s], "files": [name], "lists": [count]}]}
// with trajectories in the file's order and their whole names; "input" identifies all that was read, "record"
// is a trajectory's number in its file, and times are those of its frames, where they are known. "lists" are
// those of its files that are frames, where each is a file: of several lists the fields are joined. "hash" is
// XXH3 of its text. Readers ignore keys that they do not know.
//
// Values of a field and positions of a mesh are stored less their offset (FieldInfo::offset,
// MeshRecord::origin), and so are statistics.
//
// Version 3 has 2 or 3 dimensions, statistics of all types below node_types, and neither "directed",
// "statistics_types", "role" nor "manifest". Version 2 is version 3 without offsets. Version 1 is version 2
// without "on" and "dtype" (fields are f32 on nodes), without "node_types" (they are 9), and without (count,
// min, max). They are read, and no longer written.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/data/mapped_file.h>
#include <meshgrad/train/data/statistics.h>

namespace meshgrad {

constexpr std::array<char, 8> kPackedMagic{'m', 'e', 's', 'h', 'g', 'r', 'd', '\n'};
constexpr uint32_t kPackedVersion = 4;
constexpr uint32_t kOldestPackedVersion = 1;
constexpr uint64_t kPackedAlignment = 64;

/// Whether a regular file begins with kPackedMagic; DataError where it cannot be read.
bool is_packed_file(const std::filesystem::path& path);

struct PackedHeader {
  std::array<char, 8> magic = kPackedMagic;
  uint32_t version = kPackedVersion;
  uint32_t trailer_bytes = 128;
  std::array<uint8_t, 48> reserved{};
};

struct PackedTrailer {
  uint64_t file_bytes = 0;
  uint64_t mesh_offset = 0;
  uint64_t mesh_count = 0;
  uint64_t trajectory_offset = 0;
  uint64_t trajectory_count = 0;
  uint64_t statistics_offset = 0;
  uint64_t statistics_bytes = 0;
  uint64_t metadata_offset = 0;
  uint64_t metadata_bytes = 0;
  uint64_t content_hash = 0;      ///< XXH3 over the checksums of all meshes and trajectories, in file order
  uint64_t description_hash = 0;  ///< XXH3 of statistics, then metadata
  uint64_t source_mesh_offset = 0;
  uint64_t source_mesh_count = 0;  ///< 0 in files of before
  std::array<uint8_t, 8> reserved{};
  std::array<char, 8> magic = kPackedMagic;
  uint64_t trailer_hash = 0;  ///< XXH3 of the 120 bytes before it
};

struct MeshRecord {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t checksum = 0;  ///< XXH3 of the section, seeded with XXH3 of this record with checksum 0
  uint32_t nodes = 0;
  uint32_t edges = 0;  ///< directed
  uint32_t cells = 0;
  uint16_t dim = 0;
  uint16_t cell_kind = 0;          ///< a CellKind; 0: no cells
  std::array<double, 3> origin{};  ///< positions of the data are the stored ones plus this
};

struct SourceMeshRecord {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t checksum = 0;  ///< as for a mesh
  uint32_t mesh = 0;      ///< whose source it is; ascends from record to record
  uint32_t points = 0;    ///< 0: they are the nodes of the mesh
  uint32_t cells = 0;
  uint32_t corners = 0;
  std::array<uint8_t, 24> reserved{};
};

struct TrajectoryRecord {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t checksum = 0;  ///< as for a mesh
  uint32_t mesh = 0;
  uint32_t frames = 0;
  uint64_t first_frame = 0;
  double dt = 0;                ///< seconds; 0 when unknown
  std::array<char, 80> name{};  ///< UTF-8, the last 79 bytes, padded with zeros
};

static_assert(sizeof(PackedHeader) == 64 && sizeof(PackedTrailer) == 128);
static_assert(sizeof(MeshRecord) == 64 && sizeof(SourceMeshRecord) == 64 && sizeof(TrajectoryRecord) == 128);

/// Where the manifest is; no bytes: there is none.
struct ManifestPlace {
  uint64_t offset = 0, bytes = 0, hash = 0;
};

/// What the metadata section says.
struct PackedMetadata {
  uint32_t version = kPackedVersion;  ///< from the header
  int dim = 0;
  bool directed = false;
  double dt = 0;  ///< seconds, of the first trajectory; 0 when unknown
  int64_t node_types = 1;
  std::vector<FieldInfo> fields;
  std::vector<SplitInfo> splits;
  std::string statistics_split;
  std::string source;                 ///< what was converted, for people
  std::vector<std::string> warnings;  ///< what a run on this data repeats when it starts
  std::vector<int32_t> statistics_types;
  ManifestPlace manifest;
};

/// Where the parts of a mesh's section start, relative to it, and its size; nothing when it does not fit in
/// 64 bits.
struct MeshLayout {
  uint64_t positions, node_type, senders, receivers, receiver_offsets, sender_offsets, sender_order, cells,
      bytes;
};
std::optional<MeshLayout> mesh_layout(const MeshRecord& mesh);
RowCounts row_counts(const MeshRecord& mesh);

/// Likewise of a source mesh in `dim` dimensions.
struct SourceMeshLayout {
  uint64_t points, corners, ends, types, bytes;
};
std::optional<SourceMeshLayout> source_mesh_layout(const SourceMeshRecord& mesh, int dim);

/// Where the fields of a trajectory's section start, relative to it, and its size; likewise.
struct TrajectoryLayout {
  std::vector<uint64_t> fields;
  uint64_t bytes = 0;
};
std::optional<TrajectoryLayout> trajectory_layout(const std::vector<FieldInfo>& fields, uint64_t frames,
                                                  const RowCounts& rows);
/// Where one field starts, of a trajectory whose layout is known to fit.
uint64_t field_offset(const std::vector<FieldInfo>& fields, size_t field, uint64_t frames,
                      const RowCounts& rows);

uint64_t section_checksum(MeshRecord record, std::span<const std::byte> section);
uint64_t section_checksum(SourceMeshRecord record, std::span<const std::byte> section);
uint64_t section_checksum(TrajectoryRecord record, std::span<const std::byte> section);

std::string metadata_to_json(const PackedMetadata& metadata);
/// Throws DataError with `where` for anything that is not the metadata of a packed file of that version.
PackedMetadata metadata_from_json(std::string_view text, uint32_t version, std::string_view where);

/// Every field on nodes must hold the groups `types`, other fields the group 0.
std::vector<double> statistics_to_numbers(const DataStatistics& statistics, std::span<const int32_t> types);
/// Throws DataError with `where` when the count of numbers does not fit the fields.
DataStatistics statistics_from_numbers(std::span<const double> numbers, const PackedMetadata& metadata,
                                       std::string_view where);

/// The reader. Opening checks header, trailer, index and metadata; the section of a mesh or a trajectory is
/// checked (bounds, checksum, node numbers) the first time it is asked for. Never reads outside the bytes it
/// was given, whatever they are. Thread-safe. All faults are DataErrors naming the file.
///
/// The file may change while it is open: users of views check node numbers, and call `check_unchanged` from
/// time to time. Pages that were lost (MappedFile::guard) are an error at the next access.
class PackedFile {
 public:
  static std::shared_ptr<const PackedFile> open(const std::filesystem::path& path);
  /// Over borrowed bytes, aligned to 8, that outlive the object; `name` stands for the file in errors.
  static std::shared_ptr<const PackedFile> from_bytes(std::span<const std::byte> bytes, std::string name);
  /// An index without sections: sizes can be asked for. Reading a mesh or a trajectory gives what `memory`
  /// holds, unchecked, and throws where that is null.
  static std::shared_ptr<const PackedFile> of_sizes(PackedMetadata metadata, std::vector<MeshRecord> meshes,
                                                    std::vector<TrajectoryRecord> trajectories,
                                                    std::string name,
                                                    std::shared_ptr<const MemoryData> memory = {});
  static std::shared_ptr<const PackedFile> over(std::shared_ptr<const MemoryData> data);

  const std::filesystem::path& path() const { return path_; }
  const PackedMetadata& metadata() const { return metadata_; }
  const DataStatistics& statistics() const { return statistics_; }
  const PackedTrailer& trailer() const { return trailer_; }
  /// The manifest, JSON; empty where there is none. Throws DataError where it is damaged.
  std::string manifest() const;
  /// False of only sizes, and of data in memory.
  bool has_sections() const { return !bytes_.empty(); }

  /// Compares size and modification time of the open file with what they were. After a change, everything
  /// that was used since the last call but one is checked again now, everything else when it is next asked
  /// for. One system call. Throws DataError when the file was cut short or its content changed.
  void check_unchanged() const;
  /// Every mesh and trajectory is checked again when it is next asked for.
  void verify_again() const { ++generation_; }

  /// Checks the mesh or the trajectory if that was not done yet; the index must be in range.
  MeshView mesh(int64_t index) const;
  const TrajectoryRecord& trajectory(int64_t index) const;
  /// The same without verifying anything: only sizes.
  const TrajectoryRecord& trajectory_record(int64_t index) const;
  const MeshRecord& mesh_record(uint64_t index) const;
  /// Of a trajectory that was checked.
  FieldView field(int64_t trajectory_index, int64_t field_index) const;
  std::string_view trajectory_name(int64_t index) const;
  /// Asks the system to read a trajectory that was not checked yet in the background. Returns at once and
  /// reports no errors.
  void read_ahead(int64_t index) const;

 private:
  explicit PackedFile(std::filesystem::path path) : path_(std::move(path)) {}
  PackedFile(std::span<const std::byte> bytes, std::filesystem::path path);
  void start_checks();
  void read_header();
  void read_trailer();
  void read_description();
  void read_source_meshes();
  void check_mesh(uint64_t index) const;
  /// Throws where the source of a mesh is damaged, or does not fit the mesh.
  void check_source(const MeshView& mesh) const;
  void check_trajectory(int64_t index) const;
  void check_not_lost() const;
  void check_same(uint64_t found, uint64_t written, const std::string& what) const;
  std::span<const std::byte> section(uint64_t offset, uint64_t bytes, const std::string& what) const;
  std::string where(std::string_view part) const;

  std::optional<MappedFile> mapping_;
  std::shared_ptr<const MemoryData> memory_;
  std::span<const std::byte> bytes_;
  std::filesystem::path path_;
  PackedHeader header_;
  PackedTrailer trailer_;
  PackedMetadata metadata_;
  DataStatistics statistics_;
  // Copies, so that places and sizes stay what they were when they were checked.
  std::vector<MeshRecord> meshes_;
  std::vector<TrajectoryRecord> trajectories_;
  std::vector<SourceMeshRecord> source_records_;  // by mesh
  std::vector<SourceMesh> sources_;               // of the records
  // The generation in which a section was last checked; 0: never.
  mutable std::atomic<uint32_t> generation_{1};
  mutable std::vector<std::atomic<uint32_t>> mesh_checked_;
  mutable std::vector<std::atomic<uint32_t>> trajectory_checked_;
  mutable std::vector<std::atomic<uint32_t>> last_use_;  // of trajectories: value of uses_
  mutable std::atomic<uint32_t> uses_{1};                // calls of check_unchanged
  mutable std::mutex stamp_mutex_;
  mutable FileStamp stamp_;
  mutable bool settled_ = false;
};

}  // namespace meshgrad
