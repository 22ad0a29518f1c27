// SPDX-License-Identifier: Apache-2.0
// HDF5 files. Damaged ones, which begin as such files do, may crash the library: in a child process, so that
// here they are one error. Sound ones are made of any other input, and read in this process.
#include <fuzzer/FuzzedDataProvider.h>
#include <hdf5.h>
#include <meshgrad/train/convert/sources/hdf5_dataset.h>
#include <meshgrad/train/convert/sources/hdf5_source.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "fuzz/fuzz.h"

using namespace meshgrad;

namespace {

void read_all(const std::filesystem::path& path, bool sound) {
  const auto warn = [](const std::string& text) {
    if (text.empty()) __builtin_trap();
  };
  fuzz::expect_value_or_error([&] {
    const auto source =
        sound ? open_hdf5_here(path, {}, {}, warn, [](uint64_t) {}) : open_hdf5(path, {}, {}, warn);
    while (const auto trajectory = source->next()) validate(*trajectory);
  });
}

void add_dataset(hid_t file, FuzzedDataProvider& in) {
  constexpr std::array<const char*, 12> kPaths{
      "data/0/nodal_data", "data/0/mesh_edge", "data/1/nodal_data", "data/1/mesh_edge", "mesh_pos", "cells",
      "runs/1/u",          "runs/2/u",         "node_type",         "mesh_edge",        "data/x",   "times"};
  const std::string path = in.PickValueInArray(kPaths);
  std::vector<hsize_t> shape;
  size_t count = 1;
  for (auto rank = in.ConsumeIntegralInRange(0, 4); rank > 0; --rank) {
    shape.push_back(in.ConsumeIntegralInRange<hsize_t>(0, 6));
    count *= shape.back();
  }
  std::vector<double> values(count);
  for (double& value : values) value = in.ConsumeIntegralInRange(-1, 12) / 2.0;
  const std::array<hid_t, 6> types{H5T_NATIVE_FLOAT, H5T_NATIVE_DOUBLE, H5T_NATIVE_INT32,
                                   H5T_NATIVE_INT64, H5T_NATIVE_UINT8,  H5T_IEEE_F32BE};
  const Hdf5Handle space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), H5Sclose);
  const Hdf5Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(links.id(), 1);
  const Hdf5Handle set(H5Dcreate2(file, path.c_str(), in.PickValueInArray(types), space.id(), links.id(),
                                  H5P_DEFAULT, H5P_DEFAULT),
                       H5Dclose);
  if (set && count > 0 && in.ConsumeIntegralInRange(0, 7) > 0)
    H5Dwrite(set.id(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
}

void add_features(hid_t file, FuzzedDataProvider& in) {
  const std::string names = in.ConsumeRandomLengthString(40);
  if (names.empty()) return;
  const Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.id(), names.size());
  const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Hdf5Handle attribute(H5Acreate2(file, "features", type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT),
                             H5Aclose);
  H5Awrite(attribute.id(), type.id(), names.data());
}

void make(const std::filesystem::path& path, FuzzedDataProvider& in) {
  const Hdf5Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
  if (!file) __builtin_trap();
  add_features(file.id(), in);
  for (auto count = in.ConsumeIntegralInRange(0, 6); count > 0; --count) add_dataset(file.id(), in);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("meshgrad_fuzz_" + std::to_string(getpid()) + ".h5");
  const bool raw = size > 0 && data[0] == 0x89;
  if (raw) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  } else {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    FuzzedDataProvider in(data, size);
    make(path, in);
  }
  read_all(path, !raw);
  std::filesystem::remove(path);
  return 0;
}
