// SPDX-License-Identifier: Apache-2.0
// The packed file (.mgd), byte by byte, and its reader. Little endian; every block starts at a multiple
// of 64.
//
//   header       64 bytes: PackedHeader
//   blocks       mesh and trajectory data, in any order
//   meshes       MeshRecord [mesh_count]
//   trajectories TrajectoryRecord [trajectory_count], grouped by split
//   statistics   double [..]: node type counts [9]; for each field [3 quantities, 9 types, components] x
//                (count, mean, m2); edges [dim + 1] x (count, mean, m2)
//   metadata     JSON: dim, fields, splits, statistics_split, source
//   trailer      the last 128 bytes: PackedTrailer, which says where the sections lie
//
// A mesh block holds positions, node_type, senders, receivers, receiver_offsets, sender_offsets, sender_order
// and cells; a trajectory block holds its fields in the order of the metadata. Their parts start at multiples
// of 64.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/data/statistics.h>
#include <meshgrad/train/io/mapped_file.h>

namespace meshgrad {

constexpr std::array<char, 8> kPackedMagic{'m', 'e', 's', 'h', 'g', 'r', 'd', '\n'};
constexpr uint32_t kPackedVersion = 1;
constexpr uint64_t kPackedAlignment = 64;

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
  std::array<uint8_t, 24> reserved{};
  std::array<char, 8> magic = kPackedMagic;
  uint64_t trailer_hash = 0;  ///< XXH3 of the 120 bytes before it
};

struct MeshRecord {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t checksum = 0;  ///< XXH3 of the block, seeded with XXH3 of this record with checksum 0
  uint32_t nodes = 0;
  uint32_t edges = 0;
  uint32_t cells = 0;
  uint16_t dim = 0;
  uint16_t cell_kind = 0;
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
static_assert(sizeof(MeshRecord) == 64 && sizeof(TrajectoryRecord) == 128);

/// What the metadata section says.
struct PackedMetadata {
  int dim = 0;
  double dt = 0;  ///< seconds, of the first trajectory; 0 when unknown
  std::vector<FieldInfo> fields;
  std::vector<SplitInfo> splits;
  std::string statistics_split;
  std::string source;  ///< what was converted, for people
};

/// Where the parts of a block start, relative to the block, and its size; nothing when it does not fit in 64
/// bits.
struct MeshLayout {
  uint64_t positions, node_type, senders, receivers, receiver_offsets, sender_offsets, sender_order, cells,
      bytes;
};
std::optional<MeshLayout> mesh_layout(const MeshRecord& mesh);
struct TrajectoryLayout {
  std::vector<uint64_t> fields;
  uint64_t bytes = 0;
};
std::optional<TrajectoryLayout> trajectory_layout(const std::vector<FieldInfo>& fields, uint64_t frames,
                                                  uint64_t nodes);
/// Where one field starts, of a trajectory whose layout is known to fit.
uint64_t field_offset(const std::vector<FieldInfo>& fields, size_t field, uint64_t frames, uint64_t nodes);

uint64_t block_checksum(MeshRecord record, std::span<const std::byte> block);
uint64_t block_checksum(TrajectoryRecord record, std::span<const std::byte> block);

std::string metadata_to_json(const PackedMetadata& metadata);
/// Throws DataError with `where` for anything that is not the metadata of a packed file.
PackedMetadata metadata_from_json(std::string_view text, std::string_view where);

std::vector<double> statistics_to_numbers(const DataStatistics& statistics);
/// Throws DataError with `where` when the count of numbers does not fit the fields.
DataStatistics statistics_from_numbers(std::span<const double> numbers, const PackedMetadata& metadata,
                                       std::string_view where);

/// The reader. Opening checks header, trailer, sections and metadata; a block is checked (bounds, checksum,
/// node numbers) the first time it is asked for. Never reads outside the bytes it was given, whatever they
/// are. Thread-safe. All faults are DataErrors naming the file.
class PackedFile {
 public:
  static std::shared_ptr<const PackedFile> open(const std::filesystem::path& path);
  /// Over borrowed bytes, aligned to 8, that outlive the object; `name` stands for the file in errors.
  static std::shared_ptr<const PackedFile> from_bytes(std::span<const std::byte> bytes, std::string name);

  const std::filesystem::path& path() const { return path_; }
  const PackedMetadata& metadata() const { return metadata_; }
  const DataStatistics& statistics() const { return statistics_; }
  const PackedTrailer& trailer() const { return trailer_; }

  /// Checks the mesh or the trajectory if that was not done yet; the index must be in range.
  MeshView mesh(int64_t index) const;
  const TrajectoryRecord& trajectory(int64_t index) const;
  /// The same without verifying anything: sizes alone.
  const TrajectoryRecord& trajectory_record(int64_t index) const;
  const MeshRecord& mesh_record(uint64_t index) const;
  /// Of a trajectory that was checked.
  FieldView field(int64_t trajectory_index, int64_t field_index) const;
  std::string_view trajectory_name(int64_t index) const;
  /// Asks the system to read a trajectory that was not yet checked, meanwhile; at once back, never an error.
  void read_ahead(int64_t index) const;

 private:
  PackedFile(std::span<const std::byte> bytes, std::filesystem::path path);
  void read_trailer();
  void read_description();
  void check_mesh(uint64_t index) const;
  void check_trajectory(int64_t index) const;
  std::span<const std::byte> block(uint64_t offset, uint64_t bytes, const std::string& what) const;
  std::string where(std::string_view part) const;

  std::optional<MappedFile> mapping_;
  std::span<const std::byte> bytes_;
  std::filesystem::path path_;
  PackedTrailer trailer_;
  PackedMetadata metadata_;
  DataStatistics statistics_;
  mutable std::vector<std::atomic<uint8_t>> mesh_checked_;
  mutable std::vector<std::atomic<uint8_t>> trajectory_checked_;
};

}  // namespace meshgrad
