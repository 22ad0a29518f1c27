// SPDX-License-Identifier: Apache-2.0
// Objects of the HDF5 library, and whole data sets; for builds that have it.
#pragma once
#include <fmt/format.h>
#include <hdf5.h>

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <meshgrad/engine/error.h>

namespace meshgrad {

// Closes an HDF5 object with the function that belongs to its kind.
class Hdf5Handle {
 public:
  Hdf5Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Hdf5Handle() {
    if (id_ >= 0) close_(id_);
  }
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(Hdf5Handle&&) = delete;
  hid_t id() const { return id_; }
  hid_t release() { return std::exchange(id_, -1); }
  explicit operator bool() const { return id_ >= 0; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

template <class T>
struct Hdf5Array {
  std::vector<hsize_t> shape;
  std::vector<T> values;
};

/// What a data set of this class holds, as errors say it.
inline std::string_view hdf5_class_name(H5T_class_t kind) {
  constexpr std::array<std::string_view, 11> kNames{
      "integers",      "floats",     "times",        "text",          "bit fields", "opaque data",
      "compound data", "references", "enumerations", "variable text", "arrays"};
  const auto index = static_cast<size_t>(kind);  // H5T_NO_CLASS is -1
  return index < kNames.size() ? kNames[index] : "data of an unknown class";
}

/// Throws DataError, naming `where` and the data set, for one that is missing, damaged, of another rank, of
/// other data than numbers, or stored in other files.
template <class T>
Hdf5Array<T> read_hdf5_array(hid_t group, const char* name, int rank, hid_t memory_type,
                             const std::string& where, std::string_view fix) {
  const std::string here = where + ": " + name;
  const auto broken = [&](std::string_view needed, std::string_view got) {
    return data_error(here, needed, got, fix);
  };
  if (H5Lexists(group, name, H5P_DEFAULT) <= 0) throw broken("this data set", "none");
  const Hdf5Handle dataset(H5Dopen2(group, name, H5P_DEFAULT), H5Dclose);
  if (!dataset) throw broken("a data set", "a group or a type of this name");
  const Hdf5Handle creation(H5Dget_create_plist(dataset.id()), H5Pclose);
  if (!creation || H5Pget_layout(creation.id()) == H5D_VIRTUAL || H5Pget_external_count(creation.id()) != 0)
    throw broken("data in this file", "data in other files (virtual or external storage)");
  const Hdf5Handle space(H5Dget_space(dataset.id()), H5Sclose);
  const Hdf5Handle type(H5Dget_type(dataset.id()), H5Tclose);
  const H5T_class_t kind = type ? H5Tget_class(type.id()) : H5T_NO_CLASS;
  if (kind != H5T_INTEGER && kind != H5T_FLOAT) throw broken("numbers", hdf5_class_name(kind));
  const int dimensions = space ? H5Sget_simple_extent_ndims(space.id()) : 0;
  if (dimensions != rank) throw broken(fmt::format("{} dimensions", rank), fmt::format("{}", dimensions));
  Hdf5Array<T> array;
  array.shape.resize(static_cast<size_t>(rank));
  H5Sget_simple_extent_dims(space.id(), array.shape.data(), nullptr);
  hsize_t count = 1;
  bool overflow = false;
  for (const hsize_t dim : array.shape) overflow |= __builtin_mul_overflow(count, dim, &count);
  // A shape far beyond what is stored, even well compressed, is not allocated.
  const hsize_t stored = H5Dget_storage_size(dataset.id());
  if (overflow || count == 0 || count / 1032 > stored + 4096)
    throw broken("data", "an empty or unwritten data set");
  array.values.resize(count);
  if (H5Dread(dataset.id(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, array.values.data()) < 0) {
    throw broken("readable data", "a read error (damaged, too large, or compressed by an unknown filter)");
  }
  return array;
}

/// What the numbers of a data set take in memory; 0 for one that does not exist, or says more than what is
/// stored can be.
uint64_t unpacked_bytes(hid_t group, const char* name);

/// Throws DataError for what the library does not open, with the cause: no HDF5 file, a lock, a mark of its
/// writer, damage.
Hdf5Handle open_hdf5_file(const std::filesystem::path& path);

}  // namespace meshgrad
