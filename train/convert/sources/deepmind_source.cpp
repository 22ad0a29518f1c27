// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <string>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/deepmind_source.h>
#include <meshgrad/train/convert/sources/tf_example.h>
#include <meshgrad/train/data/mapped_file.h>
#include <meshgrad/train/data/tfrecord.h>

namespace meshgrad {
namespace {

using Bytes = std::span<const std::byte>;

// A feature of one record, cut into frames: rows [starts[t], starts[t + 1]).
struct FramedFeature {
  const DeepmindFeature* meta = nullptr;
  Bytes bytes;
  int64_t components = 1;
  std::vector<int64_t> starts;

  bool is_static() const { return meta->kind == FeatureKind::fixed; }
  int64_t frames() const { return static_cast<int64_t>(starts.size()) - 1; }
  int64_t rows(int64_t t) const {
    const auto at = static_cast<size_t>(is_static() ? 0 : t);
    return starts[at + 1] - starts[at];
  }
  Bytes frame(int64_t t) const {
    const auto at = static_cast<size_t>(is_static() ? 0 : t);
    const auto row_bytes = static_cast<size_t>(components) * number_bytes(meta->type);
    return bytes.subspan(static_cast<size_t>(starts[at]) * row_bytes,
                         static_cast<size_t>(rows(t)) * row_bytes);
  }
};

template <class From, class To>
void append_numbers(Bytes bytes, std::vector<To>& to) {
  for (size_t at = 0; at + sizeof(From) <= bytes.size(); at += sizeof(From)) {
    From value{};
    std::memcpy(&value, bytes.data() + at, sizeof value);
    to.push_back(static_cast<To>(value));
  }
}

template <class To>
void append_as(Bytes bytes, NumberType type, std::vector<To>& to) {
  switch (type) {
    case NumberType::float32:
      return append_numbers<float>(bytes, to);
    case NumberType::float64:
      return append_numbers<double>(bytes, to);
    case NumberType::int32:
      return append_numbers<int32_t>(bytes, to);
    case NumberType::int64:
      return append_numbers<int64_t>(bytes, to);
  }
}

FieldValues empty_values(NumberType type) {
  if (type == NumberType::int32) return std::vector<int32_t>();
  if (type == NumberType::int64) return std::vector<int64_t>();
  return std::vector<float>();
}

// A number that is no int32 becomes -1, which validation reports as out of range.
std::vector<int32_t> to_indices(Bytes bytes, const DeepmindFeature& feature, const std::string& where) {
  std::vector<int32_t> indices;
  if (feature.type == NumberType::int32) {
    append_numbers<int32_t>(bytes, indices);
  } else if (feature.type == NumberType::int64) {
    std::vector<int64_t> wide;
    append_numbers<int64_t>(bytes, wide);
    for (const int64_t value : wide) {
      const bool fits = value >= 0 && value <= std::numeric_limits<int32_t>::max();
      indices.push_back(fits ? static_cast<int32_t>(value) : -1);
    }
  } else {
    throw data_error(where, "integers", "floating-point numbers", "write this field as int32");
  }
  return indices;
}

class RecordReader {
 public:
  RecordReader(Bytes message, const DeepmindMeta& meta, std::string_view name, const WarningCallback& warn)
      : example_(parse_example(message, name)), meta_(meta), name_(name), warn_(warn) {
    for (const DeepmindFeature& feature : meta.features) {
      // Row lengths are read with the feature they belong to.
      if (!feature.name.starts_with("length_")) features_.push_back(read(feature));
    }
    for (const FramedFeature& feature : features_) {
      if (feature.is_static()) continue;
      if (frames_ == 0) frames_ = feature.frames();
      if (feature.frames() != frames_) {
        throw data_error(
            where(feature.meta->name), fmt::format("{} frames, as the fields before it", frames_),
            fmt::format("{}", feature.frames()), "all fields of a trajectory must have as many frames");
      }
    }
    frames_ = std::max<int64_t>(frames_, 1);
  }

  std::vector<RawTrajectory> trajectories() const {
    const FramedFeature& positions = required("mesh_pos");
    const FramedFeature* cells = find("cells");
    const FramedFeature* types = find("node_type");
    std::vector<RawTrajectory> parts;
    for (int64_t first = 0; first < frames_;) {
      int64_t last = first + 1;
      while (last < frames_ && same(positions, first, last) &&
             (cells == nullptr || same(*cells, first, last)) &&
             (types == nullptr || same(*types, first, last))) {
        ++last;
      }
      parts.push_back(stretch(first, last, positions, cells, types));
      first = last;
    }
    if (parts.size() > 1) {
      if (warn_)
        warn_(fmt::format("[{}] its mesh changes in time: packed as {} trajectories", name_, parts.size()));
      for (RawTrajectory& part : parts) part.name += fmt::format("@{}", part.first_frame);
    }
    return parts;
  }

 private:
  std::string where(std::string_view field) const { return fmt::format("{}: field {}", name_, field); }

  Bytes buffer(const std::string& field) const {
    const auto found = example_.find(field);
    if (found != example_.end()) return found->second;
    throw data_error(
        name_, fmt::format("the field \"{}\" that meta.json names", field), "none",
        "take it out of field_names in meta.json, or use the meta.json that belongs to this file");
  }

  FramedFeature read(const DeepmindFeature& meta) const {
    FramedFeature feature;
    feature.meta = &meta;
    feature.bytes = buffer(meta.name);
    feature.components = meta.components;
    const size_t size = number_bytes(meta.type);
    if (feature.bytes.size() % size != 0) throw wrong_size(feature, "whole numbers");
    const auto numbers = static_cast<int64_t>(feature.bytes.size() / size);
    if (meta.kind == FeatureKind::dynamic_varlen) {
      cut_varlen(feature, numbers);
    } else {
      cut_even(feature, numbers);
    }
    return feature;
  }

  void cut_even(FramedFeature& feature, int64_t numbers) const {
    int64_t frames = feature.meta->kind == FeatureKind::fixed ? 1 : feature.meta->frames;
    if (frames == -1) frames = meta_.trajectory_length;
    if (frames < 1) {
      throw data_error(where(feature.meta->name), "the number of frames in meta.json", "none",
                       "add \"trajectory_length\", or write it as the first number of the shape");
    }
    // A frame has at least one number, so the check also bounds what is allocated.
    if (numbers / feature.components < frames || numbers % (frames * feature.components) != 0) {
      throw wrong_size(feature, fmt::format("{} frames of whole rows of {}", frames, feature.components));
    }
    const int64_t rows = numbers / (frames * feature.components);
    if (feature.meta->nodes != -1 && feature.meta->nodes != rows) {
      throw wrong_size(feature, fmt::format("{} rows a frame", feature.meta->nodes));
    }
    for (int64_t t = 0; t <= frames; ++t) feature.starts.push_back(t * rows);
  }

  void cut_varlen(FramedFeature& feature, int64_t numbers) const {
    const std::string length_name = "length_" + feature.meta->name;
    std::vector<int32_t> lengths;
    append_numbers<int32_t>(buffer(length_name), lengths);
    feature.starts.push_back(0);
    for (const int32_t length : lengths) {
      if (length < 1)
        throw wrong_size(feature, fmt::format("at least 1 row in each frame of {}", length_name));
      feature.starts.push_back(feature.starts.back() + length);
    }
    const int64_t rows = feature.starts.back();
    if (rows < 1) throw wrong_size(feature, fmt::format("frames in {}", length_name));
    if (feature.meta->name == "sizing_field" && feature.components == 4 && numbers % 3 == 0 &&
        numbers / 3 == rows) {
      feature.components = 3;
      if (warn_) {
        warn_(fmt::format("[{}] shape [-1, 4] was read as [-1, 3] (a known fault of meta.json)",
                          where(feature.meta->name)));
      }
    }
    if (numbers % feature.components != 0 || numbers / feature.components != rows) {
      throw wrong_size(feature,
                       fmt::format("{} rows of {} (from {})", rows, feature.components, length_name));
    }
  }

  DataError wrong_size(const FramedFeature& feature, std::string_view needed) const {
    return data_error(where(feature.meta->name), needed, fmt::format("{} bytes", feature.bytes.size()),
                      "correct shape, dtype or trajectory_length in meta.json, or write the record again");
  }

  const FramedFeature* find(std::string_view name) const {
    for (const FramedFeature& feature : features_) {
      if (feature.meta->name == name) return &feature;
    }
    return nullptr;
  }

  const FramedFeature& required(const char* name) const {
    if (const FramedFeature* feature = find(name)) return *feature;
    throw data_error(name_, fmt::format("a field \"{}\"", name), "none in meta.json",
                     "add it to field_names and features, and to the records");
  }

  static bool same(const FramedFeature& feature, int64_t a, int64_t b) {
    const Bytes x = feature.frame(a);
    const Bytes y = feature.frame(b);
    return x.data() == y.data() || (x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size()) == 0);
  }

  RawTrajectory stretch(int64_t first, int64_t last, const FramedFeature& positions,
                        const FramedFeature* cells, const FramedFeature* types) const {
    RawTrajectory part;
    part.name = name_;
    part.first_frame = first;
    part.frames = last - first;
    part.nodes = positions.rows(first);
    part.dim = static_cast<int>(positions.components);
    part.dt = meta_.dt;
    append_as(positions.frame(first), positions.meta->type, part.positions);
    if (types != nullptr) {
      part.node_type = to_indices(types->frame(first), *types->meta, where("node_type"));
      if (types->components != 1) throw wrong_size(*types, "one type a node");
    }
    if (cells != nullptr) {
      part.cells = to_indices(cells->frame(first), *cells->meta, where("cells"));
      part.nodes_per_cell = static_cast<int>(cells->components);
    }
    for (const FramedFeature& feature : features_) {
      if (&feature == &positions || &feature == cells || &feature == types) continue;
      part.fields.push_back(field_of(feature, first, last, part.nodes));
    }
    return part;
  }

  RawField field_of(const FramedFeature& feature, int64_t first, int64_t last, int64_t nodes) const {
    RawField field;
    field.name = feature.meta->name;
    field.components = static_cast<int>(feature.components);
    field.dynamic = !feature.is_static();
    field.unit = feature.meta->unit;
    field.values = empty_values(feature.meta->type);
    const int64_t end = field.dynamic ? last : first + 1;
    for (int64_t t = first; t < end; ++t) {
      if (feature.rows(t) != nodes) {
        throw data_error(where(field.name), fmt::format("{} nodes, as in mesh_pos", nodes),
                         fmt::format("{} in frame {}", feature.rows(t), t),
                         "all fields of a trajectory must have the same nodes");
      }
      std::visit([&](auto& values) { append_as(feature.frame(t), feature.meta->type, values); },
                 field.values);
    }
    return field;
  }

  Example example_;
  const DeepmindMeta& meta_;
  std::string name_;
  const WarningCallback& warn_;
  std::vector<FramedFeature> features_;
  int64_t frames_ = 0;
};

class DeepmindSource : public TrajectorySource {
 public:
  DeepmindSource(const std::filesystem::path& tfrecord, DeepmindMeta meta, const WarningCallback& warn)
      : path_(tfrecord), file_(tfrecord), meta_(std::move(meta)), warn_(warn) {
    records_ = count_records(file_.bytes());
    if (records_ == 0) {
      throw data_error(tfrecord.string(), "at least one record", "an empty file",
                       "copy or download the file again");
    }
  }

  int64_t records() const override { return records_; }
  uint64_t bytes_read() const override { return offset_; }

  std::optional<RawTrajectory> next() override {
    if (ready_.empty()) {
      if (offset_ == file_.bytes().size()) return std::nullopt;
      const std::string name = fmt::format("{}: record {}", path_.string(), record_);
      const Bytes message = read_record(file_.bytes(), offset_, name);
      for (RawTrajectory& part : trajectories_of_record(message, meta_, name, warn_)) {
        part.record = record_;
        ready_.push_back(std::move(part));
      }
      ++record_;
    }
    RawTrajectory trajectory = std::move(ready_.front());
    ready_.pop_front();
    return trajectory;
  }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  DeepmindMeta meta_;
  WarningCallback warn_;
  int64_t records_ = 0;
  int64_t record_ = 0;
  size_t offset_ = 0;
  std::deque<RawTrajectory> ready_;
};

}  // namespace

std::vector<RawTrajectory> trajectories_of_record(Bytes message, const DeepmindMeta& meta,
                                                  std::string_view name, const WarningCallback& warn) {
  return RecordReader(message, meta, name, warn).trajectories();
}

std::unique_ptr<TrajectorySource> open_deepmind(const std::filesystem::path& tfrecord,
                                                const WarningCallback& warn) {
  const std::filesystem::path path = tfrecord.parent_path() / "meta.json";
  if (!std::filesystem::exists(path)) {
    throw data_error(path.string(), "meta.json beside the TFRecord files", "none",
                     "download it from the same place as the data");
  }
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  return std::make_unique<DeepmindSource>(tfrecord, parse_deepmind_meta(text, path.string(), warn), warn);
}

}  // namespace meshgrad
