// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>

namespace meshgrad {
namespace {

DataError cannot_read(const std::filesystem::path& path, int error) {
  return data_error(path.string(), "a readable file", std::strerror(error), read_error_fix(error));
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

const char* read_error_fix(int error) {
  switch (error) {
    case ENOENT:
      return "check the path";
    case ENOTDIR:
      return "check the path: a part of it is a file";
    case EACCES:
    case EPERM:
      return "make the file and its folders readable for you";
    case ELOOP:
      return "remove the loop of symbolic links";
    case ENAMETOOLONG:
      return "use a shorter name";
    case ENXIO:
      return "name a regular file";
    default:
      return "check the file and the disk";
  }
}

RegularFile::RegularFile(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO would wait for a writer. It has no effect on regular files.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor_ < 0) throw cannot_read(path, errno);
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) {
    const int error = errno;
    ::close(descriptor_);
    throw cannot_read(path, error);
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    throw data_error(path.string(), "a regular file", kind_of(status.st_mode),
                     S_ISDIR(status.st_mode) ? "name the file itself" : "copy the data into a regular file");
  }
  bytes_ = static_cast<uint64_t>(status.st_size);
}

RegularFile::~RegularFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

RegularFile::RegularFile(RegularFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), bytes_(other.bytes_) {}

RegularFile& RegularFile::operator=(RegularFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

FileStamp RegularFile::stamp(const std::filesystem::path& name) const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) throw cannot_read(name, errno);
  return {static_cast<uint64_t>(status.st_size), status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

std::string read_file(const std::filesystem::path& path, size_t at_most) {
  const RegularFile file(path);
  std::string text;
  size_t got = 0;
  // To the end, not to the size: a log may grow meanwhile, and files of /proc have size 0.
  while (got < at_most) {
    if (got == text.size())
      text.resize(std::min(at_most, std::max<size_t>(2 * got, static_cast<size_t>(file.bytes()) + 1)));
    const ::ssize_t count = ::read(file.descriptor(), text.data() + got, text.size() - got);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw cannot_read(path, errno);
    if (count == 0) break;
    got += static_cast<size_t>(count);
  }
  text.resize(got);
  return text;
}

bool path_exists(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  throw data_error(path.string(), "a path that can be used", std::strerror(errno), read_error_fix(errno));
}

}  // namespace meshgrad
