// SPDX-License-Identifier: Apache-2.0
// Packed files: raw, and with every checksum made right again, so that the checks after them have to hold.
#include <meshgrad/train/data/packed_file.h>
#include <xxhash.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "fuzz/fuzz.h"

using namespace meshgrad;

namespace {

template <class T>
T load(std::span<const std::byte> file, uint64_t offset) {
  T value;
  std::memcpy(&value, file.data() + offset, sizeof value);
  return value;
}

template <class T>
void store(std::span<std::byte> file, uint64_t offset, const T& value) {
  std::memcpy(file.data() + offset, &value, sizeof value);
}

bool inside(std::span<const std::byte> file, uint64_t offset, uint64_t bytes) {
  return offset <= file.size() && bytes <= file.size() - offset;
}

template <class Record>
void fix_records(std::span<std::byte> file, uint64_t offset, uint64_t count) {
  for (uint64_t i = 0; i < count && inside(file, offset, (i + 1) * sizeof(Record)); ++i) {
    const uint64_t at = offset + i * sizeof(Record);
    auto record = load<Record>(file, at);
    if (!inside(file, record.offset, record.bytes)) continue;
    record.checksum = section_checksum(record, file.subspan(record.offset, record.bytes));
    store(file, at, record);
  }
}

void fix_checksums(std::span<std::byte> file) {
  const uint64_t at = file.size() - sizeof(PackedTrailer);
  auto trailer = load<PackedTrailer>(file, at);
  // Versions that are read stay what they are; anything else becomes the newest.
  PackedHeader header;
  const uint32_t version = load<PackedHeader>(file, 0).version;
  if (version >= kOldestPackedVersion && version < kPackedVersion) header.version = version;
  store(file, 0, header);
  fix_records<MeshRecord>(file, trailer.mesh_offset, trailer.mesh_count);
  fix_records<SourceMeshRecord>(file, trailer.source_mesh_offset, trailer.source_mesh_count);
  fix_records<TrajectoryRecord>(file, trailer.trajectory_offset, trailer.trajectory_count);
  trailer.magic = kPackedMagic;
  trailer.file_bytes = file.size();
  if (inside(file, trailer.statistics_offset, trailer.statistics_bytes) &&
      inside(file, trailer.metadata_offset, trailer.metadata_bytes)) {
    const uint64_t seed =
        XXH3_64bits(file.data() + trailer.statistics_offset, static_cast<size_t>(trailer.statistics_bytes));
    trailer.description_hash = XXH3_64bits_withSeed(file.data() + trailer.metadata_offset,
                                                    static_cast<size_t>(trailer.metadata_bytes), seed);
  }
  trailer.trailer_hash = XXH3_64bits(&trailer, sizeof trailer - sizeof trailer.trailer_hash);
  store(file, at, trailer);
}

// Follows every index as training does.
void read_trajectory(const PackedFile& file, int64_t index) {
  const MeshView mesh = file.mesh(file.trajectory(index).mesh);
  double sum = std::accumulate(mesh.positions.begin(), mesh.positions.end(), 0.0);
  for (const int32_t sender : mesh.senders) sum += mesh.node_type[static_cast<size_t>(sender)];
  for (const int32_t edge : mesh.sender_order) sum += mesh.receivers[static_cast<size_t>(edge)];
  for (const int32_t node : mesh.cells) sum += static_cast<double>(mesh.positions[static_cast<size_t>(node)]);
  if (mesh.source != nullptr) {
    const auto points = mesh.source->nodes_are_cells() ? mesh.source->points : mesh.positions;
    for (const int32_t corner : mesh.source->corners)
      sum += static_cast<double>(points[static_cast<size_t>(corner) * static_cast<size_t>(mesh.dim)]);
    for (const int32_t end : mesh.source->ends)
      if (end > static_cast<int32_t>(mesh.source->corners.size())) __builtin_trap();
  }
  for (size_t f = 0; f < file.metadata().fields.size(); ++f) {
    const FieldView field = file.field(index, static_cast<int64_t>(f));
    if (file.metadata().fields[f].node_split)
      for (const int32_t split : std::span(reinterpret_cast<const int32_t*>(field.bytes.data()),
                                           field.bytes.size() / sizeof(int32_t)))
        sum += static_cast<double>(kNodeSplitNames.at(static_cast<size_t>(split)).size());
    if (field.bytes.size() !=
        static_cast<uint64_t>(field.frames * field.rows * field.components * size_of(field.dtype))) {
      __builtin_trap();
    }
    sum = std::accumulate(field.values.begin(), field.values.end(), sum);
    for (const std::byte byte : field.bytes) sum += std::to_integer<int>(byte);
  }
  [[maybe_unused]] volatile double kept = sum;
}

void read_all(std::span<const std::byte> bytes) {
  fuzz::expect_value_or_error([&] {
    const auto file = PackedFile::from_bytes(bytes, "fuzz.mgd");
    fuzz::expect_value_or_error([&] { file->manifest(); });
    for (int64_t i = 0; i < static_cast<int64_t>(file->trailer().trajectory_count); ++i) {
      fuzz::expect_value_or_error([&] { read_trajectory(*file, i); });
    }
  });
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Exactly as long as the input, so that a read past its end is seen; malloc aligns as a mapping would.
  std::vector<std::byte> copy(size);
  if (size > 0) std::memcpy(copy.data(), data, size);
  read_all(copy);
  if (size >= sizeof(PackedHeader) + sizeof(PackedTrailer)) {
    fix_checksums(copy);
    read_all(copy);
  }
  return 0;
}
