// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <zip.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/sources/npy.h>
#include <meshgrad/train/data/sources/npz_source.h>
#include <meshgrad/train/data/value_offset.h>
#include <meshgrad/train/io/mapped_file.h>

namespace meshgrad {
namespace {

struct ZipCloser {
  void operator()(zip_t* archive) const { zip_discard(archive); }
};
struct ZipFileCloser {
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};
using ZipArchive = std::unique_ptr<zip_t, ZipCloser>;
using ZipFile = std::unique_ptr<zip_file_t, ZipFileCloser>;

DataError broken_zip(std::string_view where, std::string_view got) {
  return data_error(where, "an NPZ file (a zip of .npy arrays)", got,
                    "copy it again, or save it with numpy.savez");
}

ZipArchive open_zip(std::span<const std::byte> bytes, const std::string& name) {
  zip_error_t error;
  zip_error_init(&error);
  zip_t* archive = nullptr;
  if (zip_source_t* source = zip_source_buffer_create(bytes.data(), bytes.size(), 0, &error)) {
    archive = zip_open_from_source(source, ZIP_RDONLY, &error);
    if (archive == nullptr) zip_source_free(source);
  }
  const std::string text = archive == nullptr ? zip_error_strerror(&error) : "";
  zip_error_fini(&error);
  if (archive == nullptr) throw broken_zip(name, text);
  return ZipArchive(archive);
}

std::vector<std::byte> read_entry(zip_t* archive, zip_uint64_t index, const zip_stat_t& status,
                                  size_t file_bytes, const std::string& where) {
  constexpr zip_uint64_t kNeeded = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE;
  // Deflate packs at most 1032 : 1, so a larger claim is false; it also bounds what is allocated.
  if ((status.valid & kNeeded) != kNeeded || status.comp_size > file_bytes ||
      status.size / 1032 > status.comp_size + 1) {
    throw broken_zip(where, "an entry with a false size");
  }
  std::vector<std::byte> content(status.size);
  const ZipFile file(zip_fopen_index(archive, index, 0));
  if (file == nullptr) throw broken_zip(where, zip_strerror(archive));
  size_t got = 0;
  while (got < content.size()) {
    const zip_int64_t part = zip_fread(file.get(), content.data() + got, content.size() - got);
    if (part <= 0) throw broken_zip(where, "an entry that is cut short or damaged");
    got += static_cast<size_t>(part);
  }
  // The CRC of an entry is compared at its end.
  std::byte past{};
  if (zip_fread(file.get(), &past, 1) != 0) throw broken_zip(where, "an entry whose checksum is wrong");
  return content;
}

struct NpzEntry {
  std::string name;
  std::vector<std::byte> bytes;
  NpyArray array;
  bool numbers = true;  // false: text, dates, objects or records, of which `array` says nothing
};

bool is_mesh(std::string_view name) {
  return name == "mesh_pos" || name == "node_type" || name == "cells" || name == "mesh_edge";
}

// By the type in the header of a .npy file; false for what is no such file.
bool holds_no_numbers(std::span<const std::byte> file) {
  constexpr std::string_view kKey = "'descr': ";
  const std::string_view text(reinterpret_cast<const char*>(file.data()), std::min<size_t>(file.size(), 256));
  const size_t at = text.find(kKey);
  if (at == std::string_view::npos) return false;
  const std::string_view type = text.substr(at + kKey.size(), 3);
  return type.starts_with('[') ||
         (type.size() == 3 && std::string_view("USOVMm").find(type[2]) != std::string_view::npos);
}

/// Entries must not overlap, and their arrays be within a multiple of the file: either makes a small file
/// large.
void check_sizes(zip_t* archive, size_t file_bytes, const std::string& name) {
  constexpr uint64_t kFree = uint64_t{256} << 20;
  constexpr uint64_t kRatio = 100;
  uint64_t stored = 0, arrays = 0;
  const zip_int64_t count = zip_get_num_entries(archive, 0);
  for (zip_int64_t i = 0; i < count; ++i) {
    zip_stat_t status;
    zip_stat_init(&status);
    if (zip_stat_index(archive, static_cast<zip_uint64_t>(i), 0, &status) != 0) continue;  // read_npz says so
    stored += std::min<uint64_t>(status.comp_size, file_bytes + 1);
    arrays += std::min<uint64_t>(status.size, uint64_t{1} << 40);
    if (stored > file_bytes) throw broken_zip(name, "entries that overlap");
    if (arrays <= kFree + kRatio * file_bytes) continue;
    throw data_error(name,
                     fmt::format("arrays of at most {} MiB (256 MiB and {} times the file)",
                                 (kFree + kRatio * file_bytes) >> 20, kRatio),
                     "more", "check the file, or save it with numpy.savez, uncompressed");
  }
}

std::vector<NpzEntry> read_npz(std::span<const std::byte> bytes, const std::string& name) {
  const ZipArchive archive = open_zip(bytes, name);
  check_sizes(archive.get(), bytes.size(), name);
  const zip_int64_t count = zip_get_num_entries(archive.get(), 0);
  std::vector<NpzEntry> entries;
  for (zip_int64_t i = 0; i < count; ++i) {
    zip_stat_t status;
    zip_stat_init(&status);
    if (zip_stat_index(archive.get(), static_cast<zip_uint64_t>(i), 0, &status) != 0 ||
        (status.valid & ZIP_STAT_NAME) == 0) {
      throw broken_zip(name, zip_strerror(archive.get()));
    }
    NpzEntry entry;
    entry.name = status.name;
    if (!entry.name.ends_with(".npy")) continue;
    entry.name.resize(entry.name.size() - 4);
    const std::string where = fmt::format("{}: array {}", name, entry.name);
    entry.bytes = read_entry(archive.get(), static_cast<zip_uint64_t>(i), status, bytes.size(), where);
    entry.numbers = is_mesh(entry.name) || !holds_no_numbers(entry.bytes);
    if (entry.numbers) entry.array = parse_npy(entry.bytes, where);
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::string shape_text(const NpyArray& array) { return fmt::format("[{}]", fmt::join(array.shape, ", ")); }

// [rows, columns] of an array whose leading ones are dropped.
std::optional<std::pair<int64_t, int64_t>> as_matrix(const NpyArray& array) {
  std::vector<int64_t> shape = array.shape;
  while (shape.size() > 2 && shape.front() == 1) shape.erase(shape.begin());
  if (shape.size() == 1) return std::pair{shape[0], int64_t{1}};
  if (shape.size() != 2) return std::nullopt;
  return std::pair{shape[0], shape[1]};
}

class NpzReader {
 public:
  NpzReader(std::span<const std::byte> bytes, const std::string& name, const WarningCallback& warn)
      : entries_(read_npz(bytes, name)), name_(name), warn_(warn) {}

  RawTrajectory read() {
    RawTrajectory t;
    t.name = name_;
    read_positions(t);
    if (const NpzEntry* types = find("node_type")) {
      const std::vector<int64_t>& shape = types->array.shape;
      if (shape.size() > 1 && shape[0] > 1 && shape[1] == t.nodes) {
        throw over_frames(*types, "[nodes]: types that do not change over time");
      }
      const auto [rows, columns] = matrix(*types, "[nodes, 1]");
      if (rows * columns != t.nodes) throw wrong_shape(*types, fmt::format("{} node types", t.nodes));
      t.node_type = to_indices(types->array, where(*types));
    }
    if (const NpzEntry* cells = find("cells")) {
      t.nodes_per_cell =
          static_cast<int>(std::min<int64_t>(matrix(*cells, "[cells, nodes of a cell]").second, 65535));
      t.cells = to_indices(cells->array, where(*cells));
    }
    // Beside cells, only edge fields need to know which edges are meant.
    const NpzEntry* edges = find("mesh_edge");
    if (edges != nullptr && !t.cells.empty() && !has_edge_fields()) {
      warn(fmt::format("[{}] mesh_edge was not used: the sides of the cells are the edges", name_));
      edges = nullptr;
    }
    if (edges != nullptr) {
      if (matrix(*edges, "[2, edges]").first != 2) throw wrong_shape(*edges, "[2, edges]");
      t.edges = to_indices(edges->array, where(*edges));
    }
    for (const NpzEntry& entry : entries_) {
      if (!entry.numbers) {
        left_out_.push_back(entry.name + " (no numbers)");
      } else if (is_times(entry, t)) {
        continue;
      } else if (entry.name == "dt" && entry.array.size() == 1) {
        t.dt = checked_dt(to_doubles(entry.array).front(), where(entry));
      } else if (!is_mesh(entry.name)) {
        read_field(entry, t);
      }
    }
    read_times(t);
    check_order_of_axes(t);
    if (!left_out_.empty()) {
      warn(fmt::format("[{}] left out, since they are no fields on {} nodes: {}", name_, t.nodes,
                       fmt::join(left_out_, ", ")));
    }
    // Arrays come in the order of the zip; sorted names make files of one data set agree.
    std::sort(t.fields.begin(), t.fields.end(),
              [](const RawField& a, const RawField& b) { return a.name < b.name; });
    return t;
  }

 private:
  void warn(const std::string& text) const {
    if (warn_) warn_(text);
  }

  bool has_edge_fields() const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [](const NpzEntry& entry) { return named_field(entry.name).on == FieldOn::edge; });
  }

  const NpzEntry* find(std::string_view name) const {
    const auto found =
        std::find_if(entries_.begin(), entries_.end(), [&](const NpzEntry& e) { return e.name == name; });
    return found == entries_.end() ? nullptr : &*found;
  }

  std::string where(const NpzEntry& entry) const { return fmt::format("{}: array {}", name_, entry.name); }

  DataError wrong_shape(const NpzEntry& entry, std::string_view needed) const {
    return data_error(where(entry), needed, shape_text(entry.array), "save the array in that shape");
  }

  DataError over_frames(const NpzEntry& entry, std::string_view needed) const {
    return data_error(
        where(entry), needed, shape_text(entry.array),
        "meshes that change over time are not supported yet: save the first frame, and what changes "
        "as a field of another name");
  }

  static bool is_times(const NpzEntry& entry, const RawTrajectory& t) {
    const bool named = entry.name == "times" || entry.name == "time" || entry.name == "t";
    return named && entry.array.shape.size() == 1 && entry.array.shape[0] != t.nodes;
  }

  // Times with one distance give dt.
  void read_times(RawTrajectory& t) {
    for (const NpzEntry& entry : entries_) {
      if (!entry.numbers || !is_times(entry, t)) continue;
      const std::vector<double> times = to_doubles(entry.array);
      if (static_cast<int64_t>(times.size()) != t.frames || t.frames < 2) {
        left_out_.push_back(entry.name + " " + shape_text(entry.array));
        continue;
      }
      const auto dt = even_spacing(times);
      constexpr double kSame = 1e-3;
      if (!dt) {
        warn(fmt::format("[{}] {} are not evenly spaced and were left out", name_, entry.name));
      } else if (t.dt != 0 && std::abs(t.dt - *dt) > kSame * *dt) {
        throw data_error(where(entry), fmt::format("times {} apart, as dt says", t.dt),
                         fmt::format("{} apart", *dt), "correct one of the two arrays, or leave it out");
      } else if (t.dt == 0) {
        t.dt = *dt;
      }
    }
  }

  // [nodes, frames] reads as a static field of as many components as there are frames.
  void check_order_of_axes(const RawTrajectory& t) const {
    constexpr int64_t kMostColumns = 16;
    int64_t frames = t.frames;
    for (const NpzEntry& entry : entries_) {
      if (entry.numbers && frames == 1 && is_times(entry, t)) frames = entry.array.shape[0];
    }
    for (const NpzEntry& entry : entries_) {
      const std::vector<int64_t>& shape = entry.array.shape;
      const bool mesh = is_mesh(entry.name) || named_field(entry.name).on != FieldOn::node;
      if (mesh || shape.size() != 2 || shape[0] != t.nodes || shape[1] < 4) continue;
      if (shape[1] == frames) {
        throw data_error(where(entry), "[frames, nodes], frames first",
                         fmt::format("{} and {} frames", shape_text(entry.array), frames),
                         fmt::format("transpose it; save a static field as [1, nodes, {}]", shape[1]));
      }
      if (shape[1] <= kMostColumns) continue;
      warn(fmt::format(
          "[{}] {} {} was read as {} components in one frame; frames come first, as [frames, nodes]", name_,
          entry.name, shape_text(entry.array), shape[1]));
    }
  }

  std::pair<int64_t, int64_t> matrix(const NpzEntry& entry, std::string_view needed) const {
    const auto shape = as_matrix(entry.array);
    if (!shape || shape->first < 1 || shape->second < 1) throw wrong_shape(entry, needed);
    return *shape;
  }

  void read_positions(RawTrajectory& t) const {
    const NpzEntry* positions = find("mesh_pos");
    if (positions == nullptr) {
      std::string names;
      for (const NpzEntry& entry : entries_) names += (names.empty() ? "" : ", ") + entry.name;
      throw data_error(name_, "an array \"mesh_pos\"", names.empty() ? "no arrays" : names,
                       "save the arrays under DeepMind's names: mesh_pos, node_type, cells, and the fields");
    }
    if (positions->array.shape.size() == 3 && positions->array.shape[0] > 1) {
      throw over_frames(*positions, "[nodes, 2] or [nodes, 3]: positions that do not move");
    }
    const auto [nodes, dim] = matrix(*positions, "[nodes, 2] or [nodes, 3]");
    if (dim != 2 && dim != 3) throw wrong_shape(*positions, "[nodes, 2] or [nodes, 3]");
    t.nodes = nodes;
    t.dim = static_cast<int>(dim);
    t.positions = to_floats(positions->array);
    if (!is_f64(positions->array)) return;
    t.wide_positions = to_doubles(positions->array);
    if (!are_coarse_positions(t.wide_positions, t.dim)) t.wide_positions.clear();
  }

  // "edge:length" is a field "length" on edges; a name without a prefix is one on nodes.
  static RawField named_field(const std::string& array) {
    RawField field;
    field.name = array;
    for (size_t i = 0; i < kFieldOnNames.size(); ++i) {
      const std::string prefix = std::string(kFieldOnNames[i]) + ":";
      if (!array.starts_with(prefix)) continue;
      field.name = array.substr(prefix.size());
      field.on = static_cast<FieldOn>(i);
    }
    return field;
  }

  struct FieldShape {
    int64_t frames, components;
    bool dynamic;
  };

  static bool is_f64(const NpyArray& array) { return array.kind == 'f' && array.bytes == 8; }

  static std::optional<FieldShape> shape_of_field(const std::vector<int64_t>& shape, int64_t rows) {
    if (shape.size() == 3 && shape[1] == rows) return FieldShape{shape[0], shape[2], shape[0] > 1};
    if (!shape.empty() && shape.size() <= 2 && shape[0] == rows) {
      return FieldShape{1, shape.size() == 2 ? shape[1] : 1, false};
    }
    if (shape.size() == 2 && shape[1] == rows) return FieldShape{shape[0], 1, shape[0] > 1};
    return std::nullopt;
  }

  // A graph has one row, which may be left out: a number, [components] or [frames, components].
  static std::optional<FieldShape> shape_of_graph_field(const std::vector<int64_t>& shape) {
    if (shape.empty()) return FieldShape{1, 1, false};
    if (shape.size() == 1) return FieldShape{1, shape[0], false};
    if (shape.size() == 2) return FieldShape{shape[0], shape[1], shape[0] > 1};
    return shape_of_field(shape, 1);
  }

  void read_field(const NpzEntry& entry, RawTrajectory& t) {
    RawField field = named_field(entry.name);
    const bool graph = field.on == FieldOn::graph;
    if (field.on == FieldOn::node && field.name == entry.name && entry.array.shape.size() < 2 &&
        entry.array.size() != t.nodes) {
      left_out_.push_back(entry.name + " " + shape_text(entry.array));
      return;
    }
    const int64_t rows = t.rows(field.on);
    if (rows == 0) {
      throw data_error(where(entry),
                       field.on == FieldOn::cell ? "the array cells beside it"
                                                 : "the array mesh_edge [2, edges] beside it",
                       "none", "save what its rows belong to, in the order of the rows");
    }
    const std::string needed = graph ? "[components] or [frames, components]"
                                     : fmt::format("[frames, {}s, components]", name_of(field.on));
    const auto shape =
        graph ? shape_of_graph_field(entry.array.shape) : shape_of_field(entry.array.shape, rows);
    if (!shape && entry.array.shape.size() > 1 && entry.array.shape[0] == rows) {
      throw data_error(where(entry), fmt::format("{} with {} {}s", needed, rows, name_of(field.on)),
                       shape_text(entry.array), "move the axis of frames to the front");
    }
    if (!shape) throw wrong_shape(entry, fmt::format("{} with {} {}s", needed, rows, name_of(field.on)));
    if (shape->frames < 1 || shape->components < 1 || shape->components > 65535) {
      throw wrong_shape(entry, needed);
    }
    field.dynamic = shape->dynamic;
    if (field.dynamic && shape->frames != t.frames) {
      if (t.frames != 1)
        throw wrong_shape(entry, fmt::format("{} frames, as the arrays before it", t.frames));
      t.frames = shape->frames;
    }
    field.components = static_cast<int>(shape->components);
    field.values = to_field_values(entry.array, where(entry));
    if (is_f64(entry.array)) {
      field.wide = to_doubles(entry.array);
      if (!is_coarse_in_f32(field.wide, field.components)) field.wide.clear();
    }
    t.fields.push_back(std::move(field));
  }

  std::vector<NpzEntry> entries_;
  std::string name_;
  const WarningCallback& warn_;
  std::vector<std::string> left_out_;  // names with shapes
};

class NpzSource : public TrajectorySource {
 public:
  NpzSource(std::filesystem::path path, WarningCallback warn)
      : path_(std::move(path)), warn_(std::move(warn)) {}

  int64_t records() const override { return 1; }
  uint64_t bytes_read() const override { return bytes_; }
  std::optional<RawTrajectory> next() override {
    if (bytes_ > 0) return std::nullopt;
    const MappedFile file(path_);
    if (file.bytes().empty()) throw broken_zip(path_.string(), "an empty file");
    bytes_ = file.bytes().size();
    return trajectory_of_npz(file.bytes(), path_.string(), warn_);
  }

 private:
  std::filesystem::path path_;
  WarningCallback warn_;
  uint64_t bytes_ = 0;
};

}  // namespace

RawTrajectory trajectory_of_npz(std::span<const std::byte> file, const std::string& name,
                                const WarningCallback& warn) {
  return NpzReader(file, name, warn).read();
}

std::unique_ptr<TrajectorySource> open_npz(const std::filesystem::path& path, WarningCallback warn) {
  return std::make_unique<NpzSource>(path, std::move(warn));
}

}  // namespace meshgrad
