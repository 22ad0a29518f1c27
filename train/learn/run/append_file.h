// SPDX-License-Identifier: Apache-2.0
// Files that grow while a run runs: each append reaches the operating system at once and whole.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace meshgrad {

/// A file open for appending. Errors (no permission, disk full, ...) are DataErrors naming the file, the
/// system's reason and the fix. Use by one thread at a time.
class AppendFile {
 public:
  /// Opens or creates the file and cuts it to its first `keep_bytes` bytes.
  AppendFile(std::filesystem::path path, std::uint64_t keep_bytes);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;

  /// Returns when the operating system has all bytes: they survive the death of the process, though not that
  /// of the machine.
  void append(std::span<const std::byte> bytes);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace meshgrad
