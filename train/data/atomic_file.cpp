// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/atomic_file.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

namespace meshgrad {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 18;

// Linux transfers at most 2 GiB - 4 KiB a call; smaller pieces also keep a signal's delay short.
constexpr std::size_t kMaxWriteBytes = std::size_t{1} << 30;

std::string advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free space on that disk (or raise the quota), or write to another directory";
    case EACCES:
    case EPERM:
      return "give yourself write permission to the directory, or write to another one";
    case EROFS:
      return "the file system is mounted read-only: write to another directory";
    case ENOENT:
      return "create the directory first, or correct the path";
    case ENOTDIR:
      return "a part of the path is a file, not a directory: correct the path";
    case ENAMETOOLONG:
      return "choose a shorter file name";
    case EFBIG:
      return "raise the file size limit (ulimit -f), or write to another file system";
    default:
      return "check the disk and the directory, or write to another one";
  }
}

std::filesystem::path parent_of(const std::filesystem::path& target) {
  return target.has_parent_path() ? target.parent_path() : std::filesystem::path(".");
}

std::string_view name_of_type(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISFIFO(mode)) return "a FIFO";
  return S_ISSOCK(mode) ? "a socket" : "a device";
}

/// Which of the files taken the output is, which may have several names; null: none of them.
const std::filesystem::path* taken_by(const OutputFile& output) {
  namespace fs = std::filesystem;
  std::error_code none;
  const auto whole = [&](const fs::path& path) {
    return fs::weakly_canonical(fs::absolute(path, none), none);
  };
  const auto found = std::ranges::find_if(output.taken, [&](const fs::path& taken) {
    if (taken.empty()) return false;
    return fs::exists(taken, none) ? fs::equivalent(output.path, taken, none)
                                   : !whole(taken).empty() && whole(taken) == whole(output.path);
  });
  return found == output.taken.end() ? nullptr : &*found;
}

/// Between the name of a target and the number of a temporary, which also begins with a dot.
constexpr std::string_view kTemporary = ".meshgrad.tmp.";

std::string temporary_name(const std::filesystem::path& target, int number) {
  return (parent_of(target) / fmt::format(".{}{}{}", target.filename().string(), kTemporary, number))
      .string();
}

/// Removes a temporary whose writer was killed; 0, or why not: EWOULDBLOCK when a writer holds its lock.
int remove_abandoned(const std::string& name) {
  const int descriptor = ::open(name.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return errno == ENOENT ? 0 : errno;
  const bool removed = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 && ::unlink(name.c_str()) == 0;
  const int error = removed ? 0 : errno;
  ::close(descriptor);
  return error;
}

}  // namespace

void check_output(const OutputFile& output) {
  const std::string where =
      fmt::format("{}{}{}", output.option, output.option.empty() ? "" : " ", output.path.string());
  const std::string needed =
      output.kind.empty() ? "a new name" : fmt::format("a new name or {}", output.kind);
  if (const std::filesystem::path* taken = taken_by(output)) {
    throw data_error(where, needed,
                     fmt::format("{}, which this command reads or writes, too", taken->string()), output.fix);
  }
  struct stat status {};
  if (::lstat(output.path.c_str(), &status) != 0) return;  // a path that is wrong is an error of the writer
  // Replacing a device or a FIFO would break the system, replacing a link would leave its file as it was.
  if (!S_ISREG(status.st_mode)) {
    throw data_error(
        where, needed, name_of_type(status.st_mode),
        S_ISLNK(status.st_mode) ? "name the file that the link points to, or remove the link" : output.fix);
  }
  if (status.st_size == 0) return;
  if (output.kind.empty()) throw data_error(where, needed, "a regular file", output.fix);
  if (output.is_of_kind != nullptr && !output.is_of_kind(output.path))
    throw data_error(where, needed, fmt::format("a file that is not {}", output.kind), output.fix);
  if (!output.replace) throw data_error(where, "a new name", output.kind, "--force replaces it");
}

AtomicFile::AtomicFile(std::filesystem::path target, Temporary kind) : target_(std::move(target)) {
  check_output({.path = target_});
  if (kind == Temporary::named || !open_unnamed()) take_name(&AtomicFile::open_named);
}

std::unique_ptr<AtomicFile> AtomicFile::sole(std::filesystem::path target) {
  check_output({.path = target});
  std::unique_ptr<AtomicFile> file(new AtomicFile);
  file->target_ = std::move(target);
  const int error = file->take_name(&AtomicFile::open_named, 0);
  if (error == 0) return file;
  if (error == EWOULDBLOCK) return nullptr;
  throw data_error(temporary_name(file->target_, 0),
                   "to lock and remove this file, as its writer may have been killed",
                   std::generic_category().message(error),
                   "remove it if no process writes it, or name a file on another file system");
}

/// False where the file system, or a system without /proc, cannot give such a file a name later.
bool AtomicFile::open_unnamed() {
  if (::access("/proc/self/fd", X_OK) != 0) return false;
  do {
    descriptor_ = ::open(parent_of(target_).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EINTR);
  return descriptor_ >= 0;  // opening a named file tells why a directory takes none at all
}

bool AtomicFile::open_named(const std::string& name) {
  // Not mkstemp: its 0600 would override the user's umask.
  descriptor_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0 && errno != EEXIST && errno != EINTR) fail("to open the file", errno);
  if (descriptor_ < 0) return false;
  ::flock(descriptor_, LOCK_EX | LOCK_NB);
  // Another writer may have removed the new file as abandoned before it was locked.
  struct stat status {};
  if (::fstat(descriptor_, &status) == 0 && status.st_nlink > 0) return true;
  ::close(std::exchange(descriptor_, -1));
  return false;
}

bool AtomicFile::link_unnamed(const std::string& name) {
  ::flock(descriptor_, LOCK_EX | LOCK_NB);
  const std::string unnamed = fmt::format("/proc/self/fd/{}", descriptor_);
  if (::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) return true;
  if (errno != EEXIST && errno != EINTR) fail("to name the file", errno);
  return false;
}

int AtomicFile::take_name(bool (AtomicFile::*take)(const std::string&), int number) {
  std::string name = temporary_name(target_, number);
  if (!(this->*take)(name)) {
    if (const int error = remove_abandoned(name); error != 0) return error;
    if (!(this->*take)(name)) return EWOULDBLOCK;
  }
  temporary_ = std::move(name);
  return 0;
}

void AtomicFile::take_name(bool (AtomicFile::*take)(const std::string&)) {
  for (int number = 0; take_name(take, number) != 0;) ++number;
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::write(std::span<const std::byte> bytes) {
  check_internal(descriptor_ >= 0, "AtomicFile::write after commit or after an error");
  size_ += bytes.size();
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() >= kBufferBytes) {
    write_through(bytes);
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::flush() {
  write_through(buffer_);
  buffer_.clear();
}

void AtomicFile::write_through(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ::ssize_t written = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kMaxWriteBytes));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("to write the file", written < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  check_internal(descriptor_ >= 0, "AtomicFile::commit after commit or after an error");
  flush();
  if (::fsync(descriptor_) != 0) fail("to flush the file to the disk", errno);
  if (temporary_.empty()) take_name(&AtomicFile::link_unnamed);
  // The copy keeps the lock until the rename; close can report errors of delayed writes (NFS, quotas).
  const int lock = ::fcntl(descriptor_, F_DUPFD_CLOEXEC, 0);
  const bool closed = ::close(std::exchange(descriptor_, -1)) == 0;
  const int close_error = errno;
  const bool renamed = closed && std::rename(temporary_.c_str(), target_.c_str()) == 0;
  const int rename_error = errno;
  if (lock >= 0) ::close(lock);
  if (!closed) fail("to close the file", close_error);
  if (!renamed) fail("to rename the file into place", rename_error);
  temporary_.clear();
  const int directory = ::open(parent_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return;  // a directory one may write to but not read: the rename itself is done
  const int error = ::fsync(directory) == 0 ? 0 : errno;
  ::close(directory);
  if (error != 0 && error != EINVAL && error != EROFS) fail("to flush the directory to the disk", error);
}

void AtomicFile::discard() noexcept {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());  // while it is locked, so that it is still ours
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  temporary_.clear();
  buffer_.clear();
}

void AtomicFile::fail(std::string_view action, int error) {
  discard();
  throw data_error(target_.string(), action, std::generic_category().message(error), advice(error));
}

void remove_abandoned_files(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".") && name.find(kTemporary) != name.npos) remove_abandoned(entry.path().string());
  }
}

void write_file_atomically(const std::filesystem::path& target, std::span<const std::byte> content) {
  AtomicFile file(target);
  file.write(content);
  file.commit();
}

void write_file_atomically(const std::filesystem::path& target, std::string_view content) {
  write_file_atomically(target, std::as_bytes(std::span(content)));
}

}  // namespace meshgrad
