// SPDX-License-Identifier: Apache-2.0
// Files that are read: regular files only, so that a FIFO or a device neither blocks nor feeds without end.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

namespace meshgrad {

/// What a user can do about an errno of open, stat or read.
const char* read_error_fix(int error);

/// Differs after a file was written in place, unless within one tick of the system's clock (about 4 ms).
struct FileStamp {
  uint64_t bytes = 0;
  int64_t seconds = 0, nanoseconds = 0;  ///< modification time
  bool operator==(const FileStamp&) const = default;
};

/// A regular file open for reading. Closed when destroyed.
class RegularFile {
 public:
  /// Never waits for a writer. Throws DataError when the file is missing, not readable, or not regular.
  explicit RegularFile(const std::filesystem::path& path);
  ~RegularFile();
  RegularFile(RegularFile&& other) noexcept;
  RegularFile& operator=(RegularFile&& other) noexcept;
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;

  int descriptor() const { return descriptor_; }
  /// When it was opened.
  uint64_t bytes() const { return bytes_; }
  /// Size and time of the last change of content, now. Throws DataError when the file is out of reach.
  FileStamp stamp(const std::filesystem::path& name) const;

 private:
  int descriptor_ = -1;
  uint64_t bytes_ = 0;
};

/// The bytes of a regular file, or its first `at_most`. Throws DataError as RegularFile does.
std::string read_file(const std::filesystem::path& path, size_t at_most = std::numeric_limits<size_t>::max());

/// True for a name that exists. Where that cannot be known (no permission, a loop of links, a name that is
/// too long): DataError.
bool path_exists(const std::filesystem::path& path);

}  // namespace meshgrad
