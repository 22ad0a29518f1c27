// SPDX-License-Identifier: Apache-2.0
// Files that are either completely there or not there at all: a reader, or a process killed at any moment,
// sees the old content or the new one, never a part of it.
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// A file under construction. Bytes go to a temporary beside the target, `.NAME.tmp.PID.K` (same directory,
/// so that the rename is atomic); `commit` flushes it to the disk, renames it over the target and flushes the
/// directory. Destroying the object without `commit`, and any error, removes the temporary and leaves an old
/// target untouched. A killed process leaves its temporary behind; nothing ever reads it.
///
/// Every failure (no such directory, no permission, disk full, ...) is a DataError naming the target, the
/// system's reason and the fix. Use by one thread at a time.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends bytes. Small writes are collected, large ones go straight to the file.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);

  /// Bytes appended so far.
  std::size_t size() const { return size_; }

  /// Makes the new content the content of the target, durably. At most once; no write may follow.
  void commit();

 private:
  void flush();
  void write_through(std::span<const std::byte> bytes);
  void discard() noexcept;
  [[noreturn]] void fail(std::string_view action, int error);

  std::filesystem::path target_;
  std::string temporary_;
  std::vector<std::byte> buffer_;
  std::size_t size_ = 0;
  int descriptor_ = -1;
};

/// Replaces the content of a file in one step: AtomicFile, one write, commit.
void write_file_atomically(const std::filesystem::path& target, std::string_view content);
void write_file_atomically(const std::filesystem::path& target, std::span<const std::byte> content);

}  // namespace meshgrad
