// SPDX-License-Identifier: Apache-2.0
// NPZ files for tests: arrays by name, stored or deflated.
#pragma once
#include <doctest/doctest.h>
#include <zip.h>

#include <filesystem>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "train/scratch_directory.h"

namespace meshgrad::test {

/// A .npy file: `descr` as NumPy names the type, `shape` as a Python tuple.
template <class T>
std::string npy(const char* descr, const std::string& shape, const std::vector<T>& values) {
  std::string header =
      std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size());
  file += '\0';
  file += header;
  return file.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

using NpzArrays = std::map<std::string, std::string>;

/// first, first + 1, ...
inline std::vector<float> counting(size_t count, float first = 0) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

/// A square of two triangles, two of its nodes of type 6; u counts from `first` over the frames. Shapes of
/// positions and cells begin with `leading`.
inline NpzArrays square_arrays(size_t frames, float first = 0, const std::string& leading = "") {
  return {{"mesh_pos", npy<float>("<f4", "(" + leading + "4, 2)", {0, 0, 1, 0, 1, 1, 0, 1})},
          {"cells", npy<int32_t>("<i4", "(" + leading + "2, 3)", {0, 1, 2, 0, 2, 3})},
          {"node_type", npy<int32_t>("<i4", "(4,)", {0, 0, 6, 6})},
          {"u", npy<float>("<f4", "(" + std::to_string(frames) + ", 4, 1)", counting(4 * frames, first))}};
}

/// Writes the arrays, and returns the bytes of the file: the same for the same arrays.
inline std::string write_npz(const std::filesystem::path& path, const NpzArrays& arrays, bool compressed) {
  zip_t* archive = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, nullptr);
  REQUIRE(archive != nullptr);
  for (const auto& [name, bytes] : arrays) {
    zip_source_t* source = zip_source_buffer(archive, bytes.data(), bytes.size(), 0);
    const zip_int64_t index = zip_file_add(archive, (name + ".npy").c_str(), source, 0);
    REQUIRE(index >= 0);
    zip_set_file_compression(archive, static_cast<zip_uint64_t>(index),
                             compressed ? ZIP_CM_DEFLATE : ZIP_CM_STORE, 0);
    zip_file_set_mtime(archive, static_cast<zip_uint64_t>(index), 1'000'000'000, 0);
  }
  REQUIRE(zip_close(archive) == 0);
  return read_text(path);
}

}  // namespace meshgrad::test
