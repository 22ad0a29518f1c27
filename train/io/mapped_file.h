// SPDX-License-Identifier: Apache-2.0
// A whole file mapped into memory, read-only.
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>

namespace meshgrad {

/// Unmaps when destroyed. An empty file gives an empty span. Bytes of a file that another process cuts short
/// while it is mapped must not be read.
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

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace meshgrad
