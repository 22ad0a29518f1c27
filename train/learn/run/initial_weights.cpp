// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/learn/run/initial_weights.h>
#include <meshgrad/train/learn/run/training_data.h>

#include <fmt/format.h>

#include <filesystem>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

fs::path initial_checkpoint(const std::string& init) {
  if (fs::is_directory(init)) return find_checkpoint(init, "best");
  if (path_exists(init)) return init;
  throw config_error("train.init", "a checkpoint, or the folder of a run",
                     "\"" + init + "\", which does not exist",
                     "name RUN/checkpoints/best.safetensors, relative to the folder that train runs in");
}

/// Normalisers mean nothing for values of another dt (targets are changes over it) or with other offsets.
void check_kept_normalizers(const fs::path& checkpoint, const Config& config, const Task& task) {
  const auto trained = checkpoint_training_data(checkpoint);
  if (!trained) return;
  const auto refuse = [&](const std::string& needed, const std::string& got) {
    throw config_error("train.init_normalizers", needed + ", as " + checkpoint.string() + " was trained with",
                       got, "set train.init_normalizers = \"refit\"");
  };
  if (dt_differs(*trained, task))
    refuse(fmt::format("data of dt = {} s", trained->dt), fmt::format("dt = {} s", task.dataset().dt()));
  if (training_data(task.dataset(), config.data).offsets != trained->offsets)
    refuse("fields with " + offset_text(trained->offsets),
           offset_text(training_data(task.dataset(), config.data).offsets));
}

}  // namespace

bool keeps_normalizers(const Config& config) {
  return !config.train.init.empty() && config.train.init_normalizers == InitNormalizers::keep;
}

bool learns_normalizers(const Config& config) {
  return config.normalize.mode == NormalizeMode::online && !keeps_normalizers(config);
}

std::string load_initial_weights(const Config& config, const Task& task, const Stream& stream,
                                 const ParameterSet& parameters, Normalizers& normalizers) {
  const fs::path checkpoint = initial_checkpoint(config.train.init);
  const bool keep = keeps_normalizers(config);
  if (keep) check_kept_normalizers(checkpoint, config, task);
  load_weights(checkpoint, stream, parameters, keep ? &normalizers : nullptr);
  return fmt::format("starts from the weights of {}; its normalisers are {}", checkpoint.string(),
                     keep ? "kept" : "fitted again");
}

}  // namespace meshgrad
