// SPDX-License-Identifier: Apache-2.0
// The parts of the packed format that writer and reader share: layouts, checksums, metadata, statistics.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/data/json_fault.h>
#include <meshgrad/train/data/mesh_edges.h>
#include <meshgrad/train/data/packed_file.h>

namespace meshgrad {
namespace {

using Json = nlohmann::json;

constexpr const char* kConvertFix = "convert the data again";
constexpr std::string_view kNodeSplitRole = "node split";

// Adds parts of frames x rows x columns numbers, each aligned; remembers an overflow.
class LayoutBuilder {
 public:
  uint64_t add(uint64_t rows, uint64_t columns, uint64_t frames = 1, uint64_t number_bytes = 4) {
    const uint64_t start = bytes_;
    uint64_t size = 0;
    failed_ |= __builtin_mul_overflow(rows, columns, &size) || __builtin_mul_overflow(size, frames, &size) ||
               __builtin_mul_overflow(size, number_bytes, &size) ||
               __builtin_add_overflow(bytes_, size, &bytes_) ||
               __builtin_add_overflow(bytes_, kPackedAlignment - 1, &bytes_);
    bytes_ &= ~(kPackedAlignment - 1);
    return start;
  }
  uint64_t bytes() const { return bytes_; }
  bool failed() const { return failed_; }

 private:
  uint64_t bytes_ = 0;
  bool failed_ = false;
};

template <class Record>
uint64_t seeded_checksum(Record record, std::span<const std::byte> section) {
  record.checksum = 0;
  return XXH3_64bits_withSeed(section.data(), section.size(), XXH3_64bits(&record, sizeof record));
}

void put(std::vector<double>& numbers, const std::vector<Moments>& moments) {
  for (const Moments& m : moments) numbers.insert(numbers.end(), {m.count, m.mean, m.m2});
}
void put(std::vector<double>& numbers, const std::vector<ValueRange>& ranges) {
  for (const ValueRange& r : ranges) numbers.insert(numbers.end(), {r.count, r.min, r.max});
}

// Both are three numbers; returns the position after the last.
template <class Triple>
size_t take(std::span<const double> numbers, size_t at, std::vector<Triple>& triples) {
  for (Triple& triple : triples) {
    triple = {numbers[at], numbers[at + 1], numbers[at + 2]};
    at += 3;
  }
  return at;
}

std::vector<int32_t> groups_of(const FieldInfo& field, const PackedMetadata& metadata) {
  return field.on == FieldOn::node ? metadata.statistics_types : std::vector<int32_t>{0};
}

// How many statistics a field has.
uint64_t numbers_of(const FieldInfo& field, const PackedMetadata& metadata) {
  const uint64_t triples =
      (field.dtype == DType::f32 ? uint64_t{kQuantities} : 0) + (metadata.version > 1 ? 1 : 0);
  const uint64_t groups = field.on == FieldOn::node ? metadata.statistics_types.size() : 1;
  return 3 * triples * groups * static_cast<uint64_t>(field.components);
}

// Throws Json::type_error for anything but a whole number that is not negative.
int64_t whole_number(const Json& json) {
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(std::min<uint64_t>(json.get_ref<const Json::number_unsigned_t&>(), kMax));
}
int small_number(const Json& json) {
  return static_cast<int>(std::min<int64_t>(whole_number(json), std::numeric_limits<int>::max()));
}

// The position of a field's `key` in a list of names.
template <class Names>
size_t position_of(const Names& names, const Json& field, const char* key, std::string_view where) {
  const std::string name = field.at(key).get<std::string>();
  for (size_t i = 0; i < std::size(names); ++i) {
    if (names[i] == name) return i;
  }
  throw data_error(where, fmt::format("\"{}\" of a field as one of {}", key, fmt::join(names, ", ")),
                   "\"" + name + "\"", kConvertFix);
}

FieldInfo field_of(const Json& json, uint32_t version, std::string_view where) {
  FieldInfo field{json.at("name").get<std::string>(), small_number(json.at("components")),
                  json.at("dynamic").get<bool>(), json.at("unit").get<std::string>()};
  if (version == 1) return field;
  constexpr std::array<DType, 3> kDTypes{DType::f32, DType::i32, DType::i64};
  constexpr std::array<std::string_view, 3> kNames{name_of(DType::f32), name_of(DType::i32),
                                                   name_of(DType::i64)};
  field.on = static_cast<FieldOn>(position_of(kFieldOnNames, json, "on", where));
  field.dtype = kDTypes[position_of(kNames, json, "dtype", where)];
  if (json.contains("offset")) field.offset = json["offset"].get<std::vector<double>>();
  constexpr std::array<std::string_view, 1> kRoles{kNodeSplitRole};
  field.node_split = version > 3 && json.contains("role") && position_of(kRoles, json, "role", where) == 0;
  return field;
}

// The node types that statistics are of: in files before version 4 all that are counted.
std::vector<int32_t> statistics_types_of(const Json& json, const PackedMetadata& metadata,
                                         std::string_view where) {
  std::vector<int32_t> types;
  if (metadata.version > 3) {
    for (const Json& type : json.at("statistics_types")) types.push_back(small_number(type));
  } else {
    for (int32_t type = 0; type < metadata.node_types; ++type) types.push_back(type);
  }
  const auto falls = std::ranges::adjacent_find(types, std::greater_equal<>());
  if (falls == types.end() && (types.empty() || types.back() < metadata.node_types)) return types;
  throw data_error(where, fmt::format("ascending node types below {}", metadata.node_types),
                   falls == types.end() ? fmt::format("{}", types.back())
                                        : fmt::format("{} after {}", *std::next(falls), *falls),
                   kConvertFix);
}

PackedMetadata metadata_of(const Json& json, uint32_t version, std::string_view where) {
  constexpr int64_t kNodeTypesOfVersion1 = 9;
  PackedMetadata metadata;
  metadata.version = version;
  metadata.dim = small_number(json.at("dim"));
  metadata.directed = version > 3 && json.at("directed").get<bool>();
  metadata.dt = json.at("dt").get<double>();
  metadata.node_types = version == 1 ? kNodeTypesOfVersion1 : whole_number(json.at("node_types"));
  metadata.statistics_split = json.at("statistics_split").get<std::string>();
  metadata.source = json.at("source").get<std::string>();
  if (json.contains("warnings")) metadata.warnings = json["warnings"].get<std::vector<std::string>>();
  for (const Json& field : json.at("fields")) metadata.fields.push_back(field_of(field, version, where));
  for (const Json& split : json.at("splits")) {
    metadata.splits.push_back({split.at("name").get<std::string>(), whole_number(split.at("first")),
                               whole_number(split.at("count"))});
  }
  if (metadata.node_types < 1 || metadata.node_types > kMaxNodeTypes) {
    throw data_error(where, fmt::format("1 to {} node types", kMaxNodeTypes),
                     fmt::format("{}", metadata.node_types), kConvertFix);
  }
  metadata.statistics_types = statistics_types_of(json, metadata, where);
  if (version > 3 && json.contains("manifest")) {
    const Json& manifest = json["manifest"];
    metadata.manifest = {manifest.at("offset").get_ref<const Json::number_unsigned_t&>(),
                         manifest.at("bytes").get_ref<const Json::number_unsigned_t&>(),
                         manifest.at("hash").get_ref<const Json::number_unsigned_t&>()};
  }
  return metadata;
}

uint64_t add_field(LayoutBuilder& builder, const FieldInfo& field, uint64_t frames, const RowCounts& rows) {
  return builder.add(rows.of(field.on), static_cast<uint64_t>(field.components), field.dynamic ? frames : 1,
                     static_cast<uint64_t>(size_of(field.dtype)));
}

}  // namespace

bool is_packed_file(const std::filesystem::path& path) {
  return std::ranges::equal(read_file(path, kPackedMagic.size()), kPackedMagic);
}

std::optional<MeshLayout> mesh_layout(const MeshRecord& mesh) {
  LayoutBuilder builder;
  const uint64_t width = static_cast<uint64_t>(nodes_per_cell(static_cast<CellKind>(mesh.cell_kind)));
  MeshLayout layout{};
  layout.positions = builder.add(mesh.nodes, mesh.dim);
  layout.node_type = builder.add(mesh.nodes, 1);
  layout.senders = builder.add(mesh.edges, 1);
  layout.receivers = builder.add(mesh.edges, 1);
  layout.receiver_offsets = builder.add(uint64_t{mesh.nodes} + 1, 1);
  layout.sender_offsets = builder.add(uint64_t{mesh.nodes} + 1, 1);
  layout.sender_order = builder.add(mesh.edges, 1);
  layout.cells = builder.add(mesh.cells, width);
  layout.bytes = builder.bytes();
  if (builder.failed()) return std::nullopt;
  return layout;
}

std::optional<SourceMeshLayout> source_mesh_layout(const SourceMeshRecord& mesh, int dim) {
  LayoutBuilder builder;
  SourceMeshLayout layout{};
  layout.points = builder.add(mesh.points, static_cast<uint64_t>(dim));
  layout.corners = builder.add(mesh.corners, 1);
  layout.ends = builder.add(mesh.cells, 1);
  layout.types = builder.add(mesh.cells, 1, 1, 1);
  layout.bytes = builder.bytes();
  if (builder.failed()) return std::nullopt;
  return layout;
}

RowCounts row_counts(const MeshRecord& mesh) { return {mesh.nodes, mesh.edges, mesh.cells}; }

std::optional<TrajectoryLayout> trajectory_layout(const std::vector<FieldInfo>& fields, uint64_t frames,
                                                  const RowCounts& rows) {
  LayoutBuilder builder;
  TrajectoryLayout layout;
  for (const FieldInfo& field : fields) layout.fields.push_back(add_field(builder, field, frames, rows));
  layout.bytes = builder.bytes();
  if (builder.failed()) return std::nullopt;
  return layout;
}

uint64_t field_offset(const std::vector<FieldInfo>& fields, size_t field, uint64_t frames,
                      const RowCounts& rows) {
  LayoutBuilder builder;
  for (size_t before = 0; before < field; ++before) add_field(builder, fields[before], frames, rows);
  return add_field(builder, fields[field], frames, rows);
}

uint64_t section_checksum(MeshRecord record, std::span<const std::byte> section) {
  return seeded_checksum(record, section);
}
uint64_t section_checksum(SourceMeshRecord record, std::span<const std::byte> section) {
  return seeded_checksum(record, section);
}
uint64_t section_checksum(TrajectoryRecord record, std::span<const std::byte> section) {
  return seeded_checksum(record, section);
}

std::string metadata_to_json(const PackedMetadata& metadata) {
  Json json{{"dim", metadata.dim},
            {"directed", metadata.directed},
            {"dt", metadata.dt},
            {"node_types", metadata.node_types},
            {"statistics_types", metadata.statistics_types},
            {"statistics_split", metadata.statistics_split},
            {"source", metadata.source},
            {"fields", Json::array()},
            {"splits", Json::array()},
            {"warnings", metadata.warnings}};
  for (const FieldInfo& field : metadata.fields) {
    json["fields"].push_back({{"name", field.name},
                              {"components", field.components},
                              {"dynamic", field.dynamic},
                              {"unit", field.unit},
                              {"on", std::string(name_of(field.on))},
                              {"dtype", std::string(name_of(field.dtype))}});
    if (!field.offset.empty()) json["fields"].back()["offset"] = field.offset;
    if (field.node_split) json["fields"].back()["role"] = kNodeSplitRole;
  }
  for (const SplitInfo& split : metadata.splits) {
    json["splits"].push_back({{"name", split.name}, {"first", split.first}, {"count", split.count}});
  }
  if (const ManifestPlace& manifest = metadata.manifest; manifest.bytes > 0)
    json["manifest"] = {{"offset", manifest.offset}, {"bytes", manifest.bytes}, {"hash", manifest.hash}};
  // Names come from users' files; bytes that are not UTF-8 must not stop a conversion.
  return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

PackedMetadata metadata_from_json(std::string_view text, uint32_t version, std::string_view where) {
  PackedMetadata metadata;
  try {
    metadata = metadata_of(Json::parse(text), version, where);
  } catch (const Json::exception& error) {
    throw data_error(where, "the metadata of a packed file", json_fault(text, error), kConvertFix);
  }
  const int least = version > 3 ? 0 : 2;
  if (metadata.dim < least || metadata.dim > 3 || metadata.fields.size() > 4096) {
    throw data_error(where, fmt::format("{} to 3 dimensions and at most 4096 fields", least),
                     fmt::format("{} and {}", metadata.dim, metadata.fields.size()), kConvertFix);
  }
  for (const FieldInfo& field : metadata.fields) {
    if (field.components >= 1 && field.components <= 65535 &&
        (field.offset.empty() || std::cmp_equal(field.offset.size(), field.components)))
      continue;
    throw data_error(
        where, "fields of 1..65535 components, each with an offset or none",
        fmt::format("{} and {} offsets of {}", field.components, field.offset.size(), field.name),
        kConvertFix);
  }
  for (const FieldInfo& field : metadata.fields) {
    if (!field.node_split ||
        (field.on == FieldOn::node && field.dtype == DType::i32 && !field.dynamic && field.components == 1))
      continue;
    throw data_error(where, "a node split as a static i32 field of one component on nodes", field.name,
                     kConvertFix);
  }
  return metadata;
}

std::vector<double> statistics_to_numbers(const DataStatistics& statistics, std::span<const int32_t> types) {
  std::vector<double> numbers;
  for (const auto type : types) {
    const auto at = static_cast<size_t>(type);
    numbers.push_back(at < statistics.node_type_counts.size() ? statistics.node_type_counts[at] : 0.0);
  }
  for (const FieldMoments& field : statistics.fields) {
    for (int q = 0; q < kQuantities; ++q) put(numbers, field.moments(static_cast<Quantity>(q)));
    put(numbers, field.ranges());
  }
  put(numbers, statistics.edges);
  return numbers;
}

DataStatistics statistics_from_numbers(std::span<const double> numbers, const PackedMetadata& metadata,
                                       std::string_view where) {
  const size_t edge_components = edge_columns(metadata.dim);
  const std::vector<int32_t>& types = metadata.statistics_types;
  uint64_t expected = types.size() + edge_components * 3;
  for (const FieldInfo& field : metadata.fields) expected += numbers_of(field, metadata);
  if (numbers.size() != expected) {
    throw data_error(where, std::to_string(expected) + " statistics", std::to_string(numbers.size()),
                     kConvertFix);
  }
  DataStatistics statistics;
  statistics.node_type_counts.assign(static_cast<size_t>(metadata.node_types), 0.0);
  size_t at = 0;
  for (const int32_t type : types) statistics.node_type_counts[static_cast<size_t>(type)] = numbers[at++];
  for (const FieldInfo& info : metadata.fields) {
    FieldMoments& field = statistics.fields.emplace_back(info.components, info.dtype);
    field.hold(groups_of(info, metadata));
    if (metadata.version == 1) field.ranges().clear();
    for (int q = 0; q < kQuantities; ++q) at = take(numbers, at, field.moments(static_cast<Quantity>(q)));
    at = take(numbers, at, field.ranges());
  }
  statistics.edges.resize(edge_components);
  take(numbers, at, statistics.edges);
  return statistics;
}

}  // namespace meshgrad
