// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/io/host_memory_error.h>
#include <meshgrad/train/io/mapped_file.h>

namespace meshgrad {
namespace {

DataError open_error(const std::filesystem::path& path, int error) {
  const char* fix = error == ENOENT   ? "check the path"
                    : error == EACCES ? "make the file readable for you"
                                      : "check the file and the disk";
  return data_error(path.string(), "a readable file", std::strerror(error), fix);
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw open_error(path, errno);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    const int error = errno;
    ::close(descriptor);
    throw open_error(path, error);
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor);
    throw data_error(path.string(), "a regular file", S_ISDIR(status.st_mode) ? "a folder" : "a special file",
                     "name the file itself");
  }
  size_ = static_cast<size_t>(status.st_size);
  if (size_ > 0) {
    void* mapping = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0);
    const int error = errno;
    if (mapping == MAP_FAILED) {
      ::close(descriptor);
      if (error == ENOMEM) throw host_out_of_memory(path, "for the addresses of the file");
      throw open_error(path, error);
    }
    data_ = static_cast<const std::byte*>(mapping);
  }
  ::close(descriptor);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace meshgrad
