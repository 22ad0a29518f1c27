// SPDX-License-Identifier: Apache-2.0
// Keys whose values are in range but contradict each other, or mean nothing for the task.
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/config/config_table.h>

#include <algorithm>
#include <utility>

namespace meshgrad {
namespace {

template <class T>
bool contains(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

void add(std::vector<Contradiction>& found, std::vector<std::string> keys, std::string needed,
         std::string got, std::string fix) {
  found.push_back({std::move(keys), std::move(needed), std::move(got), std::move(fix)});
}

/// Keys that mean nothing for the task keep their defaults.
void check_keys_of_task(const Config& config, std::vector<Contradiction>& found) {
  for (const ConfigKey& key : config_keys()) {
    if (key.applies_to(config.task.name)) continue;
    const std::string name = full_name(key), value = toml_literal(key, config),
                      unset = toml_literal(key, Config{});
    if (value == unset) continue;
    add(found, {name, "task.name"},
        fmt::format("{} with task.name = \"{}\", which {}", unset, name_of(config.task.name),
                    key.only->why_not),
        value, fmt::format("set {} = {}, or another task.name", name, unset));
  }
}

void check_types(const char* name, const std::vector<int64_t>& types, int64_t classes,
                 std::vector<Contradiction>& found) {
  for (const int64_t type : types) {
    if (type < classes) continue;
    add(found, {name, "data.node_types"}, fmt::format("node types below data.node_types = {}", classes),
        std::to_string(type), "raise data.node_types or remove that type");
    return;
  }
}

void check_noise(const Config& config, std::vector<Contradiction>& found) {
  const TrainConfig& train = config.train;
  const std::vector<std::string>& inputs = config.data.inputs;
  const std::vector<std::string>& targets = config.data.targets;
  const std::string& world = config.data.world_position;
  const bool in_time = find_key("unroll.steps")->applies_to(config.task.name);
  if ((train.noise > 0 || !train.field_noise.empty()) && config.data.noise_types.empty()) {
    add(found, {"train.noise", "data.noise_types"}, "0 where data.noise_types is empty",
        train.field_noise.empty() ? toml_number(train.noise) : "a table",
        "set train.noise = 0 or name node types in data.noise_types");
  }
  for (const FieldNumber& number : train.field_noise) {
    const bool input = contains(inputs, number.field);
    const bool read = input || (in_time && number.field == world);
    if (read && (!in_time || contains(targets, number.field))) continue;
    if (read) {
      add(found, {"train.noise", "data.targets"},
          fmt::format("fields among data.targets = [{}], as others get no noise", fmt::join(targets, ", ")),
          toml_quoted(number.field), "remove it");
      continue;
    }
    add(found, {"train.noise", "data.inputs"},
        fmt::format("fields among data.inputs = [{}]", fmt::join(inputs, ", ")), toml_quoted(number.field),
        "remove it, or add it to data.inputs");
  }
}

void check_loss(const Config& config, std::vector<Contradiction>& found) {
  const LossConfig& loss = config.loss;
  const std::vector<std::string>& targets = config.data.targets;
  for (const FieldNumber& number : loss.field_weights) {
    if (contains(targets, number.field)) continue;
    add(found, {"loss.field_weights", "data.targets"},
        fmt::format("fields among data.targets = [{}]", fmt::join(targets, ", ")), toml_quoted(number.field),
        "remove it, or add it to data.targets");
  }
  const std::vector<int64_t>& types = config.data.predicted_types;
  for (const FieldNumber& number : loss.type_weights) {
    const bool known = std::any_of(types.begin(), types.end(),
                                   [&](int64_t type) { return std::to_string(type) == number.field; });
    if (known) continue;
    add(found, {"loss.type_weights", "data.predicted_types"},
        fmt::format("node types among data.predicted_types = [{}]", fmt::join(types, ", ")),
        toml_quoted(number.field), "remove it, or add it to data.predicted_types");
  }
  const auto all_zero = [](double all, const std::vector<FieldNumber>& numbers, size_t names) {
    if (numbers.empty()) return all == 0.0;
    return numbers.size() == names &&
           std::all_of(numbers.begin(), numbers.end(), [](const FieldNumber& n) { return n.value == 0.0; });
  };
  const bool no_field = all_zero(loss.weight, loss.field_weights, targets.size());
  if (no_field || all_zero(loss.type_weight, loss.type_weights, types.size())) {
    add(found, {no_field ? "loss.field_weights" : "loss.type_weights"}, "a weight above 0", "0 of all",
        "set it to 1");
  }
}

/// Of keys that only validations read.
void check_validation(const Config& config, std::vector<Contradiction>& found) {
  const TrainConfig& train = config.train;
  if (train.patience > 0 && train.validate_every == 0) {
    add(found, {"train.patience", "train.validate_every"}, "0 with train.validate_every = 0",
        std::to_string(train.patience), "set train.validate_every, whose validations are counted");
  }
  if (train.best == BestBy::rollout && train.validate_rollouts == 0) {
    add(found, {"train.best", "train.validate_rollouts"}, "\"loss\" with train.validate_rollouts = 0",
        "\"rollout\"", "set train.validate_rollouts = 1 or more");
  }
}

/// Of data.history, which is more than 1, over time.
void check_history(const Config& config, std::vector<Contradiction>& found) {
  const DataConfig& data = config.data;
  const auto refuse = [&](const char* other, const char* why, const char* fix) {
    add(found, {"data.history", other}, fmt::format("1 {}", why), std::to_string(data.history), fix);
  };
  const bool given = std::any_of(data.inputs.begin(), data.inputs.end(),
                                 [&](const std::string& input) { return contains(data.targets, input); });
  if (!given) {
    refuse("data.inputs", "where no input is a target: others are given at the latest frame only",
           "set data.history = 1, or name a target in data.inputs");
  } else if (config.unroll.steps > 1) {
    refuse("unroll.steps", "with unroll.steps above 1, where earlier frames are the data's",
           "set data.history = 1 or unroll.steps = 1");
  }
}

/// Of data.world_radius, which is set.
void check_world_edges(const Config& config, std::vector<Contradiction>& found) {
  const auto refuse = [&](const char* other, const char* why, const char* fix) {
    add(found, {"data.world_radius", other}, why, toml_number(config.data.world_radius), fix);
  };
  const auto short_of = [&](double period) {
    return period > 0.0 && 2.0 * config.data.world_radius >= period;
  };
  if (config.data.world_position.empty())
    refuse("data.world_position", "0 where meshes do not move", "name the field of current positions");
  if (std::ranges::any_of(config.data.period, short_of))
    refuse("data.period", "less than half of each period", "lower it: about the length of an edge is usual");
}

void check_mesh(const Config& config, std::vector<Contradiction>& found) {
  const DataConfig& data = config.data;
  if (data.inputs.empty() && data.world_position.empty()) {
    add(found, {"data.inputs", "data.world_position"},
        "at least one field, unless data.world_position names one", "[]",
        "name what the model knows of a frame; see meshgrad info");
  }
  for (const int64_t type : data.kinematic_types) {
    if (!contains(data.predicted_types, type)) continue;
    add(found, {"data.kinematic_types", "data.predicted_types"}, "types that are not predicted",
        std::to_string(type), "remove it from one of the two lists");
  }
  if (config.unroll.steps > 1 && !data.world_position.empty()) {
    add(found, {"unroll.steps", "data.world_position"},
        "1 with data.world_position: edges are computed once a sample", std::to_string(config.unroll.steps),
        "set unroll.steps = 1");
  }
  if (data.world_radius > 0.0) check_world_edges(config, found);
}

/// Of recompute.*, with one another and with graphs.
void check_recompute(const Config& config, std::vector<Contradiction>& found) {
  if (config.recompute.mode == RecomputeMode::budget && config.recompute.budget == 0) {
    add(found, {"recompute.budget", "recompute.mode"}, "a size, as recompute.mode is \"budget\"", "none",
        "set recompute.budget = \"2GiB\", or recompute.mode = \"auto\"");
  }
  if (config.recompute.offload != OffloadTo::none && config.recompute.mode == RecomputeMode::off) {
    add(found, {"recompute.offload", "recompute.mode"},
        "\"none\", as recompute.mode is \"off\" and nothing is saved for recomputation",
        toml_literal(*find_key("recompute.offload"), config),
        "set recompute.mode = \"block\", or recompute.offload = \"none\"");
  }
  if (config.recompute.offload == OffloadTo::file && config.graphs == GraphsMode::capture) {
    add(found, {"recompute.offload", "graphs"},
        "\"none\" or \"host\" with graphs = \"capture\", whose captured steps cannot read files", "\"file\"",
        "set recompute.offload = \"host\" or graphs = \"off\"");
  }
  if (config.recompute.check && config.graphs == GraphsMode::capture) {
    add(found, {"recompute.check", "graphs"},
        "false with graphs = \"capture\", whose captured steps cannot wait for a comparison", "true",
        "set recompute.check = false or graphs = \"off\"");
  }
}

void check_value_targets(const Config& config, std::vector<Contradiction>& found) {
  const DataConfig& data = config.data;
  if (data.value_targets.empty()) return;
  for (const std::string& name : data.value_targets) {
    if (contains(data.targets, name)) continue;
    add(found, {"data.value_targets", "data.targets"},
        fmt::format("fields among data.targets = [{}]", fmt::join(data.targets, ", ")), toml_quoted(name),
        "remove it, or add it to data.targets");
  }
  const auto refuse = [&](const char* other, const char* why, const char* fix) {
    add(found, {"data.value_targets", other}, why, "a list of fields", fix);
  };
  if (config.unroll.steps > 1)
    refuse("unroll.steps", "[] with unroll.steps above 1, which adds up changes",
           "set unroll.steps = 1 or leave out data.value_targets");
  if (config.loss.change_penalty > 0)
    refuse("loss.change_penalty", "[] with loss.change_penalty, which counts predictions as changes",
           "set loss.change_penalty = 0 or leave out data.value_targets");
}

}  // namespace

std::vector<Contradiction> contradictions(const Config& config) {
  std::vector<Contradiction> found;
  const DataConfig& data = config.data;
  const TrainConfig& train = config.train;
  const OptimizerConfig& optimizer = config.optimizer;
  const ScheduleConfig& schedule = config.schedule;
  const NormalizeConfig& normalize = config.normalize;
  check_types("data.predicted_types", data.predicted_types, data.node_types, found);
  check_types("data.noise_types", data.noise_types, data.node_types, found);
  check_types("data.kinematic_types", data.kinematic_types, data.node_types, found);
  check_noise(config, found);
  check_validation(config, found);
  if (data.history > 1) check_history(config, found);
  check_loss(config, found);
  if (train.epochs == 0 && schedule.warmup_steps > train.steps) {
    add(found, {"schedule.warmup_steps", "train.steps"}, fmt::format("at most train.steps = {}", train.steps),
        std::to_string(schedule.warmup_steps), "lower schedule.warmup_steps or raise train.steps");
  }
  if (config.plan.min_batch > config.plan.max_batch) {
    add(found, {"plan.min_batch", "plan.max_batch"},
        fmt::format("at most plan.max_batch = {}", config.plan.max_batch),
        std::to_string(config.plan.min_batch), "lower plan.min_batch or raise plan.max_batch");
  }
  if (schedule.name == ScheduleName::exponential && schedule.final_lr <= 0) {
    add(found, {"schedule.final_lr", "schedule.name"},
        "more than 0, as exponential decay never arrives there", toml_number(schedule.final_lr),
        "set schedule.final_lr = 1e-6 or schedule.name = \"cosine\"");
  }
  if (schedule.restart_every > 0 &&
      (schedule.name == ScheduleName::constant || schedule.name == ScheduleName::step)) {
    add(found, {"schedule.restart_every", "schedule.name"},
        "0 unless schedule.name is \"exponential\" or \"cosine\"", std::to_string(schedule.restart_every),
        "set schedule.restart_every = 0 or schedule.name = \"cosine\"");
  }
  if (schedule.name != ScheduleName::constant && schedule.final_lr > optimizer.lr) {
    add(found, {"schedule.final_lr", "optimizer.lr", "schedule.name"},
        fmt::format("at most optimizer.lr = {}", toml_number(optimizer.lr)), toml_number(schedule.final_lr),
        "lower schedule.final_lr or set schedule.name = \"constant\"");
  }
  if (train.epochs == 0 && normalize.mode == NormalizeMode::online && normalize.warmup_steps >= train.steps) {
    add(found, {"normalize.warmup_steps", "train.steps", "normalize.mode"},
        fmt::format("fewer than train.steps = {}", train.steps), std::to_string(normalize.warmup_steps),
        "lower normalize.warmup_steps or set normalize.mode = \"dataset\"");
  }
  const LossScaleRule& scale = config.loss_scale.rule;
  if (scale.initial < scale.floor || scale.initial > scale.cap) {
    add(found, {"loss_scale.initial", "loss_scale.floor", "loss_scale.cap"},
        fmt::format("a number from loss_scale.floor = {} to loss_scale.cap = {}", toml_number(scale.floor),
                    toml_number(scale.cap)),
        toml_number(scale.initial), "move loss_scale.initial between the two, or the bounds apart");
  }
  if (train.free_gradients && config.graphs == GraphsMode::capture) {
    add(found, {"train.free_gradients", "graphs"},
        "false with graphs = \"capture\", whose recorded steps write to fixed addresses", "true",
        "set train.free_gradients = false or graphs = \"off\"");
  }
  check_mesh(config, found);
  check_value_targets(config, found);
  check_keys_of_task(config, found);
  check_recompute(config, found);
  if (optimizer.momentum != 0 && optimizer.name != OptimizerKind::sgd) {
    add(found, {"optimizer.momentum", "optimizer.name"}, "0 unless optimizer.name is \"sgd\"",
        toml_number(optimizer.momentum), "use optimizer.beta1 with adam and adamw");
  }
  return found;
}

const Config& check_config(const Config& config) {
  const std::vector<Contradiction> found = contradictions(config);
  if (found.empty()) return config;
  const Contradiction& first = found.front();
  throw config_error(first.keys.front(), first.needed, first.got, first.fix);
}

}  // namespace meshgrad
