// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/io/atomic_file.h>
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
    case EISDIR:
      return "a directory has that name: choose another file name";
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

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path target) : target_(std::move(target)) {
  if (std::error_code ignored; std::filesystem::is_directory(target_, ignored))
    fail("to open the file", EISDIR);
  // Not mkstemp: its 0600 would override the user's umask.
  const std::string prefix = fmt::format(".{}.tmp.{}.", target_.filename().string(), ::getpid());
  for (int attempt = 0; descriptor_ < 0; ++attempt) {
    std::string name = (parent_of(target_) / (prefix + std::to_string(attempt))).string();
    descriptor_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ >= 0) {
      temporary_ = std::move(name);
    } else if (errno != EEXIST && errno != EINTR) {
      fail("to open the file", errno);
    }
  }
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
  // close can report the errors of delayed writes (NFS, quotas), so it comes before the rename.
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("to close the file", errno);
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail("to rename the file into place", errno);
  temporary_.clear();
  const int directory = ::open(parent_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return;  // a directory one may write to but not read: the rename itself is done
  const int error = ::fsync(directory) == 0 ? 0 : errno;
  ::close(directory);
  if (error != 0 && error != EINVAL && error != EROFS) fail("to flush the directory to the disk", error);
}

void AtomicFile::discard() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
  buffer_.clear();
}

void AtomicFile::fail(std::string_view action, int error) {
  discard();
  throw data_error(target_.string(), action, std::generic_category().message(error), advice(error));
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
