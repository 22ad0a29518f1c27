// SPDX-License-Identifier: Apache-2.0
// The data sets of one HDF5 file as arrays.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <meshgrad/train/convert/sources/array_trajectory.h>
#include <meshgrad/train/convert/sources/child_source.h>
#include <meshgrad/train/convert/sources/trajectory_source.h>

namespace meshgrad {

/// The library may crash on damaged files: to be used only in the processes of hdf5_in_child.
class Hdf5Arrays {
 public:
  /// Throws DataError for what is no HDF5 file, and in a build without HDF5.
  explicit Hdf5Arrays(const std::filesystem::path& path);
  ~Hdf5Arrays();
  Hdf5Arrays(const Hdf5Arrays&) = delete;
  Hdf5Arrays& operator=(const Hdf5Arrays&) = delete;
  /// Paths of all data sets, such as "flow/u", but for dimensions of netCDF-4 without values.
  std::vector<std::string> paths() const;
  std::vector<int64_t> shape(const std::string& dataset) const;
  /// What it takes in memory.
  uint64_t bytes(const std::string& dataset) const;
  /// The number of an attribute of a group or a data set.
  std::optional<double> attribute(const std::string& object, const char* name) const;
  /// A data set as `name`; without numbers where it holds others. Attributes of CF and UGRID are followed
  /// (hdf5_attributes.h): scaled values are f64, missing ones nan, or -1 in connectivity. Throws DataError
  /// with `where` for data that is missing, damaged, or in another file.
  NamedArray read(const std::string& dataset, const std::string& name, const std::string& where) const;

 private:
  struct File;
  std::unique_ptr<File> file_;
};

/// read_in_child with limits for HDF5 files of so many bytes; links to other files are not followed.
std::unique_ptr<TrajectorySource> hdf5_in_child(const std::filesystem::path& path, uint64_t bytes,
                                                OpenSource open, WarningCallback warn);

}  // namespace meshgrad
