// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/dataset.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <type_traits>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/made_edges.h>
#include <meshgrad/train/data/packed_file.h>

namespace meshgrad {
namespace {

template <class Items>
ConfigError unknown_name(const std::filesystem::path& path, const char* kind, std::string_view name,
                         const Items& items) {
  std::vector<std::string> names;
  for (const auto& item : items) names.push_back(item.name);
  std::string all;
  for (const std::string& known : names) all += (all.empty() ? "" : ", ") + known;
  const std::string near = nearest_name(name, names);
  const std::string fix = near.empty() ? fmt::format("use one of: {}", all)
                                       : fmt::format("did you mean \"{}\"? It has: {}", near, all);
  return config_error(path.string(), fmt::format("a {} that exists", kind), fmt::format("\"{}\"", name), fix);
}

template <class Items>
int64_t find_name(const Items& items, std::string_view name) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].name == name) return static_cast<int64_t>(i);
  }
  return -1;
}

void append(FieldStatistics& to, const Moments& moments) {
  to.count = moments.count;
  to.mean.push_back(moments.mean);
  to.std.push_back(moments.standard_deviation());
}

void append(FieldStatistics& to, const ValueRange& range) {
  to.count = range.count;
  to.min.push_back(range.min);
  to.max.push_back(range.max);
}

/// Of relative positions and their norms, [dim + 1].
std::vector<Moments> edge_moments(const MeshView& mesh) {
  std::vector<Moments> moments(edge_columns(mesh.dim));
  if (moments.empty()) return moments;
  for (size_t e = 0; e < static_cast<size_t>(mesh.edges); ++e) {
    const auto sender = static_cast<size_t>(mesh.senders[e]),
               receiver = static_cast<size_t>(mesh.receivers[e]);
    const auto dim = static_cast<size_t>(mesh.dim);
    double squares = 0.0;
    for (size_t axis = 0; axis < dim; ++axis) {
      const double d = nearest_image(static_cast<double>(mesh.positions[sender * dim + axis]) -
                                         static_cast<double>(mesh.positions[receiver * dim + axis]),
                                     mesh.period[axis]);
      moments[axis].add(d);
      squares += d * d;
    }
    moments.back().add(std::sqrt(squares));
  }
  return moments;
}

template <class T>
constexpr DType kDTypeOf = std::is_same_v<T, float>     ? DType::f32
                           : std::is_same_v<T, int32_t> ? DType::i32
                                                        : DType::i64;

}  // namespace

template <class T>
std::span<const T> FieldView::frame_of(int64_t t) const {
  if (dtype != kDTypeOf<T>) {
    throw invalid_argument(fmt::format("field {}", name), fmt::format("a field of {}", name_of(kDTypeOf<T>)),
                           fmt::format("a field of {}", name_of(dtype)), "read it by its own type");
  }
  if (t < 0 || (dynamic && t >= frames)) {
    throw invalid_argument(fmt::format("frame of field {}", name), fmt::format("0..{}", frames - 1),
                           fmt::format("{}", t));
  }
  const auto size = static_cast<size_t>(rows * components);
  const std::span<const T> all(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T));
  return all.subspan(dynamic ? static_cast<size_t>(t) * size : 0, size);
}

template std::span<const float> FieldView::frame_of<float>(int64_t) const;
template std::span<const int32_t> FieldView::frame_of<int32_t>(int64_t) const;
template std::span<const int64_t> FieldView::frame_of<int64_t>(int64_t) const;

TrajectoryView::TrajectoryView(const PackedFile* file, const MadeEdges* made, int64_t index)
    : file_(file), index_(index), mesh_(file->mesh(file->trajectory(index).mesh)) {
  if (made != nullptr) made->replace(mesh_);
}

std::string_view TrajectoryView::name() const { return file_->trajectory_name(index_); }
int64_t TrajectoryView::frames() const { return file_->trajectory(index_).frames; }
int64_t TrajectoryView::first_frame() const {
  return static_cast<int64_t>(file_->trajectory(index_).first_frame);
}
double TrajectoryView::dt() const { return file_->trajectory(index_).dt; }

FieldView TrajectoryView::field(std::string_view name) const {
  const auto& fields = file_->metadata().fields;
  const int64_t index = find_name(fields, name);
  if (index < 0) throw unknown_name(file_->path(), "field", name, fields);
  return file_->field(index_, index);
}

FieldView TrajectoryView::field(int64_t field_index) const {
  const auto count = static_cast<int64_t>(file_->metadata().fields.size());
  if (field_index < 0 || field_index >= count) {
    throw invalid_argument("field of a trajectory", fmt::format("0..{}", count - 1),
                           fmt::format("{}", field_index));
  }
  return file_->field(index_, field_index);
}

std::span<const int32_t> TrajectoryView::node_split(std::string_view name) const {
  const auto& fields = file_->metadata().fields;
  const int64_t index = find_name(fields, name);
  if (index >= 0 && fields[static_cast<size_t>(index)].node_split)
    return file_->field(index_, index).frame_of<int32_t>(0);
  std::vector<FieldInfo> splits;
  std::ranges::copy_if(fields, std::back_inserter(splits), &FieldInfo::node_split);
  throw unknown_name(file_->path(), "node split", name, splits);
}

NodeTypeSet NodeTypeSet::all() {
  NodeTypeSet set({});
  set.all_ = true;
  return set;
}

bool NodeTypeSet::contains(int64_t type) const {
  return all_ || std::find(types_.begin(), types_.end(), type) != types_.end();
}

Dataset Dataset::open(const std::filesystem::path& path) { return Dataset(PackedFile::open(path)); }

Dataset Dataset::of_sizes(int64_t nodes, int64_t edges, int dim, std::vector<FieldInfo> fields,
                          int64_t frames, std::string split) {
  PackedMetadata metadata;
  metadata.dim = dim;
  metadata.fields = std::move(fields);
  metadata.splits = {{.name = split, .first = 0, .count = 1}};
  metadata.statistics_split = std::move(split);
  MeshRecord mesh;
  mesh.bytes = kPackedAlignment;  // more than there are, so that reading it is an error
  mesh.nodes = static_cast<uint32_t>(nodes);
  mesh.edges = static_cast<uint32_t>(edges);
  mesh.dim = static_cast<uint16_t>(dim);
  TrajectoryRecord trajectory;
  trajectory.bytes = kPackedAlignment;
  trajectory.frames = static_cast<uint32_t>(frames);
  return Dataset(PackedFile::of_sizes(std::move(metadata), {mesh}, {trajectory}, "sizes without data"));
}

Dataset Dataset::over(std::shared_ptr<const MemoryData> data) {
  return Dataset(PackedFile::over(std::move(data)));
}

Dataset Dataset::with_edges(const MeshEdgeOptions& options) const {
  if (!file_->has_sections()) return *this;
  for (size_t axis = static_cast<size_t>(dim()); axis < options.period.size(); ++axis) {
    if (options.period[axis] == 0.0) continue;
    throw config_error("data.period", fmt::format("{} numbers for this data", dim()),
                       fmt::format("{}", axis + 1), "give one for each axis, 0 where it is not periodic");
  }
  if (made_ != nullptr && made_->options() == options) return *this;
  if (directed() && options != MeshEdgeOptions{}) {
    throw config_error(options.periodic() ? "data.period" : "data.hops", "edges that go both ways",
                       "directed edges in " + path().string(), "convert without --directed, or leave it out");
  }
  Dataset result(file_);
  if (options != MeshEdgeOptions{}) result.made_ = std::make_shared<const MadeEdges>(options);
  return result;
}

const std::filesystem::path& Dataset::path() const { return file_->path(); }
const std::vector<SplitInfo>& Dataset::splits() const { return file_->metadata().splits; }
const std::vector<FieldInfo>& Dataset::fields() const { return file_->metadata().fields; }
const std::string& Dataset::source() const { return file_->metadata().source; }
const std::vector<std::string>& Dataset::warnings() const { return file_->metadata().warnings; }
int Dataset::dim() const { return file_->metadata().dim; }
bool Dataset::directed() const { return file_->metadata().directed; }
std::string Dataset::manifest() const { return file_->manifest(); }
double Dataset::dt() const { return file_->metadata().dt; }
int64_t Dataset::trajectories() const { return static_cast<int64_t>(file_->trailer().trajectory_count); }
int64_t Dataset::meshes() const { return static_cast<int64_t>(file_->trailer().mesh_count); }
uint64_t Dataset::bytes() const { return file_->trailer().file_bytes; }
uint64_t Dataset::fingerprint() const {
  return file_->trailer().content_hash ^ (file_->trailer().description_hash * 0x9e3779b97f4a7c15ULL);
}

bool Dataset::has_split(std::string_view name) const { return find_name(splits(), name) >= 0; }
int64_t Dataset::size(std::string_view name) const { return split(name).count; }

const SplitInfo& Dataset::split(std::string_view name) const {
  const int64_t index = find_name(splits(), name);
  if (index < 0) throw unknown_name(path(), "split", name, splits());
  return splits()[static_cast<size_t>(index)];
}

int64_t Dataset::field_index(std::string_view name) const {
  const int64_t index = find_name(fields(), name);
  if (index < 0) throw unknown_name(path(), "field", name, fields());
  return index;
}

const FieldInfo& Dataset::field(std::string_view name) const {
  return fields()[static_cast<size_t>(field_index(name))];
}

std::vector<std::string> Dataset::node_splits() const {
  std::vector<std::string> names;
  for (const FieldInfo& info : fields())
    if (info.node_split) names.push_back(info.name);
  return names;
}

TrajectoryView Dataset::trajectory(std::string_view split_name, int64_t i) const {
  const SplitInfo& in = split(split_name);
  if (i < 0 || i >= in.count) {
    throw invalid_argument(fmt::format("trajectory of split {}", split_name),
                           fmt::format("0..{}", in.count - 1), fmt::format("{}", i));
  }
  return trajectory(in.first + i);
}

void Dataset::check_unchanged() const { file_->check_unchanged(); }
void Dataset::verify_again() const { file_->verify_again(); }

void Dataset::read_ahead(std::string_view split_name, int64_t i) const {
  const SplitInfo& in = split(split_name);
  if (i >= 0 && i < in.count) file_->read_ahead(in.first + i);
}

int64_t Dataset::frames(std::string_view split_name, int64_t i) const {
  const SplitInfo& in = split(split_name);
  if (i < 0 || i >= in.count) {
    throw invalid_argument(fmt::format("trajectory of split {}", split_name),
                           fmt::format("0..{}", in.count - 1), fmt::format("{}", i));
  }
  return file_->trajectory_record(in.first + i).frames;
}

Dataset::MeshSizes Dataset::largest_mesh(std::string_view split_name) const {
  MeshSizes most;
  for (int64_t i = 0; i < size(split_name); ++i) {
    const MeshSizes mesh = mesh_sizes(split_name, i);
    most.nodes = std::max(most.nodes, mesh.nodes);
    most.edges = std::max(most.edges, mesh.edges);
  }
  return most;
}

Dataset::MeshSizes Dataset::mesh_sizes(std::string_view split_name, int64_t i) const {
  const int64_t index = file_->trajectory_record(split(split_name).first + i).mesh;
  const MeshRecord& mesh = file_->mesh_record(static_cast<uint64_t>(index));
  const int64_t edges = made_ == nullptr ? static_cast<int64_t>(mesh.edges)
                                         : made_->count(index, [&] { return file_->mesh(index); });
  return {static_cast<int64_t>(mesh.nodes), edges};
}

TrajectoryView Dataset::trajectory(int64_t index) const {
  if (index < 0 || index >= trajectories()) {
    throw invalid_argument("trajectory of a data set", fmt::format("0..{}", trajectories() - 1),
                           fmt::format("{}", index));
  }
  return TrajectoryView(file_.get(), made_.get(), index);
}

FieldStatistics Dataset::field_stats(std::string_view name, const NodeTypeSet& types, Quantity which) const {
  const auto index = static_cast<size_t>(field_index(name));
  const FieldMoments& field = file_->statistics().fields[index];
  const bool on_nodes = fields()[index].on == FieldOn::node;
  // The sum over the groups of the named types, component by component.
  const auto sum_groups = [&]<class T>(const std::vector<T>& counted, int component) {
    T total;
    auto at = static_cast<size_t>(component);
    for (const int32_t group : field.groups()) {
      if (!on_nodes || types.contains(group)) total.merge(counted[at]);
      at += static_cast<size_t>(field.components());
    }
    return total;
  };
  FieldStatistics result;
  for (int component = 0; component < field.components(); ++component) {
    if (which == Quantity::value && !field.ranges().empty())
      append(result, sum_groups(field.ranges(), component));
    if (field.has_moments()) append(result, sum_groups(field.moments(which), component));
  }
  return result;
}

FieldStatistics Dataset::edge_stats() const {
  FieldStatistics result;
  if (made_ != nullptr) {
    const SplitInfo& from = split(statistics_split());
    std::vector<Moments> sums(edge_columns(dim()));
    std::map<int64_t, std::vector<Moments>> of_mesh;
    for (int64_t i = 0; i < from.count; ++i) {
      const int64_t index = file_->trajectory_record(from.first + i).mesh;
      auto found = of_mesh.find(index);
      if (found == of_mesh.end())
        found = of_mesh.emplace(index, edge_moments(trajectory(from.first + i).mesh())).first;
      for (size_t column = 0; column < sums.size(); ++column) sums[column].merge(found->second[column]);
    }
    for (const Moments& moments : sums) append(result, moments);
    return result;
  }
  for (const Moments& moments : file_->statistics().edges) append(result, moments);
  return result;
}

const std::vector<double>& Dataset::node_type_counts() const { return file_->statistics().node_type_counts; }

int64_t Dataset::node_types() const {
  if (file_->metadata().version > 1) return file_->metadata().node_types;
  const std::vector<double>& counts = node_type_counts();
  const auto last = std::find_if(counts.rbegin(), counts.rend(), [](double count) { return count > 0; });
  return counts.rend() - last;
}

const std::string& Dataset::statistics_split() const { return file_->metadata().statistics_split; }

}  // namespace meshgrad
