// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/engine/offsets.h>
#include <meshgrad/train/data/cell_list.h>
#include <meshgrad/train/data/memory_data.h>
#include <meshgrad/train/data/mesh_edges.h>
#include <meshgrad/train/data/packed_file.h>

namespace meshgrad {
namespace {

static_assert(std::endian::native == std::endian::little, "packed files are mapped as they are");

constexpr const char* kCopyOrConvertFix = "copy the file again, or convert the data again";

template <class T>
std::span<const T> part(std::span<const std::byte> bytes, uint64_t offset, uint64_t count) {
  return {reinterpret_cast<const T*>(bytes.data() + offset), static_cast<size_t>(count)};
}

// The first number that is not in 0..limit - 1; empty where all are. Faults are texts for errors.
std::string find_outside(std::string_view what, std::span<const int32_t> numbers, uint64_t limit) {
  const auto at =
      std::ranges::find_if(numbers, [&](int32_t n) { return n < 0 || static_cast<uint64_t>(n) >= limit; });
  return at == numbers.end() ? "" : fmt::format("{} {} at {}", what, *at, at - numbers.begin());
}

// Every edge must have the receiver in whose range it lies. In sender_order, edges of one sender ascend and
// have it as their sender, so that it is a permutation; together all ends are existing nodes.
std::string find_misplaced_edge(const MeshView& mesh) {
  for (size_t n = 0; n < static_cast<size_t>(mesh.nodes); ++n) {
    for (int32_t e = mesh.receiver_offsets[n]; e < mesh.receiver_offsets[n + 1]; ++e) {
      if (mesh.receivers[static_cast<size_t>(e)] != static_cast<int32_t>(n))
        return fmt::format("edge {} of node {} to node {}", e, n, mesh.receivers[static_cast<size_t>(e)]);
    }
    for (int32_t i = mesh.sender_offsets[n]; i < mesh.sender_offsets[n + 1]; ++i) {
      const int32_t edge = mesh.sender_order[static_cast<size_t>(i)];
      if (mesh.senders[static_cast<size_t>(edge)] != static_cast<int32_t>(n))
        return fmt::format("edge {} of node {} from node {}", edge, n,
                           mesh.senders[static_cast<size_t>(edge)]);
      if (i > mesh.sender_offsets[n] && edge <= mesh.sender_order[static_cast<size_t>(i) - 1])
        return fmt::format("sender_order {} at {}, which does not ascend", edge, i);
    }
  }
  return {};
}

std::string find_fault(const MeshView& mesh, int64_t node_types) {
  const auto nodes = static_cast<uint64_t>(mesh.nodes);
  const auto edges = static_cast<uint64_t>(mesh.edges);
  std::string fault = find_outside("node_type", mesh.node_type, static_cast<uint64_t>(node_types));
  if (fault.empty()) fault = find_outside("cells", mesh.cells, nodes);
  if (fault.empty()) fault = find_outside("sender_order", mesh.sender_order, edges);
  const auto check = [&](const char* name, std::span<const int32_t> offsets) {
    if (!fault.empty()) return;
    if (const std::string found = find_offset_fault(offsets, mesh.edges); !found.empty())
      fault = fmt::format("{} {}", name, found);
  };
  check("receiver_offsets", mesh.receiver_offsets);
  check("sender_offsets", mesh.sender_offsets);
  return fault.empty() ? find_misplaced_edge(mesh) : fault;
}

std::string text_of(uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace

std::string PackedFile::where(std::string_view what) const {
  return path_.string() + ": " + std::string(what);
}

PackedFile::PackedFile(std::span<const std::byte> bytes, std::filesystem::path path)
    : bytes_(bytes), path_(std::move(path)) {
  read_header();
  read_trailer();
  read_description();
  start_checks();
}

void PackedFile::start_checks() {
  mesh_checked_ = std::vector<std::atomic<uint32_t>>(trailer_.mesh_count);
  last_use_ = std::vector<std::atomic<uint32_t>>(trailer_.trajectory_count);
  trajectory_checked_ = std::vector<std::atomic<uint32_t>>(trailer_.trajectory_count);
}

std::shared_ptr<const PackedFile> PackedFile::open(const std::filesystem::path& path) {
  MappedFile mapping(path);
  mapping.guard();
  const FileStamp stamp = mapping.file().stamp(path);
  std::shared_ptr<PackedFile> file(new PackedFile(mapping.bytes(), path));
  file->mapping_.emplace(std::move(mapping));
  file->stamp_ = stamp;
  return file;
}

std::shared_ptr<const PackedFile> PackedFile::from_bytes(std::span<const std::byte> bytes, std::string name) {
  return std::shared_ptr<const PackedFile>(new PackedFile(bytes, std::move(name)));
}

std::shared_ptr<const PackedFile> PackedFile::of_sizes(PackedMetadata metadata,
                                                       std::vector<MeshRecord> meshes,
                                                       std::vector<TrajectoryRecord> trajectories,
                                                       std::string name,
                                                       std::shared_ptr<const MemoryData> memory) {
  std::shared_ptr<PackedFile> file(new PackedFile(std::move(name)));
  file->metadata_ = std::move(metadata);
  file->meshes_ = std::move(meshes);
  file->trajectories_ = std::move(trajectories);
  file->trailer_.mesh_count = file->meshes_.size();
  file->trailer_.trajectory_count = file->trajectories_.size();
  file->memory_ = std::move(memory);
  file->start_checks();
  return file;
}

std::shared_ptr<const PackedFile> PackedFile::over(std::shared_ptr<const MemoryData> data) {
  PackedMetadata metadata;
  metadata.dim = data->dim;
  metadata.directed = data->directed;
  metadata.dt = data->dt;
  metadata.node_types = data->node_types;
  metadata.fields = data->fields;
  metadata.splits = data->splits;
  metadata.statistics_split = data->splits.empty() ? "train" : data->splits.front().name;
  std::vector<MeshRecord> meshes;
  for (const MemoryMesh& mesh : data->meshes) {
    MeshRecord& record = meshes.emplace_back();
    record.nodes = static_cast<uint32_t>(mesh.view.nodes);
    record.edges = static_cast<uint32_t>(mesh.view.edges);
    record.dim = static_cast<uint16_t>(data->dim);
  }
  std::vector<TrajectoryRecord> trajectories;
  for (const MemoryTrajectory& trajectory : data->trajectories) {
    TrajectoryRecord& record = trajectories.emplace_back();
    record.mesh = static_cast<uint32_t>(trajectory.mesh);
    record.frames = static_cast<uint32_t>(trajectory.frames);
    record.dt = data->dt;
  }
  return of_sizes(std::move(metadata), std::move(meshes), std::move(trajectories), "memory", std::move(data));
}

std::span<const std::byte> PackedFile::section(uint64_t offset, uint64_t bytes,
                                               const std::string& what) const {
  if (offset % kPackedAlignment != 0 || offset > bytes_.size() || bytes > bytes_.size() - offset) {
    throw data_error(where(what), "a place inside the file",
                     fmt::format("{} bytes at {} of {}", bytes, offset, bytes_.size()), kCopyOrConvertFix);
  }
  return bytes_.subspan(offset, bytes);
}

void PackedFile::read_header() {
  if (bytes_.size() < sizeof header_) {
    throw data_error(path_.string(), "a packed file (.mgd)", fmt::format("{} bytes", bytes_.size()),
                     kCopyOrConvertFix);
  }
  std::memcpy(&header_, bytes_.data(), sizeof header_);
  if (header_.magic != kPackedMagic) {
    throw data_error(
        path_.string(), "a packed file (.mgd)",
        fmt::format("a file that begins with the bytes {:02x}",
                    fmt::join(std::vector<uint8_t>(header_.magic.begin(), header_.magic.end()), " ")),
        "pack it first with `meshgrad convert`");
  }
  if (header_.version < kOldestPackedVersion || header_.version > kPackedVersion ||
      header_.trailer_bytes != sizeof trailer_) {
    throw data_error(path_.string(),
                     fmt::format("a packed file of version {} to {}", kOldestPackedVersion, kPackedVersion),
                     fmt::format("version {}", header_.version),
                     "convert the data again with this version of meshgrad");
  }
}

void PackedFile::read_trailer() {
  if (bytes_.size() < sizeof header_ + sizeof trailer_) {
    throw data_error(path_.string(), "a whole file", fmt::format("only {} bytes", bytes_.size()),
                     kCopyOrConvertFix);
  }
  std::memcpy(&trailer_, bytes_.data() + bytes_.size() - sizeof trailer_, sizeof trailer_);
  if (trailer_.magic != kPackedMagic || trailer_.file_bytes != bytes_.size() ||
      trailer_.trailer_hash != XXH3_64bits(&trailer_, sizeof trailer_ - sizeof trailer_.trailer_hash)) {
    throw data_error(path_.string(), "a whole file",
                     fmt::format("a file that is cut short or damaged at its end ({} bytes)", bytes_.size()),
                     kCopyOrConvertFix);
  }
}

void PackedFile::read_description() {
  const PackedTrailer& t = trailer_;
  // Counts are bounded before they are multiplied.
  if (t.mesh_count > bytes_.size() / sizeof(MeshRecord) ||
      t.trajectory_count > bytes_.size() / sizeof(TrajectoryRecord)) {
    throw data_error(where("index"), "records inside the file",
                     fmt::format("{} meshes and {} trajectories in {} bytes", t.mesh_count,
                                 t.trajectory_count, bytes_.size()),
                     kCopyOrConvertFix);
  }
  section(t.mesh_offset, t.mesh_count * sizeof(MeshRecord), "mesh index");
  section(t.trajectory_offset, t.trajectory_count * sizeof(TrajectoryRecord), "trajectory index");
  const auto meshes = part<MeshRecord>(bytes_, t.mesh_offset, t.mesh_count);
  meshes_.assign(meshes.begin(), meshes.end());
  const auto trajectories = part<TrajectoryRecord>(bytes_, t.trajectory_offset, t.trajectory_count);
  trajectories_.assign(trajectories.begin(), trajectories.end());
  const auto numbers = section(t.statistics_offset, t.statistics_bytes, "statistics");
  const auto text = section(t.metadata_offset, t.metadata_bytes, "metadata");
  const uint64_t hash =
      XXH3_64bits_withSeed(text.data(), text.size(), XXH3_64bits(numbers.data(), numbers.size()));
  check_same(hash, t.description_hash, "metadata");
  if (numbers.size() % sizeof(double) != 0) {
    throw data_error(where("statistics"), "numbers of 8 bytes", fmt::format("{} bytes", numbers.size()),
                     kCopyOrConvertFix);
  }
  metadata_ = metadata_from_json({reinterpret_cast<const char*>(text.data()), text.size()}, header_.version,
                                 where("metadata"));
  statistics_ = statistics_from_numbers(part<double>(numbers, 0, numbers.size() / sizeof(double)), metadata_,
                                        where("statistics"));
  read_source_meshes();
  int64_t next = 0;
  for (const SplitInfo& split : metadata_.splits) {
    if (split.first != next || split.count < 0 ||
        split.count > static_cast<int64_t>(t.trajectory_count) - split.first) {
      throw data_error(where("split " + split.name), "trajectories inside the file",
                       fmt::format("{} from {}", split.count, split.first), kCopyOrConvertFix);
    }
    next = split.first + split.count;
  }
}

// Places and sizes now, the content with the mesh.
void PackedFile::read_source_meshes() {
  const uint64_t count = trailer_.source_mesh_count;
  if (count > trailer_.mesh_count)
    throw data_error(where("index"), "a source for each mesh at most",
                     fmt::format("{} for {} meshes", count, trailer_.mesh_count), kCopyOrConvertFix);
  if (count > 0 && metadata_.dim == 0)
    throw data_error(where("index"), "no sources of meshes without positions", std::to_string(count),
                     kCopyOrConvertFix);
  section(trailer_.source_mesh_offset, count * sizeof(SourceMeshRecord), "index of source meshes");
  const auto records = part<SourceMeshRecord>(bytes_, trailer_.source_mesh_offset, count);
  source_records_.assign(records.begin(), records.end());
  constexpr uint32_t kMax = 0x7fffffffU;
  uint64_t next = 0;
  for (const SourceMeshRecord& record : source_records_) {
    const std::string what = fmt::format("source of mesh {}", record.mesh);
    const auto layout = source_mesh_layout(record, metadata_.dim);
    const auto data = section(record.offset, record.bytes, what);
    if (record.mesh < next || record.mesh >= trailer_.mesh_count || !layout ||
        layout->bytes != record.bytes || record.points > kMax || record.cells > kMax ||
        record.corners > kMax) {
      throw data_error(where(what), "a consistent record",
                       fmt::format("{} points, {} cells and {} corners in {} bytes", record.points,
                                   record.cells, record.corners, record.bytes),
                       kCopyOrConvertFix);
    }
    next = uint64_t{record.mesh} + 1;
    sources_.push_back(
        {part<float>(data, layout->points, uint64_t{record.points} * static_cast<uint64_t>(metadata_.dim)),
         part<int32_t>(data, layout->corners, record.corners),
         part<int32_t>(data, layout->ends, record.cells), part<uint8_t>(data, layout->types, record.cells)});
  }
}

std::string PackedFile::manifest() const {
  const ManifestPlace& place = metadata_.manifest;
  if (place.bytes == 0) return {};
  const auto text = section(place.offset, place.bytes, "manifest");
  std::string copy(reinterpret_cast<const char*>(text.data()), text.size());
  check_same(XXH3_64bits(copy.data(), copy.size()), place.hash, "manifest");
  return copy;
}

void PackedFile::check_source(const MeshView& mesh) const {
  if (mesh.source == nullptr) return;
  const SourceMesh& source = *mesh.source;
  const SourceMeshRecord& record = source_records_[static_cast<size_t>(mesh.source - sources_.data())];
  const std::string what = fmt::format("source of mesh {}", mesh.index);
  check_same(section_checksum(record, bytes_.subspan(record.offset, record.bytes)), record.checksum, what);
  const int64_t points = source.nodes_are_cells() ? int64_t{record.points} : mesh.nodes;
  const std::string fault = source.nodes_are_cells() && record.cells != mesh.nodes
                                ? fmt::format("{} cells for {} nodes", record.cells, mesh.nodes)
                                : find_cell_fault(source.corners, source.ends, source.types, points);
  if (!fault.empty()) throw data_error(where(what), "cells of existing points", fault, kCopyOrConvertFix);
}

void PackedFile::check_not_lost() const {
  if (!mapping_ || !mapping_->lost()) return;
  throw data_error(path_.string(), "to read the file while it is in use",
                   "pages that are gone: the file was cut short, or the disk failed",
                   "copy the file again, then resume the run");
}

void PackedFile::check_same(uint64_t found, uint64_t written, const std::string& what) const {
  if (found == written) return;
  check_not_lost();
  throw data_error(where(what), "the checksum " + text_of(written) + ", written with it",
                   text_of(found) + ": the content changed", kCopyOrConvertFix);
}

void PackedFile::check_unchanged() const {
  if (!mapping_) return;
  check_not_lost();
  const FileStamp now = mapping_->file().stamp(path_);
  const std::lock_guard lock(stamp_mutex_);
  const uint32_t use = uses_++;
  if (now == stamp_ && settled_) return;
  if (now.bytes < bytes_.size()) {
    throw data_error(path_.string(), fmt::format("the {} bytes it had when it was opened", bytes_.size()),
                     fmt::format("{} bytes, cut short", now.bytes),
                     "copy the file again, then resume the run");
  }
  // A write within the clock tick of the last one leaves the time as it is: until a second has passed without
  // a change, nothing stays checked.
  const auto clock = std::chrono::system_clock::now().time_since_epoch();
  const int64_t age = std::chrono::duration_cast<std::chrono::seconds>(clock).count() - now.seconds;
  settled_ = now == stamp_ && (age < 0 || age > 1);
  stamp_ = now;
  ++generation_;
  for (size_t i = 0; i < last_use_.size(); ++i)
    if (last_use_[i] + 1 >= use) check_trajectory(static_cast<int64_t>(i));
}

const MeshRecord& PackedFile::mesh_record(uint64_t index) const {
  if (index >= trailer_.mesh_count) {
    throw data_error(where("trajectories"), "numbers of meshes in the file", std::to_string(index),
                     kCopyOrConvertFix);
  }
  return meshes_[index];
}

const TrajectoryRecord& PackedFile::trajectory_record(int64_t index) const {
  return trajectories_[static_cast<size_t>(index)];
}

MeshView PackedFile::mesh(int64_t index) const {
  const auto at = static_cast<uint64_t>(index);
  check_internal(at < trailer_.mesh_count, "mesh index out of range");
  if (memory_ != nullptr) return memory_->meshes[at].view;
  const uint32_t generation = generation_;
  check_mesh(at);
  const MeshRecord& record = mesh_record(at);
  const auto data = bytes_.subspan(record.offset, record.bytes);
  const MeshLayout layout = *mesh_layout(record);
  MeshView view;
  view.index = index;
  view.file = path_.native();
  view.nodes = record.nodes;
  view.edges = record.edges;
  view.dim = record.dim;
  view.directed = metadata_.directed;
  view.cell_kind = static_cast<CellKind>(record.cell_kind);
  view.nodes_per_cell = nodes_per_cell(view.cell_kind);
  view.positions = part<float>(data, layout.positions, uint64_t{record.nodes} * record.dim);
  view.origin = record.origin;
  view.node_type = part<int32_t>(data, layout.node_type, record.nodes);
  view.senders = part<int32_t>(data, layout.senders, record.edges);
  view.receivers = part<int32_t>(data, layout.receivers, record.edges);
  view.receiver_offsets = part<int32_t>(data, layout.receiver_offsets, uint64_t{record.nodes} + 1);
  view.sender_offsets = part<int32_t>(data, layout.sender_offsets, uint64_t{record.nodes} + 1);
  view.sender_order = part<int32_t>(data, layout.sender_order, record.edges);
  view.cells =
      part<int32_t>(data, layout.cells, uint64_t{record.cells} * static_cast<uint64_t>(view.nodes_per_cell));
  const auto source = std::ranges::lower_bound(source_records_, at, {}, &SourceMeshRecord::mesh);
  if (source != source_records_.end() && source->mesh == at)
    view.source = &sources_[static_cast<size_t>(source - source_records_.begin())];
  if (mesh_checked_[at].load(std::memory_order_acquire) != generation) {
    if (const std::string fault = find_fault(view, metadata_.node_types); !fault.empty()) {
      throw data_error(where(fmt::format("mesh {}", at)), "edges and cells of existing nodes", fault,
                       kCopyOrConvertFix);
    }
    check_source(view);
    check_not_lost();
    mesh_checked_[at].store(generation, std::memory_order_release);
  }
  return view;
}

void PackedFile::check_mesh(uint64_t index) const {
  if (mesh_checked_[index].load(std::memory_order_acquire) == generation_) return;
  const std::string what = fmt::format("mesh {}", index);
  const MeshRecord& record = mesh_record(index);
  const auto data = section(record.offset, record.bytes, what);
  const auto layout = mesh_layout(record);
  constexpr uint32_t kMax = 0x7fffffffU;
  const bool finite = std::ranges::all_of(record.origin, [](double x) { return std::isfinite(x); });
  if (!finite || !layout || layout->bytes != record.bytes || record.dim != metadata_.dim ||
      record.nodes > kMax || record.edges > kMax || record.cells > kMax ||
      (record.cell_kind == 0 && record.cells != 0) || (record.dim == 0 && record.cell_kind != 0) ||
      record.cell_kind > static_cast<uint16_t>(CellKind::hexahedron)) {
    throw data_error(
        where(what), "a consistent record",
        fmt::format("{} nodes, {} edges and {} cells of kind {} in {}-D, in {} bytes", record.nodes,
                    record.edges, record.cells, record.cell_kind, record.dim, record.bytes),
        kCopyOrConvertFix);
  }
  check_same(section_checksum(record, data), record.checksum, what);
}

void PackedFile::check_trajectory(int64_t index) const {
  if (memory_ != nullptr) return;
  auto& checked = trajectory_checked_[static_cast<size_t>(index)];
  check_not_lost();
  const uint32_t generation = generation_;
  if (checked.load(std::memory_order_acquire) == generation) return;
  const TrajectoryRecord& record = trajectory_record(index);
  const std::string what = fmt::format("trajectory {} ({})", index, trajectory_name(index));
  const auto data = section(record.offset, record.bytes, what);
  if (record.mesh >= trailer_.mesh_count || record.frames == 0) {
    throw data_error(where(what), "a mesh of this file and frames", fmt::format("mesh {}", record.mesh),
                     kCopyOrConvertFix);
  }
  const auto layout =
      trajectory_layout(metadata_.fields, record.frames, row_counts(mesh_record(record.mesh)));
  if (!layout || layout->bytes != record.bytes) {
    throw data_error(where(what),
                     layout ? fmt::format("{} bytes", layout->bytes) : "frames that a file can hold",
                     fmt::format("{} frames in {} bytes", record.frames, record.bytes), kCopyOrConvertFix);
  }
  check_same(section_checksum(record, data), record.checksum, what);
  mesh(record.mesh);
  for (size_t f = 0; f < metadata_.fields.size(); ++f) {
    if (!metadata_.fields[f].node_split) continue;
    const auto nodes = part<int32_t>(data, layout->fields[f], mesh_record(record.mesh).nodes);
    const auto wrong = std::ranges::find_if(nodes, [](int32_t split) {
      return split < 0 || static_cast<size_t>(split) >= kNodeSplitNames.size();
    });
    if (wrong == nodes.end()) continue;
    throw data_error(where(what), "0 to 3 in the node split " + metadata_.fields[f].name,
                     fmt::format("{} at node {}", *wrong, wrong - nodes.begin()), kCopyOrConvertFix);
  }
  check_not_lost();
  checked.store(generation, std::memory_order_release);
}

const TrajectoryRecord& PackedFile::trajectory(int64_t index) const {
  last_use_[static_cast<size_t>(index)].store(uses_, std::memory_order_relaxed);
  check_trajectory(index);
  return trajectory_record(index);
}

FieldView PackedFile::field(int64_t trajectory_index, int64_t field_index) const {
  const TrajectoryRecord& record = trajectory(trajectory_index);
  const FieldInfo& info = metadata_.fields[static_cast<size_t>(field_index)];
  const RowCounts counts = row_counts(mesh_record(record.mesh));
  const auto memory = [&] {
    return memory_->trajectories[static_cast<size_t>(trajectory_index)]
        .fields[static_cast<size_t>(field_index)]
        .bytes;
  };
  const uint64_t offset =
      field_offset(metadata_.fields, static_cast<size_t>(field_index), record.frames, counts);
  const uint64_t frames = info.dynamic ? record.frames : 1;
  const uint64_t numbers = frames * counts.of(info.on) * static_cast<uint64_t>(info.components);
  FieldView view;
  view.name = info.name;
  view.on = info.on;
  view.dtype = info.dtype;
  view.components = info.components;
  view.frames = static_cast<int64_t>(frames);
  view.rows = static_cast<int64_t>(counts.of(info.on));
  view.dynamic = info.dynamic;
  view.bytes = memory_ != nullptr ? memory()
                                  : bytes_.subspan(record.offset + offset,
                                                   numbers * static_cast<uint64_t>(size_of(info.dtype)));
  if (info.dtype == DType::f32) view.values = part<float>(view.bytes, 0, view.bytes.size() / sizeof(float));
  return view;
}

void PackedFile::read_ahead(int64_t index) const {
  if (!mapping_ ||
      trajectory_checked_[static_cast<size_t>(index)].load(std::memory_order_relaxed) == generation_)
    return;
  const TrajectoryRecord& record = trajectory_record(index);
  if (record.offset > bytes_.size() || record.bytes > bytes_.size() - record.offset)
    return;                         // an error when the trajectory is read
  constexpr uint64_t kPage = 4096;  // or a part of a page, where pages are larger: then nothing happens
  const uint64_t begin = record.offset / kPage * kPage;
  ::posix_madvise(const_cast<std::byte*>(bytes_.data() + begin), record.offset + record.bytes - begin,
                  POSIX_MADV_WILLNEED);
}

std::string_view PackedFile::trajectory_name(int64_t index) const {
  const auto& name = trajectory_record(index).name;
  return {name.data(), static_cast<size_t>(std::find(name.begin(), name.end(), '\0') - name.begin())};
}

}  // namespace meshgrad
