// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/data/mapped_file.h>
#include <meshgrad/train/learn/run/environment.h>
#include <meshgrad/train/learn/run/run_folder.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

namespace meshgrad {

namespace fs = std::filesystem;

namespace {

constexpr const char* kLockFile = "run.lock";

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
  return holder.empty() ? "a process without a name" : holder;
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw config_error("run.dir", "a folder that can be made", folder.string() + ": " + error.message(),
                       "choose another run.dir");
  }
}

}  // namespace

FolderLock::FolderLock(const fs::path& folder) : FolderLock() {
  folder_ = folder;
  open_file();
  // This lock holds when someone removes the file; NFS locks only files that are open for writing.
  of_folder_ = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  lock(of_folder_);
  lock(of_file_);
}

FolderLock::~FolderLock() {
  for (const int descriptor : {of_folder_, of_file_})
    if (descriptor >= 0) ::close(descriptor);
}

FolderLock::FolderLock(FolderLock&& other) noexcept : FolderLock() { *this = std::move(other); }

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(folder_, other.folder_);
  std::swap(of_folder_, other.of_folder_);
  std::swap(of_file_, other.of_file_);
  std::swap(locked_, other.locked_);
  std::swap(folder_locked_, other.folder_locked_);
  return *this;
}

void FolderLock::renew() {
  struct stat held {
  }, named{};
  if (of_file_ < 0 || ::fstat(of_file_, &held) != 0) return;
  const bool there = ::stat((folder_ / kLockFile).c_str(), &named) == 0;
  if (there && held.st_dev == named.st_dev && held.st_ino == named.st_ino) return;
  ::close(std::exchange(of_file_, -1));
  try {
    open_file();
  } catch (const DataError&) {
    if (folder_locked_) return;  // which keeps others out as well
    throw;
  }
  lock(of_file_);
}

void FolderLock::open_file() {
  const fs::path file = folder_ / kLockFile;
  of_file_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (of_file_ >= 0) return;
  throw data_error(file.string(), "to open the file that locks the folder",
                   std::generic_category().message(errno), "give a run directory that can be written");
}

/// Of the folder or its file; then the file names this process, which is only for its reader.
void FolderLock::lock(int descriptor) {
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return;  // no locks
    throw config_error("run.dir", "a folder that no other process writes to",
                       folder_.string() + ", which " + holder_of(of_file_) + " trains in",
                       "wait for that run, stop it, or choose another run.dir");
  }
  locked_ = true;
  folder_locked_ = folder_locked_ || descriptor == of_folder_;
  const std::string holder = this_process() + "\n";
  if (descriptor == of_file_ && ::ftruncate(of_file_, 0) == 0) [[maybe_unused]]
    const ::ssize_t written = ::pwrite(of_file_, holder.data(), holder.size(), 0);
}

bool folder_is_locked(const fs::path& folder) {
  return std::ranges::any_of(std::array{folder, folder / kLockFile}, [](const fs::path& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0) return false;
    const bool locked = ::flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    ::close(descriptor);
    return locked;
  });
}

/// A file that a new run would overwrite or remove; empty when there is none. Metrics alone are those of a
/// run that ended before its first checkpoint: with the same configuration, it may start again.
std::string RunFolder::found_run(const Config& config) const {
  if (path_exists(last())) return last().string();
  std::error_code error;
  for (fs::directory_iterator at(checkpoints(), error), end; !error && at != end; at.increment(error))
    if (!at->path().filename().string().starts_with(".")) return at->path().string();
  const fs::path metrics = dir_ / "metrics.jsonl";
  const fs::path resolved = dir_ / "config.resolved.toml";
  if (!path_exists(metrics) || RegularFile(metrics).bytes() == 0) return "";
  const bool same = path_exists(resolved) && read_file(resolved) == to_toml(config);
  return same ? "" : metrics.string();
}

/// The files that this run will write: in a folder without a run.lock, which each run leaves, a user's.
void RunFolder::check_files() const {
  const std::string_view kind = path_exists(dir_ / kLockFile) ? OutputFile{}.kind : "";
  for (const char* name : {"config.resolved.toml", "environment.json", "metrics.jsonl", "events.jsonl",
                           "log.txt", "loss.svg", "memory/history.json"}) {
    check_output({.path = dir_ / name,
                  .option = "run.dir",
                  .kind = kind,
                  .fix = "choose another run.dir, or move that file away"});
  }
}

void RunFolder::create(const Config& config) {
  make_folder(dir_);
  if (!folder_is_locked(dir_)) check_files();  // a running one is named by the lock
  lock_ = FolderLock(dir_);
  if (const std::string found = found_run(config); !found.empty()) {
    throw config_error("run.dir", "a folder without another run", dir_.string() + ", which has " + found,
                       "add --resume to resume that run, choose another run.dir, or move the folder away");
  }
  make_folder(checkpoints());
}

void RunFolder::reopen() {
  lock_ = FolderLock(dir_);
  check_files();
  for (const fs::path& folder : {dir_, checkpoints(), scores(0).parent_path()})
    remove_abandoned_files(folder);
}

fs::path RunFolder::scores(int64_t epochs) const {
  return dir_ / "curriculum" / fmt::format("scores-{:06}.safetensors", epochs);
}

void RunFolder::write_config(const Config& config) const {
  write_file_atomically(dir_ / "config.resolved.toml", to_toml(config));
}

void RunFolder::write_environment(const std::vector<std::string>& command, Device device) const {
  meshgrad::write_environment(dir_ / "environment.json", command, {{"device", name_of(device)}});
}

void RunFolder::number_last(int64_t step, int64_t keep) const {
  const fs::path numbered = checkpoints() / fmt::format("step-{:09}.safetensors", step);
  std::error_code ignored, unlinked;
  fs::remove(numbered, ignored);
  fs::create_hard_link(last(), numbered, unlinked);
  if (unlinked) write_file_atomically(numbered, MappedFile(last()).bytes());
  std::vector<fs::path> links;
  for (const auto& entry : fs::directory_iterator(checkpoints(), ignored)) {
    if (entry.path().filename().string().starts_with("step-") && entry.path() <= numbered)
      links.push_back(entry.path());
  }
  std::sort(links.begin(), links.end());
  for (size_t i = 0; i + static_cast<size_t>(keep) < links.size(); ++i) fs::remove(links[i], ignored);
}

}  // namespace meshgrad
