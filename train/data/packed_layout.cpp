// SPDX-License-Identifier: Apache-2.0
// The parts of the packed format that writer and reader share: layouts, checksums, metadata, statistics.
#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/packed_file.h>

namespace meshgrad {
namespace {

using Json = nlohmann::json;

constexpr const char* kConvertFix = "convert the data again";

// Adds parts of rows x columns numbers of 4 bytes, each aligned; remembers an overflow.
class LayoutBuilder {
 public:
  uint64_t add(uint64_t rows, uint64_t columns, uint64_t frames = 1) {
    const uint64_t start = bytes_;
    uint64_t size = 0;
    failed_ |= __builtin_mul_overflow(rows, columns, &size) || __builtin_mul_overflow(size, frames, &size) ||
               __builtin_mul_overflow(size, uint64_t{4}, &size) ||
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
uint64_t seeded_checksum(Record record, std::span<const std::byte> block) {
  record.checksum = 0;
  return XXH3_64bits_withSeed(block.data(), block.size(), XXH3_64bits(&record, sizeof record));
}

void put(std::vector<double>& numbers, const std::vector<Moments>& moments) {
  for (const Moments& m : moments) numbers.insert(numbers.end(), {m.count, m.mean, m.m2});
}

size_t take(std::span<const double> numbers, size_t at, std::vector<Moments>& moments) {
  for (Moments& m : moments) {
    m = {numbers[at], numbers[at + 1], numbers[at + 2]};
    at += 3;
  }
  return at;
}

// Throws Json::type_error for anything but a whole number that is not negative.
int64_t whole_number(const Json& json) {
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(std::min<uint64_t>(json.get_ref<const Json::number_unsigned_t&>(), kMax));
}
int small_number(const Json& json) {
  return static_cast<int>(std::min<int64_t>(whole_number(json), std::numeric_limits<int>::max()));
}

PackedMetadata metadata_of(const Json& json) {
  PackedMetadata metadata;
  metadata.dim = small_number(json.at("dim"));
  metadata.dt = json.at("dt").get<double>();
  metadata.statistics_split = json.at("statistics_split").get<std::string>();
  metadata.source = json.at("source").get<std::string>();
  for (const Json& field : json.at("fields")) {
    metadata.fields.push_back({field.at("name").get<std::string>(), small_number(field.at("components")),
                               field.at("dynamic").get<bool>(), field.at("unit").get<std::string>()});
  }
  for (const Json& split : json.at("splits")) {
    metadata.splits.push_back({split.at("name").get<std::string>(), whole_number(split.at("first")),
                               whole_number(split.at("count"))});
  }
  return metadata;
}

uint64_t add_field(LayoutBuilder& builder, const FieldInfo& field, uint64_t frames, uint64_t nodes) {
  return builder.add(nodes, static_cast<uint64_t>(field.components), field.dynamic ? frames : 1);
}

}  // namespace

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

std::optional<TrajectoryLayout> trajectory_layout(const std::vector<FieldInfo>& fields, uint64_t frames,
                                                  uint64_t nodes) {
  LayoutBuilder builder;
  TrajectoryLayout layout;
  for (const FieldInfo& field : fields) layout.fields.push_back(add_field(builder, field, frames, nodes));
  layout.bytes = builder.bytes();
  if (builder.failed()) return std::nullopt;
  return layout;
}

uint64_t field_offset(const std::vector<FieldInfo>& fields, size_t field, uint64_t frames, uint64_t nodes) {
  LayoutBuilder builder;
  for (size_t before = 0; before < field; ++before) add_field(builder, fields[before], frames, nodes);
  return add_field(builder, fields[field], frames, nodes);
}

uint64_t block_checksum(MeshRecord record, std::span<const std::byte> block) {
  return seeded_checksum(record, block);
}
uint64_t block_checksum(TrajectoryRecord record, std::span<const std::byte> block) {
  return seeded_checksum(record, block);
}

std::string metadata_to_json(const PackedMetadata& metadata) {
  Json json{
      {"dim", metadata.dim},       {"dt", metadata.dt},       {"statistics_split", metadata.statistics_split},
      {"source", metadata.source}, {"fields", Json::array()}, {"splits", Json::array()}};
  for (const FieldInfo& field : metadata.fields) {
    json["fields"].push_back({{"name", field.name},
                              {"components", field.components},
                              {"dynamic", field.dynamic},
                              {"unit", field.unit}});
  }
  for (const SplitInfo& split : metadata.splits) {
    json["splits"].push_back({{"name", split.name}, {"first", split.first}, {"count", split.count}});
  }
  // Names come from users' files; bytes that are not UTF-8 must not stop a conversion.
  return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

PackedMetadata metadata_from_json(std::string_view text, std::string_view where) {
  PackedMetadata metadata;
  try {
    metadata = metadata_of(Json::parse(text));
  } catch (const Json::exception& error) {
    throw data_error(where, "the metadata of a packed file", error.what(), kConvertFix);
  }
  const bool fields_fit =
      std::all_of(metadata.fields.begin(), metadata.fields.end(),
                  [](const FieldInfo& field) { return field.components >= 1 && field.components <= 65535; });
  if (metadata.dim < 2 || metadata.dim > 3 || !fields_fit || metadata.fields.size() > 4096) {
    throw data_error(where, "2 or 3 dimensions and fields of 1..65535 components", "others", kConvertFix);
  }
  return metadata;
}

std::vector<double> statistics_to_numbers(const DataStatistics& statistics) {
  std::vector<double> numbers(statistics.node_type_counts.begin(), statistics.node_type_counts.end());
  for (const FieldMoments& field : statistics.fields) put(numbers, field.moments);
  put(numbers, statistics.edges);
  return numbers;
}

DataStatistics statistics_from_numbers(std::span<const double> numbers, const PackedMetadata& metadata,
                                       std::string_view where) {
  const auto edge_components = static_cast<size_t>(metadata.dim) + 1;
  size_t expected = kNodeTypes + edge_components * 3;
  for (const FieldInfo& field : metadata.fields) {
    expected += static_cast<size_t>(kQuantities * kNodeTypes * 3) * static_cast<size_t>(field.components);
  }
  if (numbers.size() != expected) {
    throw data_error(where, std::to_string(expected) + " statistics", std::to_string(numbers.size()),
                     kConvertFix);
  }
  DataStatistics statistics;
  std::copy_n(numbers.begin(), kNodeTypes, statistics.node_type_counts.begin());
  size_t at = kNodeTypes;
  for (const FieldInfo& field : metadata.fields) {
    at = take(numbers, at, statistics.fields.emplace_back(field.components).moments);
  }
  statistics.edges.resize(edge_components);
  take(numbers, at, statistics.edges);
  return statistics;
}

}  // namespace meshgrad
