// SPDX-License-Identifier: Apache-2.0
// RunFolder: the files of a run: config.resolved.toml, environment.json, checkpoints/.
#pragma once
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/learn/run/folder_lock.h>

#include <filesystem>
#include <string>
#include <vector>

namespace meshgrad {

class RunFolder {
 public:
  explicit RunFolder(std::filesystem::path dir) : dir_(std::move(dir)) {}

  const std::filesystem::path& path() const { return dir_; }
  std::filesystem::path last() const { return checkpoints() / "last.safetensors"; }
  std::filesystem::path best() const { return checkpoints() / "best.safetensors"; }

  /// For a new run: makes the folder and locks it. Throws ConfigError when the folder has checkpoints, or
  /// metrics of a run with another configuration, cannot be made, or another process trains in it.
  void create(const Config& config);
  /// For a resumed run: locks the folder and removes the temporary files of a killed process.
  void reopen();
  void write_config(const Config& config) const;
  void write_environment(const std::vector<std::string>& command, Device device) const;
  /// Links step-NNNNNNNNN.safetensors to the same bytes as last.safetensors (copies it where the file system
  /// has no links), and removes the oldest numbered checkpoints beyond `keep`. Those of later steps stay
  /// until this run has come that far.
  void number_last(int64_t step, int64_t keep) const;

 private:
  std::string found_run(const Config& config) const;
  std::filesystem::path checkpoints() const { return dir_ / "checkpoints"; }
  std::filesystem::path dir_;
  FolderLock lock_;  // for the life of the run
};

}  // namespace meshgrad
