// SPDX-License-Identifier: Apache-2.0
// FolderLock: a folder that one process at a time writes to.
#pragma once
#include <filesystem>

namespace meshgrad {

/// Holds `FOLDER/run.lock` locked (flock) until it is destroyed or the process ends, however it ends. The
/// file names the holder: process, host, and since when. It stays when the lock is released.
class FolderLock {
 public:
  FolderLock() = default;  ///< holds nothing
  /// Throws ConfigError for run.dir, naming the holder, when another process or another FolderLock holds it;
  /// DataError when the file cannot be made.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;

 private:
  int descriptor_ = -1;
};

/// Whether a process holds a folder's lock now. Without the file, and where locks cannot be asked for: false.
bool folder_is_locked(const std::filesystem::path& folder);

}  // namespace meshgrad
