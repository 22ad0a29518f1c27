// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/sources/hdf5_arrays.h>

#include <meshgrad/engine/error.h>

#include <utility>

#ifdef MESHGRAD_HAVE_HDF5
#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <type_traits>

#include <meshgrad/train/convert/sources/hdf5_attributes.h>
#include <meshgrad/train/convert/sources/hdf5_dataset.h>

namespace meshgrad {
namespace {

template <class T>
std::vector<T> read_as(hid_t file, const std::string& path, int rank, hid_t memory_type,
                       const std::string& where, NamedArray& array) {
  Hdf5Array<T> all = read_hdf5_array<T>(file, path.c_str(), rank, memory_type, where,
                                        "write the file again, with this array as plain numbers in it");
  for (const hsize_t size : all.shape) array.array.shape.push_back(static_cast<int64_t>(size));
  return std::move(all.values);
}

template <class T>
void keep(const std::vector<T>& values, NamedArray& array) {
  const auto bytes = std::as_bytes(std::span(values));
  array.bytes.assign(bytes.begin(), bytes.end());
  array.array.kind = std::is_floating_point_v<T> ? 'f' : 'i';
  array.array.bytes = sizeof(T);
  array.array.data = array.bytes;
}

/// Floats stay what they are; what is missing is nan.
template <class T>
void keep_floats(std::vector<T> stored, const Hdf5Packing& packing, NamedArray& array) {
  if (!packing.missing.empty()) {
    for (T& value : stored)
      if (packing.is_missing(static_cast<double>(value))) value = std::numeric_limits<T>::quiet_NaN();
  }
  if (!packing.scales()) {
    keep(stored, array);
    return;
  }
  std::vector<double> values(stored.begin(), stored.end());
  for (double& value : values) value = packing.offset + packing.scale * value;
  keep(values, array);
}

/// Integers stay integers unless they are scaled or some are missing; of connectivity these are -1.
template <class T>
void keep_integers(std::vector<T> stored, const Hdf5Packing& packing, NamedArray& array) {
  const auto missing = [&](T value) { return packing.is_missing(static_cast<double>(value)); };
  const bool some = !packing.missing.empty() && std::ranges::any_of(stored, missing);
  if (packing.connectivity) {
    for (T& value : stored)
      value = some && missing(value) ? -1 : static_cast<T>(value - static_cast<T>(packing.first_index));
  } else if (some || packing.scales()) {
    std::vector<double> values(stored.begin(), stored.end());
    keep_floats(std::move(values), packing, array);
    return;
  }
  keep(stored, array);
}

// Paths of all data sets, such as "flow/u".
std::vector<std::string> dataset_paths(hid_t file) {
  std::vector<std::string> paths;
#if H5_VERSION_GE(1, 12, 0)
  using Info = H5O_info2_t;
#else
  using Info = H5O_info_t;
#endif
  const auto visit = [](hid_t, const char* name, const Info* info, void* found) -> herr_t {
    constexpr size_t kMost = 1'000'000;
    auto& all = *static_cast<std::vector<std::string>*>(found);
    if (info->type == H5O_TYPE_DATASET) all.emplace_back(name);
    return all.size() < kMost ? 0 : -1;
  };
#if H5_VERSION_GE(1, 12, 0)
  const herr_t visited = H5Ovisit3(file, H5_INDEX_NAME, H5_ITER_INC, visit, &paths, H5O_INFO_BASIC);
#else
  const herr_t visited = H5Ovisit(file, H5_INDEX_NAME, H5_ITER_INC, visit, &paths);
#endif
  if (visited < 0) paths.clear();
  std::erase_if(paths, [&](const std::string& path) {
    const Hdf5Handle dataset(H5Dopen2(file, path.c_str(), H5P_DEFAULT), H5Dclose);
    return dataset && is_netcdf_dimension(dataset.id());
  });
  return paths;
}

}  // namespace

struct Hdf5Arrays::File {
  explicit File(hid_t opened) : id(opened) {}
  ~File() { H5Fclose(id); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  hid_t id;
};

Hdf5Arrays::Hdf5Arrays(const std::filesystem::path& path)
    : file_(std::make_unique<File>(open_hdf5_file(path).release())) {}
Hdf5Arrays::~Hdf5Arrays() = default;

std::vector<std::string> Hdf5Arrays::paths() const { return dataset_paths(file_->id); }

std::vector<int64_t> Hdf5Arrays::shape(const std::string& path) const {
  const Hdf5Handle dataset(H5Dopen2(file_->id, path.c_str(), H5P_DEFAULT), H5Dclose);
  const Hdf5Handle space(dataset ? H5Dget_space(dataset.id()) : -1, H5Sclose);
  const int rank = space ? H5Sget_simple_extent_ndims(space.id()) : 0;
  std::vector<hsize_t> sizes(static_cast<size_t>(std::max(rank, 0)));
  if (rank > 0) H5Sget_simple_extent_dims(space.id(), sizes.data(), nullptr);
  return {sizes.begin(), sizes.end()};
}

uint64_t Hdf5Arrays::bytes(const std::string& path) const { return unpacked_bytes(file_->id, path.c_str()); }

std::optional<double> Hdf5Arrays::attribute(const std::string& group, const char* name) const {
  const Hdf5Handle object(H5Oopen(file_->id, group.c_str(), H5P_DEFAULT), H5Oclose);
  return object ? hdf5_number(object.id(), name) : std::nullopt;
}

NamedArray Hdf5Arrays::read(const std::string& path, const std::string& name,
                            const std::string& where) const {
  const hid_t file = file_->id;
  NamedArray array;
  array.name = name;
  const Hdf5Handle dataset(H5Dopen2(file, path.c_str(), H5P_DEFAULT), H5Dclose);
  const Hdf5Handle type(dataset ? H5Dget_type(dataset.id()) : -1, H5Tclose);
  const H5T_class_t kind = type ? H5Tget_class(type.id()) : H5T_NO_CLASS;
  array.numbers = kind == H5T_INTEGER || kind == H5T_FLOAT;
  if (!array.numbers) return array;
  const Hdf5Handle space(H5Dget_space(dataset.id()), H5Sclose);
  const int rank = space ? H5Sget_simple_extent_ndims(space.id()) : -1;
  const bool wide = H5Tget_size(type.id()) == 8;
  const Hdf5Packing packing = hdf5_packing(dataset.id(), where + ": " + path);
  array.unit = hdf5_text(dataset.id(), "units");
  if (array.unit.ends_with(',')) array.unit.pop_back();
  if (kind == H5T_FLOAT) {
    wide ? keep_floats(read_as<double>(file, path, rank, H5T_NATIVE_DOUBLE, where, array), packing, array)
         : keep_floats(read_as<float>(file, path, rank, H5T_NATIVE_FLOAT, where, array), packing, array);
  } else {
    wide ? keep_integers(read_as<int64_t>(file, path, rank, H5T_NATIVE_INT64, where, array), packing, array)
         : keep_integers(read_as<int32_t>(file, path, rank, H5T_NATIVE_INT32, where, array), packing, array);
  }
  return array;
}

std::unique_ptr<TrajectorySource> hdf5_in_child(const std::filesystem::path& path, uint64_t bytes,
                                                OpenSource open, WarningCallback warn) {
  // Deflate packs at most 1032 : 1; real trajectories stay far below 32 : 1.
  constexpr uint64_t kMemory = uint64_t{512} << 20;
  constexpr uint64_t kBytesPerSecond = 10'000'000;
  const ChildLimits limits{.memory = kMemory + 32 * bytes,
                           .cpu_seconds = static_cast<int64_t>(5 + bytes / kBytesPerSecond)};
  return read_in_child(
      path, "HDF5", limits,
      [open = std::move(open)](const WarningCallback& warn_parent, const AliveCallback& alive) {
        H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
        H5Lunregister(H5L_TYPE_EXTERNAL);  // links to other files are not followed
        return open(warn_parent, alive);
      },
      std::move(warn));
}

}  // namespace meshgrad

#else

namespace meshgrad {

struct Hdf5Arrays::File {};
Hdf5Arrays::Hdf5Arrays(const std::filesystem::path& path) {
  throw data_error(path.string(), "a build of meshgrad with HDF5", "a build without HDF5",
                   "install libhdf5-dev and build again, or convert the file to NPZ");
}
Hdf5Arrays::~Hdf5Arrays() = default;
std::vector<std::string> Hdf5Arrays::paths() const { return {}; }
std::vector<int64_t> Hdf5Arrays::shape(const std::string&) const { return {}; }
uint64_t Hdf5Arrays::bytes(const std::string&) const { return 0; }
std::optional<double> Hdf5Arrays::attribute(const std::string&, const char*) const { return {}; }
NamedArray Hdf5Arrays::read(const std::string&, const std::string&, const std::string&) const { return {}; }

std::unique_ptr<TrajectorySource> hdf5_in_child(const std::filesystem::path&, uint64_t, OpenSource open,
                                                WarningCallback warn) {
  return open(warn, [](uint64_t) {});  // no HDF5 in this build, so no child process
}

}  // namespace meshgrad

#endif
