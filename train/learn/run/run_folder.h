// SPDX-License-Identifier: Apache-2.0
// RunFolder: the files of a run: config.resolved.toml, environment.json, checkpoints/. One process at a time
// writes to it.
#pragma once
#include <meshgrad/train/learn/config/config.h>

#include <filesystem>
#include <string>
#include <vector>

namespace meshgrad {

/// Holds a folder and its file `run.lock` locked (flock) until it is destroyed or the process ends, however
/// it ends. The file names the holder: process, host, and since when. It stays when the lock is released.
class FolderLock {
 public:
  FolderLock() = default;  ///< holds nothing
  /// Throws ConfigError for run.dir, naming the holder, when another process or another FolderLock holds it;
  /// DataError when the file cannot be made.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;

  /// False on a file system without locks: then nothing keeps a second process out.
  bool locked() const { return locked_; }
  /// Makes and locks the file again where it was removed, and throws as the constructor does when another
  /// process has done so since. A file that cannot be made is an error only where the folder has no lock.
  void renew();

 private:
  void open_file();
  void lock(int descriptor);

  std::filesystem::path folder_;
  int of_folder_ = -1, of_file_ = -1;  // descriptors
  bool locked_ = false, folder_locked_ = false;
};

/// Whether a process holds a folder's lock now. Without the file, and where locks cannot be asked for: false.
bool folder_is_locked(const std::filesystem::path& folder);

class RunFolder {
 public:
  explicit RunFolder(std::filesystem::path dir) : dir_(std::move(dir)) {}

  const std::filesystem::path& path() const { return dir_; }
  std::filesystem::path last() const { return checkpoints() / "last.safetensors"; }
  std::filesystem::path best() const { return checkpoints() / "best.safetensors"; }

  /// Of the training samples, made after so many epochs (curriculum.*).
  std::filesystem::path scores(int64_t epochs) const;

  /// For a new run: makes the folder and locks it. Throws ConfigError when the folder has checkpoints, or
  /// metrics of a run with another configuration, cannot be made, or another process trains in it; DataError
  /// for a file that the run would replace in a folder that no run has had, and for a link in place of one.
  void create(const Config& config);
  /// For a resumed run: locks the folder and removes the temporary files of a killed process. Throws
  /// DataError for a link in place of a file that the run writes.
  void reopen();
  /// False on a file system without locks.
  bool locked() const { return lock_.locked(); }
  /// Before a checkpoint is written. Throws ConfigError where a second process has taken the folder, after
  /// its run.lock was removed.
  void check_held() { lock_.renew(); }
  void write_config(const Config& config) const;
  void write_environment(const std::vector<std::string>& command, Device device) const;
  /// Links step-NNNNNNNNN.safetensors to the same bytes as last.safetensors (copies it where the file system
  /// has no links), and removes the oldest numbered checkpoints beyond `keep`. Those of later steps stay
  /// until this run has come that far.
  void number_last(int64_t step, int64_t keep) const;

 private:
  std::string found_run(const Config& config) const;
  void check_files() const;
  std::filesystem::path checkpoints() const { return dir_ / "checkpoints"; }
  std::filesystem::path dir_;
  FolderLock lock_;  // for the life of the run
};

}  // namespace meshgrad
