// SPDX-License-Identifier: Apache-2.0
// A whole file mapped into memory, read-only.
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>

#include <meshgrad/engine/regular_file.h>

namespace meshgrad {

/// Unmaps when destroyed. An empty file gives an empty span. Where another process cuts the file short, or
/// the disk fails, reading raises SIGBUS: see `guard`.
class MappedFile {
 public:
  /// Throws DataError when the file is missing, not a regular file, or not readable, and OutOfMemory where
  /// the process may have no more addresses.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const RegularFile& file() const { return file_; }

  /// Lets replace_lost_pages act on this file: its user promises to ask lost() after reading, before the
  /// values count. Of more than 64 files at once the others stay unguarded.
  void guard();
  /// Pages were lost since guard(), and zeros were read.
  bool lost() const;

 private:
  RegularFile file_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int guard_ = -1;
};

/// For a program's handler of SIGBUS (the library installs none): when `address` is in a guarded file, its
/// pages from there on become zeros, and the interrupted read can go on; else false. Safe in a signal
/// handler.
bool replace_lost_pages(const void* address) noexcept;

}  // namespace meshgrad
