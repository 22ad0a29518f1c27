// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/packed_file_writer.h>

namespace meshgrad {
namespace {

template <class T>
void copy_part(std::vector<std::byte>& section, uint64_t offset, std::span<const T> values) {
  if (!values.empty()) std::memcpy(section.data() + offset, values.data(), values.size_bytes());
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span<const T>(values));
}

uint32_t narrow(int64_t value, const char* what) {
  if (value < 0 || value > std::numeric_limits<int32_t>::max()) {
    throw data_error(what, "at most 2147483647", fmt::format("{}", value),
                     "cut the data into smaller pieces");
  }
  return static_cast<uint32_t>(value);
}

// The last 79 bytes (the record's number is at the end), cut between characters.
void copy_name(std::array<char, 80>& to, std::string_view name) {
  if (name.size() >= to.size()) name.remove_prefix(name.size() - to.size() + 1);
  while (!name.empty() && (static_cast<unsigned char>(name.front()) & 0xc0U) == 0x80U) name.remove_prefix(1);
  std::copy(name.begin(), name.end(), to.begin());
}

// The node types that statistics have; every field on nodes holds these, other fields the group 0.
std::vector<int32_t> hold_same_types(DataStatistics& statistics, const std::vector<FieldInfo>& fields) {
  std::vector<int32_t> types;
  for (size_t type = 0; type < statistics.node_type_counts.size(); ++type)
    if (statistics.node_type_counts[type] > 0) types.push_back(static_cast<int32_t>(type));
  for (size_t f = 0; f < fields.size(); ++f) {
    if (fields[f].on != FieldOn::node) continue;
    std::vector<int32_t> all;
    std::ranges::set_union(types, statistics.fields[f].groups(), std::back_inserter(all));
    types = std::move(all);
  }
  for (size_t f = 0; f < fields.size(); ++f)
    statistics.fields[f].hold(fields[f].on == FieldOn::node ? types : std::vector<int32_t>{0});
  return types;
}

}  // namespace

PackedFileWriter::PackedFileWriter(std::filesystem::path target, int dim, std::vector<FieldInfo> fields,
                                   bool directed)
    : file_(std::move(target)) {
  metadata_.dim = dim;
  metadata_.directed = directed;
  metadata_.fields = std::move(fields);
  const PackedHeader header;
  file_.write(std::as_bytes(std::span(&header, 1)));
}

uint64_t PackedFileWriter::append_section(std::span<const std::byte> bytes) {
  static constexpr std::array<std::byte, kPackedAlignment> kZeros{};
  const uint64_t offset = file_.size();
  file_.write(bytes);
  const uint64_t past = file_.size() % kPackedAlignment;
  if (past != 0) file_.write(std::span(kZeros).first(kPackedAlignment - past));
  return offset;
}

PackedFileWriter::MeshKey PackedFileWriter::mesh_key(const PackedMesh& mesh,
                                                     std::span<const int32_t> given_edges) {
  const std::array<uint64_t, 5> shape{static_cast<uint64_t>(mesh.dim), static_cast<uint64_t>(mesh.cell_kind),
                                      mesh.node_type.size(), mesh.cells.size(), given_edges.size()};
  MeshKey key{0, 0};
  const auto mix = [&](const void* data, size_t bytes) {
    const std::array<uint64_t, 2> seed{key.low, key.high};
    const XXH128_hash_t hash = XXH3_128bits_withSeed(data, bytes, XXH3_64bits(seed.data(), sizeof seed));
    key = {hash.low64 ^ (key.low * 3), hash.high64 ^ (key.high * 5)};
  };
  mix(shape.data(), sizeof shape);
  mix(mesh.origin.data(), sizeof mesh.origin);
  mix(mesh.positions.data(), mesh.positions.size_bytes());
  mix(mesh.node_type.data(), mesh.node_type.size_bytes());
  mix(mesh.cells.data(), mesh.cells.size_bytes());
  mix(given_edges.data(), given_edges.size_bytes());
  if (mesh.source_cells != nullptr) {
    const CellList& cells = *mesh.source_cells;
    mix(cells.corners.data(), cells.corners.size() * sizeof(int32_t));
    mix(cells.ends.data(), cells.ends.size() * sizeof(int32_t));
    mix(cells.types.data(), cells.types.size());
    mix(mesh.source_points.data(), mesh.source_points.size_bytes());
  }
  return key;
}

int64_t PackedFileWriter::find_mesh(const MeshKey& key) const {
  const auto found = mesh_numbers_.find(key);
  return found == mesh_numbers_.end() ? -1 : found->second;
}

int64_t PackedFileWriter::add_mesh(const MeshKey& key, const PackedMesh& mesh, const MeshEdges& edges) {
  check_internal(find_mesh(key) < 0, "a mesh was added twice");
  check_internal(mesh.dim == metadata_.dim, "meshes of the file's dimensions");
  MeshRecord record;
  record.nodes = narrow(static_cast<int64_t>(mesh.node_type.size()), "nodes of a mesh");
  record.edges = narrow(static_cast<int64_t>(edges.senders.size()), "edges of a mesh");
  const int width = nodes_per_cell(mesh.cell_kind);
  record.cells = width == 0 ? 0 : narrow(static_cast<int64_t>(mesh.cells.size()) / width, "cells of a mesh");
  record.dim = static_cast<uint16_t>(mesh.dim);
  record.cell_kind = static_cast<uint16_t>(mesh.cell_kind);
  record.origin = mesh.origin;
  const MeshLayout layout = mesh_layout(record).value();
  record.bytes = layout.bytes;
  section_.assign(layout.bytes, std::byte{0});
  copy_part(section_, layout.positions, mesh.positions);
  copy_part(section_, layout.node_type, mesh.node_type);
  copy_part<int32_t>(section_, layout.senders, edges.senders);
  copy_part<int32_t>(section_, layout.receivers, edges.receivers);
  copy_part<int32_t>(section_, layout.receiver_offsets, edges.receiver_offsets);
  copy_part<int32_t>(section_, layout.sender_offsets, edges.sender_offsets);
  copy_part<int32_t>(section_, layout.sender_order, edges.sender_order);
  if (width > 0) copy_part(section_, layout.cells, mesh.cells);
  record.offset = append_section(section_);
  record.checksum = section_checksum(record, section_);
  meshes_.push_back(record);
  for (const int32_t type : mesh.node_type) {
    check_internal(type >= 0 && type < kMaxNodeTypes, "node types in range");
    metadata_.node_types = std::max(metadata_.node_types, int64_t{type} + 1);
  }
  const auto number = static_cast<int64_t>(meshes_.size()) - 1;
  mesh_numbers_.emplace(key, number);
  if (mesh.source_cells != nullptr) add_source(mesh, number);
  return number;
}

void PackedFileWriter::add_source(const PackedMesh& mesh, int64_t number) {
  const CellList& cells = *mesh.source_cells;
  SourceMeshRecord record;
  record.mesh = static_cast<uint32_t>(number);
  record.points = narrow(std::ssize(mesh.source_points) / mesh.dim, "points of a mesh");
  record.cells = narrow(std::ssize(cells.ends), "cells of a mesh");
  record.corners = narrow(std::ssize(cells.corners), "corners of the cells of a mesh");
  const SourceMeshLayout layout = source_mesh_layout(record, mesh.dim).value();
  record.bytes = layout.bytes;
  section_.assign(layout.bytes, std::byte{0});
  copy_part(section_, layout.points, mesh.source_points);
  copy_part<int32_t>(section_, layout.corners, cells.corners);
  copy_part<int32_t>(section_, layout.ends, cells.ends);
  copy_part<uint8_t>(section_, layout.types, cells.types);
  record.offset = append_section(section_);
  record.checksum = section_checksum(record, section_);
  source_meshes_.push_back(record);
}

void PackedFileWriter::add_trajectory(const Trajectory& trajectory) {
  check_internal(trajectory.mesh >= 0 && static_cast<size_t>(trajectory.mesh) < meshes_.size() &&
                     trajectory.fields.size() == metadata_.fields.size(),
                 "a trajectory that does not fit the file");
  TrajectoryRecord record;
  record.mesh = static_cast<uint32_t>(trajectory.mesh);
  record.frames = narrow(trajectory.frames, "frames of a trajectory");
  record.first_frame = static_cast<uint64_t>(trajectory.first_frame);
  record.dt = trajectory.dt;
  copy_name(record.name, trajectory.name);
  const RowCounts rows = row_counts(meshes_[record.mesh]);
  const TrajectoryLayout layout = trajectory_layout(metadata_.fields, record.frames, rows).value();
  record.bytes = layout.bytes;
  section_.assign(layout.bytes, std::byte{0});
  for (size_t f = 0; f < metadata_.fields.size(); ++f) {
    const FieldInfo& info = metadata_.fields[f];
    const uint64_t frames = info.dynamic ? record.frames : 1;
    const uint64_t numbers = frames * rows.of(info.on) * static_cast<uint64_t>(info.components);
    const FieldData& data = trajectory.fields[f];
    check_internal(
        data.dtype == info.dtype && data.bytes.size() == numbers * static_cast<uint64_t>(size_of(info.dtype)),
        "a field of another size than its trajectory");
    copy_part(section_, layout.fields[f], data.bytes);
  }
  record.offset = append_section(section_);
  record.checksum = section_checksum(record, section_);
  trajectories_.push_back({trajectory.split, trajectory.name, trajectory.files, trajectory.lists,
                           trajectory.record, trajectory.times, record});
}

PackedFileWriter::Summary PackedFileWriter::finish(const std::vector<std::string>& split_order,
                                                   const DataStatistics& statistics,
                                                   const std::string& statistics_split,
                                                   const std::string& source,
                                                   const std::vector<std::string>& warnings,
                                                   const PackedFrom& from) {
  std::vector<std::string> names = split_order;
  for (const Entry& entry : trajectories_) {
    if (std::find(names.begin(), names.end(), entry.split) == names.end()) names.push_back(entry.split);
  }
  std::vector<const Entry*> ordered;
  ordered.reserve(trajectories_.size());
  for (const std::string& name : names) {
    const auto first = static_cast<int64_t>(ordered.size());
    for (const Entry& entry : trajectories_) {
      if (entry.split == name) ordered.push_back(&entry);
    }
    const int64_t count = static_cast<int64_t>(ordered.size()) - first;
    if (count > 0) metadata_.splits.push_back({name, first, count});
  }
  metadata_.dt = ordered.empty() ? 0.0 : ordered.front()->record.dt;
  metadata_.statistics_split = statistics_split;
  metadata_.source = source;
  metadata_.warnings = warnings;
  write_manifest(ordered, from);
  write_index(ordered, statistics);
  file_.commit();
  return {metadata_.splits, static_cast<int64_t>(meshes_.size()), file_.size()};
}

void PackedFileWriter::write_manifest(const std::vector<const Entry*>& ordered, const PackedFrom& from) {
  const bool known = std::ranges::any_of(ordered, [](const Entry* entry) { return !entry->files.empty(); });
  if (!known && from.read_as.empty()) return;
  nlohmann::ordered_json json{{"options", nlohmann::ordered_json::parse(from.options)},
                              {"read_as", from.read_as},
                              {"input", from.input}};
  nlohmann::ordered_json& trajectories = json["trajectories"] = nlohmann::ordered_json::array();
  for (const Entry* entry : ordered) {
    trajectories.push_back({{"name", entry->name},
                            {"split", entry->split},
                            {"record", entry->number},
                            {"first_frame", entry->record.first_frame},
                            {"frames", entry->record.frames},
                            {"dt", entry->record.dt},
                            {"times", entry->times},
                            {"files", entry->files}});
    if (!entry->lists.empty()) trajectories.back()["lists"] = entry->lists;
  }
  const std::string text = json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  metadata_.manifest.offset = append_section(std::as_bytes(std::span(text)));
  metadata_.manifest.bytes = text.size();
  metadata_.manifest.hash = XXH3_64bits(text.data(), text.size());
}

void PackedFileWriter::write_index(const std::vector<const Entry*>& ordered, DataStatistics statistics) {
  metadata_.node_types =
      std::max(metadata_.node_types, static_cast<int64_t>(statistics.node_type_counts.size()));
  metadata_.statistics_types = hold_same_types(statistics, metadata_.fields);
  std::vector<uint64_t> checksums;
  std::vector<TrajectoryRecord> records;
  checksums.reserve(meshes_.size() + ordered.size());
  for (const MeshRecord& mesh : meshes_) checksums.push_back(mesh.checksum);
  for (const Entry* entry : ordered) {
    records.push_back(entry->record);
    checksums.push_back(entry->record.checksum);
  }

  const std::vector<double> numbers = statistics_to_numbers(statistics, metadata_.statistics_types);
  const std::string text = metadata_to_json(metadata_);
  metadata_from_json(text, kPackedVersion, "the data to pack");
  PackedTrailer trailer;
  trailer.mesh_count = meshes_.size();
  trailer.mesh_offset = append_section(bytes_of(meshes_));
  trailer.trajectory_count = ordered.size();
  trailer.trajectory_offset = append_section(bytes_of(records));
  trailer.statistics_bytes = numbers.size() * sizeof(double);
  trailer.statistics_offset = append_section(bytes_of(numbers));
  trailer.metadata_bytes = text.size();
  trailer.metadata_offset = append_section(std::as_bytes(std::span(text)));
  trailer.source_mesh_count = source_meshes_.size();
  if (!source_meshes_.empty()) trailer.source_mesh_offset = append_section(bytes_of(source_meshes_));
  trailer.content_hash = XXH3_64bits(checksums.data(), checksums.size() * sizeof(uint64_t));
  trailer.description_hash =
      XXH3_64bits_withSeed(text.data(), text.size(), XXH3_64bits(numbers.data(), trailer.statistics_bytes));
  trailer.file_bytes = file_.size() + sizeof trailer;
  trailer.trailer_hash = XXH3_64bits(&trailer, sizeof trailer - sizeof trailer.trailer_hash);
  file_.write(std::as_bytes(std::span(&trailer, 1)));
}

}  // namespace meshgrad
