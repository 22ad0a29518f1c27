// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/sources/hdf5_source.h>

#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/convert/sources/hdf5_arrays.h>

#ifdef MESHGRAD_HAVE_HDF5
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hdf5.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <meshgrad/train/convert/sources/hdf5_attributes.h>
#include <meshgrad/train/convert/sources/hdf5_dataset.h>
#include <meshgrad/train/convert/sources/hdf5_layout.h>
#include <meshgrad/train/convert/sources/moving_positions.h>
#include <meshgrad/train/data/value_offset.h>

namespace meshgrad {
namespace {

bool is_f64(hid_t group, const char* name) {
  const Hdf5Handle dataset(H5Dopen2(group, name, H5P_DEFAULT), H5Dclose);
  const Hdf5Handle type(dataset ? H5Dget_type(dataset.id()) : -1, H5Tclose);
  return type && H5Tget_class(type.id()) == H5T_FLOAT && H5Tget_size(type.id()) == 8;
}

std::vector<std::string> group_names(hid_t data, const std::string& where) {
  H5G_info_t info;
  if (H5Gget_info(data, &info) < 0 || info.nlinks == 0) {
    throw data_error(where, "at least one group data/{id}", "none", "write one group for each trajectory");
  }
  std::vector<std::string> names;
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const ssize_t size =
        H5Lget_name_by_idx(data, ".", H5_INDEX_NAME, H5_ITER_INC, i, nullptr, 0, H5P_DEFAULT);
    if (size <= 0) continue;
    std::string name(static_cast<size_t>(size) + 1, '\0');
    H5Lget_name_by_idx(data, ".", H5_INDEX_NAME, H5_ITER_INC, i, name.data(), name.size(), H5P_DEFAULT);
    name.pop_back();
    names.push_back(name);
  }
  if (names.empty()) throw data_error(where, "names of the groups in data/", "none", "copy the file again");
  // Numbers in the order of their values: a shorter one is smaller.
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  return names;
}

class Hdf5Source : public TrajectorySource {
 public:
  Hdf5Source(std::filesystem::path path, std::vector<std::string> fields, WarningCallback warn,
             AliveCallback alive)
      : path_(std::move(path)),
        fields_(std::move(fields)),
        warn_(std::move(warn)),
        alive_(std::move(alive)),
        file_(open_hdf5_file(path_)),
        data_(open_data(file_, path_)),
        ids_(group_names(data_.id(), path_.string())) {}

  int64_t records() const override { return static_cast<int64_t>(ids_.size()); }
  uint64_t bytes_read() const override { return bytes_; }

  std::optional<RawTrajectory> next() override {
    if (record_ == ids_.size()) return std::nullopt;
    const std::string where = fmt::format("{}: data/{}", path_.string(), ids_[record_]);
    const Hdf5Handle group(H5Gopen2(data_.id(), ids_[record_].c_str(), H5P_DEFAULT), H5Gclose);
    if (!group) throw data_error(where, "a group", "a data set or a type", "keep only groups in data/");
    RawTrajectory t = read_group(group.id(), where);
    t.name = where;
    t.record = static_cast<int64_t>(record_++);
    return t;
  }

 private:
  static Hdf5Handle open_data(const Hdf5Handle& file, const std::filesystem::path& path) {
    Hdf5Handle data(H5Gopen2(file.id(), "data", H5P_DEFAULT), H5Gclose);
    if (!data) {
      throw data_error(
          path.string(), "the group data/", "none",
          "write data/{id}/nodal_data [features, frames, nodes] and data/{id}/mesh_edge [2, edges]");
    }
    return data;
  }

  std::vector<std::string> row_names(hid_t group, size_t rows, const std::string& where) const {
    std::vector<std::string> names = fields_;
    for (const hid_t object : {group, data_.id(), file_.id()}) {
      for (const char* attribute : {"features", "feature_names"}) {
        if (names.empty()) names = hdf5_names(object, attribute);
      }
    }
    std::vector<std::string> sorted = names;
    std::sort(sorted.begin(), sorted.end());
    if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end()) {
      throw data_error(where + ": nodal_data", "rows of different names", fmt::format("\"{}\" twice", *twice),
                       "name each row: --fields x,y,z,velocity_x,velocity_y,node_type");
    }
    if (names.size() == rows) return names;
    throw data_error(where + ": nodal_data", fmt::format("{} names, one for each row", rows),
                     names.empty() ? "no attribute \"features\"" : fmt::format("{}", fmt::join(names, ",")),
                     "give them: --fields x,y,z,velocity_x,velocity_y,node_type");
  }

  RawTrajectory read_group(hid_t group, const std::string& where) {
    constexpr std::string_view kFix =
        "write it as data/{id}/nodal_data [features, frames, nodes] and data/{id}/mesh_edge [2, edges]";
    alive_(unpacked_bytes(group, "nodal_data") + unpacked_bytes(group, "mesh_edge"));
    const auto nodal = read_hdf5_array<float>(group, "nodal_data", 3, H5T_NATIVE_FLOAT, where, kFix);
    check_not_packed(group, where);
    Hdf5Array<double> wide;
    if (is_f64(group, "nodal_data"))
      wide = read_hdf5_array<double>(group, "nodal_data", 3, H5T_NATIVE_DOUBLE, where, kFix);
    const auto edges = read_hdf5_array<int32_t>(group, "mesh_edge", 2, H5T_NATIVE_INT32, where, kFix);
    if (edges.shape[0] != 2) {
      throw data_error(where + ": mesh_edge", "[2, edges]", fmt::format("[{}]", fmt::join(edges.shape, ", ")),
                       "transpose it");
    }
    bytes_ += nodal.values.size() * sizeof(float) + edges.values.size() * sizeof(int32_t);
    RawTrajectory t;
    t.frames = static_cast<int64_t>(nodal.shape[1]);
    t.nodes = static_cast<int64_t>(nodal.shape[2]);
    t.edges = edges.values;
    std::optional<double> dt = hdf5_number(group, "dt");
    if (!dt) dt = hdf5_number(file_.id(), "dt");
    if (dt) t.dt = checked_dt(*dt, where + ": dt");
    for (RowGroup& rows : group_rows(row_names(group, nodal.shape[0], where))) {
      if (rows.name == "mesh_pos") {
        read_positions(nodal, wide, rows, t);
      } else if (rows.name == "node_type") {
        read_types(nodal, rows.rows[0], t, where);
      } else {
        t.fields.push_back(
            {rows.name, static_cast<int>(rows.rows.size()), true, "", gather(nodal, rows.rows, t.frames)});
        RawField& field = t.fields.back();
        if (!wide.values.empty()) field.wide = gather(wide, rows.rows, t.frames);
        if (!is_coarse_in_f32(field.wide, field.components)) field.wide.clear();
      }
    }
    if (t.dim == 0) {
      throw data_error(where + ": nodal_data", "rows x and y (and z) for the positions",
                       fmt::format("{}", fmt::join(row_names(group, nodal.shape[0], where), ",")),
                       "name the rows: --fields x,y,z,...");
    }
    return t;
  }

  static void check_not_packed(hid_t group, const std::string& where) {
    const Hdf5Handle dataset(H5Dopen2(group, "nodal_data", H5P_DEFAULT), H5Dclose);
    const Hdf5Packing packing = hdf5_packing(dataset.id(), where);
    if (!packing.scales()) return;
    throw data_error(where + ": nodal_data", "values without scale_factor and add_offset",
                     fmt::format("{} and {}", packing.scale, packing.offset), "save the values themselves");
  }

  // [frames, nodes, rows] of the named rows, the first `frames` frames.
  template <class T>
  static std::vector<T> gather(const Hdf5Array<T>& nodal, const std::vector<size_t>& rows, int64_t frames) {
    const size_t nodes = nodal.shape[2];
    std::vector<T> values(static_cast<size_t>(frames) * nodes * rows.size());
    for (size_t c = 0; c < rows.size(); ++c) {
      const T* row = nodal.values.data() + rows[c] * nodal.shape[1] * nodes;
      for (size_t i = 0; i < static_cast<size_t>(frames) * nodes; ++i) values[i * rows.size() + c] = row[i];
    }
    return values;
  }

  void read_positions(const Hdf5Array<float>& nodal, const Hdf5Array<double>& wide, RowGroup& rows,
                      RawTrajectory& t) {
    if (rows.rows.size() == 3 && drops_z(nodal, rows.rows[2])) rows.rows.pop_back();
    t.dim = static_cast<int>(rows.rows.size());
    t.positions = gather(nodal, rows.rows, 1);
    if (!wide.values.empty()) t.wide_positions = gather(wide, rows.rows, 1);
    if (!are_coarse_positions(t.wide_positions, t.dim)) t.wide_positions.clear();
    std::vector<float> all = gather(nodal, rows.rows, t.frames);
    if (!positions_move(std::span<const float>(all), t.positions.size())) return;
    add_world_position(t, t.dim, std::move(all),
                       wide.values.empty() ? std::vector<double>() : gather(wide, rows.rows, t.frames));
  }

  // `row` counts over frames and nodes.
  static DataError moving(const std::string& where, const char* what, const char* needed,
                          const RawTrajectory& t, size_t row) {
    const auto nodes = static_cast<size_t>(t.nodes);
    return data_error(
        fmt::format("{}: nodal_data: {}", where, what), needed,
        fmt::format("a change at frame {}, node {}", row / nodes, row % nodes),
        "write the first frame's value in all frames, and what changes as rows of another name");
  }

  // Decided by the first trajectory, so that all have as many dimensions.
  bool drops_z(const Hdf5Array<float>& nodal, size_t row) {
    const auto first =
        nodal.values.begin() + static_cast<std::ptrdiff_t>(row * nodal.shape[1] * nodal.shape[2]);
    const auto last = first + static_cast<std::ptrdiff_t>(nodal.shape[1] * nodal.shape[2]);
    const auto odd = std::find_if(first, last, [&](float z) { return z != *first; });
    const bool flat = odd == last;
    if (dim_ == 0) {
      dim_ = flat ? 2 : 3;
      if (flat && warn_) warn_(fmt::format("[{}] z is the same everywhere: read as 2-D", path_.string()));
    }
    if (dim_ == 2 && !flat) {
      throw data_error(path_.string() + ": nodal_data: z", "the same everywhere, as in the first trajectory",
                       fmt::format("{} and {} in one trajectory", *first, *odd),
                       "convert meshes in a plane and in space apart");
    }
    return dim_ == 2;
  }

  static void read_types(const Hdf5Array<float>& nodal, size_t row, RawTrajectory& t,
                         const std::string& where) {
    const std::vector<float> all = gather(nodal, {row}, t.frames);
    const auto nodes = static_cast<size_t>(t.nodes);
    for (size_t i = nodes; i < all.size(); ++i) {
      if (all[i] == all[i - nodes]) continue;
      throw moving(where, "row node_type", "node types that do not change over time", t, i);
    }
    for (const float value : std::span(all).first(nodes)) {
      const bool is_type = value >= 0 && value < 1e6F && value == std::floor(value);
      t.node_type.push_back(is_type ? static_cast<int32_t>(value) : -1);
    }
  }

  std::filesystem::path path_;
  std::vector<std::string> fields_;
  WarningCallback warn_;
  AliveCallback alive_;
  Hdf5Handle file_;
  Hdf5Handle data_;
  std::vector<std::string> ids_;
  size_t record_ = 0;
  uint64_t bytes_ = 0;
  int dim_ = 0;
};

bool has_group(const std::filesystem::path& path, const char* name) {
  return H5Lexists(open_hdf5_file(path).id(), name, H5P_DEFAULT) > 0;
}

/// Whether a group of data has rows of nodal_data.
bool has_nodal_data(const std::filesystem::path& path) {
  if (!has_group(path, "data")) return false;
  const std::vector<std::string> paths = Hdf5Arrays(path).paths();
  const auto file = open_hdf5_file(path);
  return paths.empty() || std::ranges::any_of(paths, [&](const std::string& one) {
           const size_t slash = one.starts_with("data/") ? one.find('/', 5) : one.npos;
           // It may be a link to another file, which is not read, and is none of the paths.
           return slash != one.npos &&
                  H5Lexists(file.id(), (one.substr(0, slash) + "/nodal_data").c_str(), H5P_DEFAULT) > 0;
         });
}

// Any file whose data sets are arrays that array_trajectory.h knows, or a map names.
class ArraySource : public TrajectorySource {
 public:
  ArraySource(std::filesystem::path path, ArrayOptions options, WarningCallback warn, AliveCallback alive)
      : path_(std::move(path)),
        options_(std::move(options)),
        warn_(std::move(warn)),
        alive_(std::move(alive)),
        arrays_(path_) {
    const std::vector<std::string> paths = arrays_.paths();
    const std::set<std::string> known(paths.begin(), paths.end());
    layout_ = hdf5_layout(paths, {options_.series, options_.separate},
                          {[&](const std::string& dataset) { return arrays_.shape(dataset); },
                           [&](const std::string& group) { return time_of_group(group, known); }},
                          path_.string());
  }

  int64_t records() const override { return std::ssize(layout_.trajectories); }
  uint64_t bytes_read() const override { return bytes_; }

  std::optional<RawTrajectory> next() override {
    if (record_ == layout_.trajectories.size()) return std::nullopt;
    const std::vector<std::string>& groups = layout_.trajectories[record_];
    const auto name = [](const std::string& group) { return group.substr(0, group.size() - 1); };
    std::string where = path_.string();
    if (!groups.front().empty()) where += ": " + name(groups.front());
    if (groups.size() > 1) where += " to " + name(groups.back());
    uint64_t unpacked = 0;
    for (const std::string& member : layout_.members)
      for (const std::string& group : groups) unpacked += arrays_.bytes(group + member);
    for (const auto& [path, as] : layout_.shared_by(groups)) unpacked += arrays_.bytes(path);
    std::vector<NamedArray> arrays;
    for (const std::string& member : layout_.members) {
      std::vector<NamedArray> frames;
      for (const std::string& group : groups) {
        alive_(unpacked);
        frames.push_back(arrays_.read(group + member, member, where));
      }
      arrays.push_back(groups.size() == 1 ? std::move(frames.front()) : over_frames(frames, groups, where));
    }
    for (const auto& [path, as] : layout_.shared_by(groups)) {
      alive_(unpacked);
      arrays.push_back(arrays_.read(path, as, where));
    }
    if (groups.size() > 1) add_times(groups, arrays);
    alive_(unpacked);
    for (const NamedArray& array : arrays) bytes_ += array.bytes.size();
    RawTrajectory t = trajectory_of_arrays(std::move(arrays), where, options_, warn_);
    t.record = static_cast<int64_t>(record_++);
    return t;
  }

 private:
  /// Of an attribute, or of a data set of one number.
  std::optional<double> time_of_group(const std::string& group, const std::set<std::string>& known) const {
    for (const char* name : {"time", "times", "t"}) {
      if (const auto time = arrays_.attribute(group, name)) return time;
      if (!known.contains(group + name)) continue;
      const NamedArray array = arrays_.read(group + name, name, path_.string());
      if (array.numbers && array.array.size() == 1) return to_doubles(array.array).front();
    }
    return std::nullopt;
  }

  /// Times that only attributes say.
  void add_times(const std::vector<std::string>& groups, std::vector<NamedArray>& arrays) const {
    std::vector<double> times;
    for (const std::string& group : groups) {
      const auto time = time_of_group(group, {});
      if (!time) return;
      times.push_back(*time);
    }
    NamedArray array{.name = "times", .source = "time"};
    const auto bytes = std::as_bytes(std::span(times));
    array.bytes.assign(bytes.begin(), bytes.end());
    array.array = {'f', 8, false, {std::ssize(times)}, array.bytes};
    arrays.push_back(std::move(array));
  }

  /// One array of those of all frames; numbers of one are a list.
  static NamedArray over_frames(const std::vector<NamedArray>& frames, const std::vector<std::string>& groups,
                                const std::string& where) {
    const NamedArray& first = frames.front();
    NamedArray all{.name = first.name, .numbers = first.numbers, .unit = first.unit};
    if (!first.numbers) return all;
    for (size_t i = 0; i < frames.size(); ++i) {
      const NpyArray &one = frames[i].array, &known = first.array;
      if (one.shape != known.shape || one.kind != known.kind || one.bytes != known.bytes) {
        throw data_error(fmt::format("{}: {}{}", where, groups[i], first.name),
                         fmt::format("{} of one type, as {} has", shape_text(known), groups.front()),
                         shape_text(one),
                         "write frames of one mesh; --separate makes each group a trajectory");
      }
      all.bytes.insert(all.bytes.end(), frames[i].bytes.begin(), frames[i].bytes.end());
    }
    all.array = first.array;
    if (first.array.size() == 1) all.array.shape.clear();
    all.array.shape.insert(all.array.shape.begin(), std::ssize(frames));
    all.array.data = all.bytes;
    return all;
  }

  std::filesystem::path path_;
  ArrayOptions options_;
  WarningCallback warn_;
  AliveCallback alive_;
  Hdf5Arrays arrays_;
  Hdf5Layout layout_;
  size_t record_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<TrajectorySource> open_hdf5_here(const std::filesystem::path& path,
                                                 const std::vector<std::string>& fields,
                                                 const ArrayOptions& options, const WarningCallback& warn,
                                                 const AliveCallback& alive) {
  if (has_group(path, "VTKHDF")) {
    throw data_error(path.string(), "arrays, or the layout data/{id}/nodal_data", "a file of VTKHDF",
                     "open it in ParaView and save it as .vtu, a series as .pvd");
  }
  if (options.map.empty() && has_nodal_data(path)) {
    const char* unused = !options.axes.empty()     ? "axes"
                         : options.first_node      ? "first-node"
                         : !options.series.empty() ? "series"
                         : options.separate        ? "separate"
                                                   : nullptr;
    if (unused != nullptr) {
      throw config_error(unused, "arrays under names of their own, which it describes",
                         path.string() + " with rows of nodal_data", fmt::format("leave --{} out", unused));
    }
    return std::make_unique<Hdf5Source>(path, fields, warn, alive);
  }
  return std::make_unique<ArraySource>(path, options, warn, alive);
}

std::unique_ptr<TrajectorySource> open_hdf5(const std::filesystem::path& path,
                                            const std::vector<std::string>& fields,
                                            const ArrayOptions& options, const WarningCallback& warn) {
  return hdf5_in_child(
      path, RegularFile(path).bytes(),
      [path, fields, options](const WarningCallback& warn_parent, const AliveCallback& alive) {
        return open_hdf5_here(path, fields, options, warn_parent, alive);
      },
      warn);
}

}  // namespace meshgrad

#else

namespace meshgrad {

std::unique_ptr<TrajectorySource> open_hdf5(const std::filesystem::path& path,
                                            const std::vector<std::string>&, const ArrayOptions&,
                                            const WarningCallback&) {
  Hdf5Arrays{path};  // says what is missing
  return nullptr;
}

}  // namespace meshgrad

#endif
