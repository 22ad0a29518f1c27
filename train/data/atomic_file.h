// SPDX-License-Identifier: Apache-2.0
// Files that are either completely there or not there at all: a reader, or a process killed at any moment,
// sees the old content or the new one, never a part of it. And which files an output may replace.
#pragma once
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// A file that a command is to write, and what of it may be there already.
struct OutputFile {
  std::filesystem::path path;
  std::string option;  ///< that names it, for errors: "--html"; may be empty
  /// What it replaces, with its article: "a page of meshgrad". Empty: nothing.
  std::string_view kind = "a regular file";
  /// Whether a regular file is of that kind. Null: each is.
  bool (*is_of_kind)(const std::filesystem::path& file) = nullptr;
  bool replace = true;  ///< false: --force was not given
  /// What the command reads, and its other outputs; names of files that do not exist are allowed.
  std::vector<std::filesystem::path> taken;
  std::string_view fix = "choose another name";
};

/// Every output passes here before anything is written. Throws DataError naming option and path, unless the
/// path is a new name or a regular file that may be replaced: of the output's kind, with `replace` and under
/// no name one of those taken. An empty file, as mktemp makes it, counts as a new name. A symbolic link is
/// never followed.
void check_output(const OutputFile& output);

/// A file under construction. Bytes go to a file without a name in the target's directory (O_TMPFILE), which
/// a killed process does not leave behind. `commit` flushes it to the disk, links it as
/// `.NAME.meshgrad.tmp.K`, renames that over the target and flushes the directory. Destroying the object
/// without `commit`, and any error, leaves an old target untouched.
///
/// Where the file system has no O_TMPFILE (NFS, some overlays), the temporary has that name from the start.
/// The writer holds a lock (flock) on it: one without a lock was abandoned by a killed process, and is
/// removed by the next writer of the same target, or by remove_abandoned_files.
///
/// Every failure (no such directory, no permission, disk full, ...) is a DataError naming the target, the
/// system's reason and the fix; so is a target that check_output refuses. Use by one thread at a time.
class AtomicFile {
 public:
  /// How the bytes are kept until `commit`; `named` is what file systems without O_TMPFILE get.
  enum class Temporary { unnamed, named };

  explicit AtomicFile(std::filesystem::path target, Temporary kind = Temporary::unnamed);
  /// With a name from the start, unless another file of this function for the same target is under
  /// construction, in any process: then null.
  static std::unique_ptr<AtomicFile> sole(std::filesystem::path target);
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
  AtomicFile() = default;
  bool open_unnamed();
  bool open_named(const std::string& name);
  bool link_unnamed(const std::string& name);
  /// Calls `take` with a temporary name, and again where that was abandoned. Returns 0, or why it has none:
  /// EWOULDBLOCK when another writer has it.
  int take_name(bool (AtomicFile::*take)(const std::string&), int number);
  /// The same with one name after the other, until one is taken.
  void take_name(bool (AtomicFile::*take)(const std::string&));
  void flush();
  void write_through(std::span<const std::byte> bytes);
  void discard() noexcept;
  [[noreturn]] void fail(std::string_view action, int error);

  std::filesystem::path target_;
  std::string temporary_;  // empty while the file has no name
  std::vector<std::byte> buffer_;
  std::size_t size_ = 0;
  int descriptor_ = -1;
};

/// Removes what killed writers left in a folder, whatever the target; what a writer still holds stays.
void remove_abandoned_files(const std::filesystem::path& folder);

/// Replaces the content of a file in one step: AtomicFile, one write, commit.
void write_file_atomically(const std::filesystem::path& target, std::string_view content);
void write_file_atomically(const std::filesystem::path& target, std::span<const std::byte> content);

}  // namespace meshgrad
