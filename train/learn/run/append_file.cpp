// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/run/append_file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

namespace meshgrad {
namespace {

DataError failure(const std::filesystem::path& path, std::string_view needed, int error) {
  return data_error(path.string(), needed, std::generic_category().message(error),
                    error == ENOSPC || error == EDQUOT
                        ? "free space on that disk, then resume the run"
                        : "give a run directory that exists and can be written");
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path path, std::uint64_t keep_bytes) : path_(std::move(path)) {
  // Without O_NONBLOCK a FIFO would wait for its reader.
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
  if (descriptor_ < 0) throw failure(path_, "to open the file for appending", errno);
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(std::exchange(descriptor_, -1));
    throw data_error(path_.string(), "a regular file to append to", "a device, FIFO or socket",
                     "remove it, or choose another run.dir");
  }
  if (::ftruncate(descriptor_, static_cast<off_t>(keep_bytes)) != 0) {
    const int error = errno;
    ::close(descriptor_);
    throw failure(path_, "to cut the file to its kept part", error);
  }
}

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void AppendFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ::ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw failure(path_, "to append to the file", written < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

}  // namespace meshgrad
