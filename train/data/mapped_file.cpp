// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/host_memory_error.h>
#include <meshgrad/train/data/mapped_file.h>

namespace meshgrad {
namespace {

struct GuardedRange {
  std::atomic<bool> taken{false};
  std::atomic<uintptr_t> begin{0}, end{0};  // begin 0: none
  std::atomic<bool> lost{false};
};

// A signal handler can access static data only.
std::array<GuardedRange, 64> guarded_ranges;
static_assert(std::atomic<uintptr_t>::is_always_lock_free);

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path)
    : file_(path), size_(static_cast<size_t>(file_.bytes())) {
  if (size_ == 0) return;
  void* mapping = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file_.descriptor(), 0);
  if (mapping == MAP_FAILED) {
    const int error = errno;
    if (error == ENOMEM) throw host_out_of_memory(path, "for the addresses of the file");
    throw data_error(path.string(), "a readable file", std::strerror(error), read_error_fix(error));
  }
  data_ = static_cast<const std::byte*>(mapping);
}

MappedFile::~MappedFile() {
  if (guard_ >= 0) {
    GuardedRange& range = guarded_ranges[static_cast<size_t>(guard_)];
    range.begin = 0;
    range.taken = false;
  }
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : file_(std::move(other.file_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      guard_(std::exchange(other.guard_, -1)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(guard_, other.guard_);
  return *this;
}

void MappedFile::guard() {
  if (guard_ >= 0 || data_ == nullptr) return;
  for (size_t i = 0; i < guarded_ranges.size(); ++i) {
    GuardedRange& range = guarded_ranges[i];
    if (range.taken.exchange(true)) continue;
    range.lost = false;
    range.end = reinterpret_cast<uintptr_t>(data_) + size_;
    range.begin = reinterpret_cast<uintptr_t>(data_);
    guard_ = static_cast<int>(i);
    return;
  }
}

bool MappedFile::lost() const { return guard_ >= 0 && guarded_ranges[static_cast<size_t>(guard_)].lost; }

bool replace_lost_pages(const void* address) noexcept {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (GuardedRange& range : guarded_ranges) {
    const uintptr_t end = range.end;
    if (range.begin == 0 || at < range.begin || at >= end) continue;
    range.lost = true;
    const uintptr_t first = at / page * page;
    return ::mmap(reinterpret_cast<void*>(first), end - first, PROT_READ,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
  }
  return false;
}

}  // namespace meshgrad
