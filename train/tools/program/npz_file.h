// SPDX-License-Identifier: Apache-2.0
// Writes NPZ files, as NumPy and meshgrad convert read them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// A zip of arrays (.npy, version 1.0), stored as they are. Little endian.
class NpzFile {
 public:
  /// Adds an array of float, double, int32_t or int64_t, in C order; its name must be new.
  template <class T>
  void add(const std::string& name, const std::vector<int64_t>& shape, std::span<const T> values);

  /// Goes through AtomicFile, with the words of kMark near the beginning. Throws DataError for a file of 4
  /// GiB and more, which the zip format has in another form.
  void write(const std::filesystem::path& path) const;

  static constexpr uint64_t kMostBytes = (uint64_t{1} << 32U) - (uint64_t{1} << 20U);  // of all arrays

 private:
  struct Member {
    std::string name, header;  // of the .npy
    std::vector<std::byte> values;
  };
  void add(const std::string& name, std::string_view type, const std::vector<int64_t>& shape,
           std::span<const std::byte> values);
  std::vector<Member> members_;
};

}  // namespace meshgrad
