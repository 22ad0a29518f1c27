// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/learn/run/load_teacher.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/run/run_start.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTeacher = "distill.teacher";
constexpr const char* kFix = "name a model that was trained on the same task and fields";

/// Keys of [data] that may differ: they say which samples are used, not what they are. A number of classes
/// shows in the weights.
constexpr std::array<std::string_view, 8> kOwnKeys{
    "path",       "verify",  "train_split",          "valid_split",
    "node_split", "classes", "world_edges_per_node", "noise_types"};

void check_same_fields(const fs::path& path, const Config& theirs, const Config& config) {
  for (const ConfigKey& key : config_keys()) {
    if (key.section != "task" &&
        (key.section != "data" || std::ranges::find(kOwnKeys, key.name) != kOwnKeys.end()))
      continue;
    const std::string needed = toml_literal(key, config), got = toml_literal(key, theirs);
    if (needed == got) continue;
    const std::string name = full_name(key);
    throw config_error(kTeacher, fmt::format("a model with {} = {}, as this run has it", name, needed),
                       fmt::format("{} = {} in {}", name, got, path.string()), kFix);
  }
}

/// Of the checkpoint's tensors and metadata.
std::string hash_of_checkpoint(const SafetensorsView& view) {
  return checkpoint_checksum(view.tensors, view.metadata);
}

}  // namespace

std::shared_ptr<const Teacher> load_teacher(Runtime& runtime, const Config& config, const Task& task) {
  if (config.distill.teacher.empty()) return nullptr;
  if (const MeshTask* mesh = task.find_mesh(); mesh != nullptr && !mesh->fields.graph_targets.empty())
    throw config_error("data.targets", "fields on nodes with distill.teacher",
                       mesh->fields.graph_targets.names() + " on graphs",
                       "leave out these targets, or the teacher");
  const fs::path path = checkpoint_named(kTeacher, config.distill.teacher);
  const SafetensorsFile file = open_checkpoint(path);
  const Config theirs = checkpoint_config(path);
  check_same_fields(path, theirs, config);
  Config own = config;
  own.model = theirs.model;
  if (const std::vector<Contradiction> found = contradictions(own); !found.empty()) {
    const Contradiction& first = found.front();
    throw config_error(first.keys.front(), first.needed + ", the teacher's", first.got, first.fix);
  }
  if (const auto data = checkpoint_training_data(path)) {
    if (const auto other = find_other_data(path.string(), *data, task, config))
      throw config_error(kTeacher, other->needed, other->got, kFix);
  }
  ModelSizes sizes = task.sizes();
  if (sizes.pool) sizes.pool = own.model.pool;
  for (IdentifierTable& table : sizes.tables) table.width = own.model.embedding;
  Model model = make_model(runtime, own, sizes);
  model.parameters.release_gradients();
  Normalizers normalizers = task.online_normalizers();
  load_weights(path, runtime.stream(), model.parameters, &normalizers);
  const Normalizers student = first_normalizers(config, task);
  const bool fixed = !learns_normalizers(config) && !keeps_normalizers(config);
  return std::make_shared<const Teacher>(std::move(model), std::move(normalizers), config.distill,
                                         hash_of_checkpoint(file.view()), fixed ? &student : nullptr);
}

Task make_taught_task(Runtime& runtime, const Config& config, const Dataset& dataset) {
  Task task = make_task(config, dataset);
  task.set_teacher(load_teacher(runtime, config, task));
  return task;
}

void check_same_teacher(const fs::path& checkpoint, const Task& task) {
  const SafetensorsFile file = open_checkpoint(checkpoint);
  const auto& metadata = file.view().metadata;
  const auto had = metadata.find("teacher");
  const std::string needed = had == metadata.end() ? "none" : had->second;
  const std::string got = task.teacher() == nullptr ? "none" : task.teacher()->hash();
  if (needed == got) return;
  throw config_error(kTeacher,
                     fmt::format("the teacher {}, with which {} was trained", needed, checkpoint.string()),
                     got, "name the same checkpoint, or start a new run with another run.dir");
}

}  // namespace meshgrad
