// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/sources/hdf5_arrays.h>

#include <meshgrad/engine/error.h>

#include <utility>

#ifdef MESHGRAD_HAVE_HDF5
#include <cstddef>
#include <span>

#include <meshgrad/train/convert/sources/hdf5_dataset.h>

namespace meshgrad {
namespace {

template <class T>
void read_as(hid_t file, const std::string& path, int rank, hid_t memory_type, char kind,
             const std::string& where, NamedArray& array) {
  const Hdf5Array<T> all = read_hdf5_array<T>(file, path.c_str(), rank, memory_type, where,
                                              "write the file again, with this array as plain numbers in it");
  const auto bytes = std::as_bytes(std::span(all.values));
  array.bytes.assign(bytes.begin(), bytes.end());
  array.array.kind = kind;
  array.array.bytes = sizeof(T);
  for (const hsize_t size : all.shape) array.array.shape.push_back(static_cast<int64_t>(size));
  array.array.data = array.bytes;
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
  if (kind == H5T_FLOAT) {
    wide ? read_as<double>(file, path, rank, H5T_NATIVE_DOUBLE, 'f', where, array)
         : read_as<float>(file, path, rank, H5T_NATIVE_FLOAT, 'f', where, array);
  } else {
    wide ? read_as<int64_t>(file, path, rank, H5T_NATIVE_INT64, 'i', where, array)
         : read_as<int32_t>(file, path, rank, H5T_NATIVE_INT32, 'i', where, array);
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
NamedArray Hdf5Arrays::read(const std::string&, const std::string&, const std::string&) const { return {}; }

std::unique_ptr<TrajectorySource> hdf5_in_child(const std::filesystem::path&, uint64_t, OpenSource open,
                                                WarningCallback warn) {
  return open(warn, [] {});  // no HDF5 in this build, so no child process
}

}  // namespace meshgrad

#endif
