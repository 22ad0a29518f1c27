// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/run/folder_lock.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
#include <utility>

namespace meshgrad {
namespace {

std::string this_process() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("process {} on {} since {:%Y-%m-%d %H:%M:%S} UTC", ::getpid(), host.data(),
                     fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
}

/// What the holder wrote, on one line.
std::string holder_of(int descriptor) {
  std::array<char, 400> text{};
  const ::ssize_t bytes = ::pread(descriptor, text.data(), text.size(), 0);
  std::string holder(text.data(), static_cast<std::size_t>(std::max<::ssize_t>(bytes, 0)));
  if (const auto end = holder.find('\n'); end != holder.npos) holder.resize(end);
  return holder.empty() ? "another process" : holder;
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "run.lock";
  descriptor_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (descriptor_ < 0) {
    throw data_error(file.string(), "to open the file that locks the folder",
                     std::generic_category().message(errno), "give a run directory that can be written");
  }
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    const std::string holder = holder_of(descriptor_);
    ::close(std::exchange(descriptor_, -1));
    throw config_error("run.dir", "a folder that no other process writes to",
                       folder.string() + ", which " + holder + " trains in",
                       "wait for that run, stop it, or choose another run.dir");
  }
  // A file system without flock leaves the folder unlocked; the note about the holder is only for its reader.
  const std::string holder = this_process() + "\n";
  if (::ftruncate(descriptor_, 0) == 0) [[maybe_unused]]
    const ::ssize_t written = ::pwrite(descriptor_, holder.data(), holder.size(), 0);
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

FolderLock::FolderLock(FolderLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

bool folder_is_locked(const std::filesystem::path& folder) {
  const int file = ::open((folder / "run.lock").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return false;
  const bool locked = ::flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(file);
  return locked;
}

}  // namespace meshgrad
