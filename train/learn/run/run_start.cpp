// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/learn/run/run_start.h>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <exception>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

/// A word as a POSIX shell reads it back.
std::string shell_word(const std::string& word) {
  const auto plain = [](unsigned char c) { return std::isalnum(c) != 0 || std::strchr("_./=:,+@%-", c); };
  if (!word.empty() && std::ranges::all_of(word, plain)) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

struct IntactCheckpoint {
  int64_t step = -1;
  fs::path path;
};

/// The one with the most steps in a folder; step -1: none.
IntactCheckpoint newest_intact_checkpoint(const fs::path& folder) {
  IntactCheckpoint newest;
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored), end; !ignored && at != end; at.increment(ignored)) {
    const fs::path& path = at->path();
    if (path.extension() != ".safetensors" || path.filename().string().starts_with(".")) continue;
    try {
      const SafetensorsFile file = open_checkpoint(path);
      const int64_t step = read_run_state(file.view(), checkpoint_config(path)).step;
      if (step > newest.step) newest = {step, path};
    } catch (const Error&) {
      // Damaged too.
    }
  }
  return newest;
}

}  // namespace

fs::path checkpoint_named(const char* key, const std::string& value) {
  if (fs::is_directory(value)) return find_checkpoint(value, "best");
  if (path_exists(value)) return value;
  throw config_error(key, "a checkpoint, or the folder of a run", "\"" + value + "\", which does not exist",
                     "name RUN/checkpoints/best.safetensors, relative to the folder that train runs in");
}

Normalizers first_normalizers(const Config& config, const Task& task) {
  return config.normalize.mode == NormalizeMode::dataset ? task.dataset_normalizers(noise_of(config))
                                                         : task.online_normalizers();
}

fs::path checkpoint_to_resume(const fs::path& run, const fs::path& file,
                              const std::vector<std::string>& command) {
  if (!file.empty()) return find_checkpoint(run, file.string());
  const fs::path last = run / "checkpoints" / "last.safetensors";
  std::string got = "no such file";
  std::exception_ptr damage;
  if (path_exists(last)) {
    try {
      const SafetensorsFile opened = open_checkpoint(last);
      read_run_state(opened.view(), checkpoint_config(last));
      return last;
    } catch (const Error& error) {
      damage = std::current_exception();
      got = fmt::format("a damaged one ({})", error.what());
    }
  }
  const IntactCheckpoint newest = newest_intact_checkpoint(last.parent_path());
  if (newest.step < 0 && damage) std::rethrow_exception(damage);
  if (newest.step < 0) return find_checkpoint(run, "last");  // says that there is none
  std::string line = "TrainOptions::checkpoint = " + newest.path.string();
  if (!command.empty()) {
    line.clear();
    for (const std::string& word : command) line += shell_word(word) + " ";
    line += "--checkpoint " + shell_word(newest.path.string());
  }
  throw data_error(last.string(), "an intact checkpoint", got,
                   fmt::format("resume from the newest intact one, of step {}: {}", newest.step, line));
}

void check_same_run(const std::filesystem::path& checkpoint, const Config& config) {
  const Config trained = checkpoint_config(checkpoint);
  const std::string key = changed_fixed_key(trained, config);
  if (key.empty()) return;
  throw config_error(key,
                     fmt::format("{}, with which {} was trained", toml_literal(*find_key(key), trained),
                                 checkpoint.string()),
                     toml_literal(*find_key(key), config),
                     "use the run's config.resolved.toml, or start a new run with another run.dir");
}

std::string load_initial_weights(const Config& config, const Task& task, const Stream& stream,
                                 const ParameterSet& parameters, Normalizers& normalizers) {
  const fs::path checkpoint = checkpoint_named("train.init", config.train.init);
  const bool keep = keeps_normalizers(config);
  const auto trained = checkpoint_training_data(checkpoint);
  if (keep && trained) {
    // Normalisers mean nothing for values of another dt (targets are changes over it) or with other offsets.
    if (const auto other = find_other_data(checkpoint.string(), *trained, task, config)) {
      throw config_error("train.init_normalizers", other->needed, other->got,
                         "set train.init_normalizers = \"refit\"");
    }
  }
  load_weights(checkpoint, stream, parameters, keep ? &normalizers : nullptr);
  return fmt::format("starts from the weights of {}; its normalisers are {}", checkpoint.string(),
                     keep ? "kept" : "fitted again");
}

}  // namespace meshgrad
