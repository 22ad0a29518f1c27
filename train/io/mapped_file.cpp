// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/io/host_memory_error.h>
#include <meshgrad/train/io/input_file.h>
#include <meshgrad/train/io/mapped_file.h>

namespace meshgrad {
MappedFile::MappedFile(const std::filesystem::path& path) {
  const InputFile file(path);
  size_ = static_cast<size_t>(file.bytes());
  if (size_ == 0) return;
  void* mapping = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (mapping == MAP_FAILED) {
    const int error = errno;
    if (error == ENOMEM) throw host_out_of_memory(path, "for the addresses of the file");
    throw data_error(path.string(), "a readable file", std::strerror(error), read_error_fix(error));
  }
  data_ = static_cast<const std::byte*>(mapping);
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
