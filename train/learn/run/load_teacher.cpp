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
#include <optional>
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

/// What a key names.
struct Named {
  const char* key;
  fs::path path;
};

[[noreturn]] void refuse_other(const Named& other, std::string_view what, std::string_view needed,
                               std::string_view got) {
  throw config_error(other.key, fmt::format("a model with {} = {}, as this run has it", what, needed),
                     fmt::format("{} = {} in {}", what, got, other.path.string()), kFix);
}

void check_same_keys(const Named& other, const Config& theirs, const Config& config) {
  for (const ConfigKey& key : config_keys()) {
    if (key.section != "task" &&
        (key.section != "data" || std::ranges::find(kOwnKeys, key.name) != kOwnKeys.end()))
      continue;
    const std::string needed = toml_literal(key, config), got = toml_literal(key, theirs);
    if (needed != got) refuse_other(other, full_name(key), needed, got);
  }
}

void check_same_data(const Named& other, const TrainingData& trained, const Task& task,
                     const Config& config) {
  if (const auto found = find_other_data(other.path.string(), trained, task, config))
    throw config_error(other.key, found->needed, found->got, kFix);
  for (const FieldInfo& theirs : trained.fields) {
    const FieldInfo& field = task.dataset().field(theirs.name);
    if (!field.unit.empty() && !theirs.unit.empty() && field.unit != theirs.unit)
      refuse_other(other, "the unit of " + field.name, field.unit, theirs.unit);
    if (field.on != theirs.on)
      refuse_other(other, "the place of " + field.name, name_of(field.on), name_of(theirs.on));
    if (field.components != theirs.components)
      refuse_other(other, "components of " + field.name, std::to_string(field.components),
                   std::to_string(theirs.components));
  }
}

/// A plan may be of sizes alone.
bool has_data(const Task& task) { return !task.dataset().node_type_counts().empty(); }

void load_values(Runtime& runtime, const Config& config, const fs::path& path, WeightsIn in, Model& model,
                 Normalizers& normalizers) {
  std::optional<Runtime> nowhere;  // memory without bytes, of the host
  if (in == WeightsIn::none || (in == WeightsIn::host && runtime.dry()))
    nowhere.emplace(RuntimeOptions{.threads = 1, .dry = true});
  Runtime& used = nowhere ? *nowhere : runtime;
  ParameterSet parameters = model.parameters;
  if (in == WeightsIn::host && !nowhere) {
    parameters.allocate_pinned(runtime.device(), config.precision);
  } else {
    parameters.allocate_values(used, config.precision);
  }
  load_weights(path, used.stream(), parameters, &normalizers);
  if (in != WeightsIn::none) model.parameters = std::move(parameters);
}

}  // namespace

TaskModel load_model_of_task(Runtime& runtime, const Config& config, const Task& task, const char* key,
                             const std::string& value, WeightsIn in) {
  const Named other{key, checkpoint_named(key, value)};
  const std::string path = other.path.string();
  const SafetensorsFile file = open_checkpoint(path);
  const auto& metadata = file.view().metadata;
  const Config theirs = parse_saved_config(file.view().metadata_at("config"), path);
  check_same_keys(other, theirs, config);
  Config own = config;
  own.model = theirs.model;
  if (const std::vector<Contradiction> found = contradictions(own); !found.empty()) {
    const Contradiction& first = found.front();
    throw config_error(first.keys.front(), fmt::format("{}, as {} has it", first.needed, key), first.got,
                       first.fix);
  }
  if (has_data(task) && metadata.contains("data"))
    check_same_data(other, training_data_from_json(metadata.at("data"), path), task, config);
  ModelSizes sizes = task.sizes();
  if (reads_graph_starts(own.model) && !sizes.graph_starts)
    throw config_error(key, "a model with model.slices = 0, as this run has no slices",
                       fmt::format("{}, with model.slices = {}", path, own.model.slices),
                       "set model.slices, or name another model");
  constexpr const char* kEncoder = "vgae.encoder";
  if (own.model.name == ModelName::vgae && own.model.vgae.encoder != config.model.vgae.encoder)
    refuse_other(other, kEncoder, toml_literal(*find_key(kEncoder), config),
                 toml_literal(*find_key(kEncoder), own));
  if (sizes.pool) sizes.pool = own.model.pool;
  for (IdentifierTable& table : sizes.tables) table.width = own.model.embedding;
  Model model = make_model(own.model, sizes);
  Normalizers normalizers = task.online_normalizers();
  load_values(runtime, config, other.path, in, model, normalizers);
  const auto checksum = metadata.find("checksum");  // which is verified
  std::string hash =
      checksum != metadata.end() ? checksum->second : checkpoint_checksum(file.view().tensors, metadata);
  return {std::move(model), sizes, std::move(normalizers), std::move(hash)};
}

std::shared_ptr<const Teacher> load_teacher(Runtime& runtime, const Config& config, const Task& task) {
  if (config.distill.teacher.empty()) return nullptr;
  if (const MeshTask* mesh = task.find_mesh(); mesh != nullptr && !mesh->fields.graph_targets.empty())
    throw config_error("data.targets", "fields on nodes with distill.teacher",
                       mesh->fields.graph_targets.names() + " on graphs",
                       "leave out these targets, or the teacher");
  const bool offloaded = config.distill.offload == OffloadTo::host && runtime.stream().on_gpu();
  const WeightsIn in = !config.distill.cache.empty() ? WeightsIn::none
                       : offloaded                   ? WeightsIn::host
                                                     : WeightsIn::device;
  TaskModel loaded = load_model_of_task(runtime, config, task, kTeacher, config.distill.teacher, in);
  const bool fixed = has_data(task) && !learns_normalizers(config) && !keeps_normalizers(config);
  std::optional<Normalizers> student;
  if (fixed) student = first_normalizers(config, task);
  return std::make_shared<const Teacher>(std::move(loaded.model), loaded.sizes, std::move(loaded.normalizers),
                                         config.distill, std::move(loaded.hash), fixed ? &*student : nullptr);
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
  const bool alone = had == metadata.end();
  const std::string needed = alone ? "" : "the teacher " + had->second;
  const std::string got = task.teacher() == nullptr ? "" : "the teacher " + task.teacher()->hash();
  if (needed == got) return;
  throw config_error(
      kTeacher, fmt::format("{}, with which {} was trained", alone ? "\"\"" : needed, checkpoint.string()),
      got.empty() ? "none" : got,
      fmt::format("{}, or start a new run with another run.dir",
                  alone ? "leave out distill.teacher" : "name the same checkpoint"));
}

}  // namespace meshgrad
