// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/io/atomic_file.h>
#include <meshgrad/train/run/environment.h>
#include <meshgrad/train/run/run_folder.h>

#include <fmt/format.h>

#include <algorithm>

namespace meshgrad {

namespace fs = std::filesystem;

void RunFolder::create() const {
  if (fs::exists(last())) {
    throw config_error("run.dir", "a folder without a run", dir_.string() + ", which has checkpoints",
                       "add --resume to resume it, or choose another run.dir");
  }
  std::error_code error;
  fs::create_directories(checkpoints(), error);
  if (error)
    throw config_error("run.dir", "a folder that can be made", dir_.string() + ": " + error.message(),
                       "choose another run.dir");
}

void RunFolder::remove_temporaries() const {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(checkpoints(), ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".") && name.find(".tmp.") != std::string::npos) fs::remove(entry.path(), ignored);
  }
}

void RunFolder::write_config(const Config& config) const {
  write_file_atomically(dir_ / "config.resolved.toml", to_toml(config));
}

void RunFolder::write_environment(const std::vector<std::string>& command, Device device) const {
  meshgrad::write_environment(dir_ / "environment.json", command, {{"device", name_of(device)}});
}

void RunFolder::number_last(int64_t step, int64_t keep) const {
  const fs::path numbered = checkpoints() / fmt::format("step-{:09}.safetensors", step);
  std::error_code ignored;
  fs::remove(numbered, ignored);
  fs::create_hard_link(last(), numbered, ignored);
  std::vector<fs::path> links;
  for (const auto& entry : fs::directory_iterator(checkpoints())) {
    if (entry.path().filename().string().starts_with("step-")) links.push_back(entry.path());
  }
  std::sort(links.begin(), links.end());
  for (size_t i = 0; i + static_cast<size_t>(keep) < links.size(); ++i) fs::remove(links[i], ignored);
}

}  // namespace meshgrad
