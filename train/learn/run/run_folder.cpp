// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/data/mapped_file.h>
#include <meshgrad/train/learn/run/environment.h>
#include <meshgrad/train/learn/run/run_folder.h>

#include <fmt/format.h>

#include <algorithm>

namespace meshgrad {

namespace fs = std::filesystem;

namespace {

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw config_error("run.dir", "a folder that can be made", folder.string() + ": " + error.message(),
                       "choose another run.dir");
  }
}

}  // namespace

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

void RunFolder::create(const Config& config) {
  make_folder(dir_);
  lock_ = FolderLock(dir_);
  if (const std::string found = found_run(config); !found.empty()) {
    throw config_error("run.dir", "a folder without another run", dir_.string() + ", which has " + found,
                       "add --resume to resume that run, choose another run.dir, or move the folder away");
  }
  make_folder(checkpoints());
}

void RunFolder::reopen() {
  lock_ = FolderLock(dir_);
  for (const fs::path& folder : {dir_, checkpoints()}) remove_abandoned_files(folder);
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
