// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/config/config_table.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace meshgrad {
namespace {

/// A large power of ten as "1e12", anything else in full.
std::string bound(double value) {
  const auto zeros = static_cast<int>(std::log10(std::max(value, 1.0)));
  return value < 1e6 || std::pow(10, zeros) != value ? fmt::format("{}", value) : fmt::format("1e{}", zeros);
}

template <class T, class Print>
std::string list_of(const std::vector<T>& values, Print print) {
  std::string text = "[";
  for (const T& value : values) text += (text.size() > 1 ? ", " : "") + print(value);
  return text + "]";
}

std::string comment_of(const ConfigKey& key) {
  const std::string unit = key.unit.empty() ? std::string() : fmt::format(" [{}]", key.unit);
  return wrapped(fmt::format("{}{} ({})", key.help, unit, describe_type(key)), kTextWidth, "# ", "# ") + "\n";
}

struct LiteralPrinter {
  Config& config;
  std::string operator()(const BoolKey& type) const { return type.member(config) ? "true" : "false"; }
  std::string operator()(const IntegerKey& type) const {
    const int64_t value = type.member(config);
    return value == 0 && !type.word.empty() ? toml_quoted(type.word) : std::to_string(value);
  }
  std::string operator()(const FloatKey& type) const { return toml_number(type.member(config)); }
  std::string operator()(const FieldNumbersKey& type) const {
    const std::vector<FieldNumber>& fields = type.fields(config);
    if (fields.empty()) return toml_number(type.all(config));
    std::string text;
    for (const FieldNumber& number : fields)
      text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", toml_quoted(number.field),
                          toml_number(number.value));
    return "{" + text + "}";
  }
  std::string operator()(const TextKey& type) const { return toml_quoted(type.member(config)); }
  std::string operator()(const TextListKey& type) const {
    return list_of(type.member(config), [](const std::string& text) { return toml_quoted(text); });
  }
  std::string operator()(const IntegerListKey& type) const {
    return list_of(type.member(config), [](int64_t value) { return std::to_string(value); });
  }
  std::string operator()(const FloatListKey& type) const {
    return list_of(type.member(config), [](double value) { return toml_number(value); });
  }
  std::string operator()(const SizeKey& type) const { return toml_quoted(format_size(type.member(config))); }
  std::string operator()(const ChoiceKey& type) const {
    for (const Choice& choice : type.choices) {
      if (choice.value == type.get(config)) return toml_quoted(choice.name);
    }
    throw internal_error("a configuration holds an enumerator that its table does not name");
  }
};

struct TypeDescriber {
  std::string operator()(const BoolKey&) const { return "true or false"; }
  std::string operator()(const IntegerKey& type) const {
    return fmt::format("an integer from {} to {}{}", type.minimum, bound(static_cast<double>(type.maximum)),
                       type.word.empty() ? std::string() : fmt::format(", or \"{}\"", type.word));
  }
  std::string operator()(const FloatKey& type) const {
    return fmt::format("a number from {} to {}", type.minimum, bound(type.maximum));
  }
  std::string operator()(const FieldNumbersKey& type) const {
    return fmt::format("a number from {} to {}, or a table of {} with one each", type.minimum,
                       bound(type.maximum), type.named);
  }
  std::string operator()(const TextKey& type) const { return std::string(type.form); }
  std::string operator()(const TextListKey& type) const {
    const std::string text =
        type.least > 0 ? "a list of names, each once, at least one" : "a list of names, each once";
    if (type.names == nullptr) return text;
    return fmt::format("{}: {}", text, fmt::join(type.names(), ", "));
  }
  std::string operator()(const IntegerListKey& type) const {
    return fmt::format("a list of integers from {} to {}, each once{}", type.minimum, type.maximum,
                       type.least > 0 ? fmt::format(", at least {}", type.least) : std::string());
  }
  std::string operator()(const FloatListKey& type) const {
    return fmt::format("a list of at most {} numbers from {} to {}", type.most, type.minimum,
                       bound(type.maximum));
  }
  std::string operator()(const SizeKey&) const { return "a size such as \"8GiB\" or \"500MB\", or \"\""; }
  std::string operator()(const ChoiceKey& type) const {
    std::string text;
    for (const Choice& choice : type.choices) {
      text += (text.empty() ? "" : "|") + std::string(choice.name);
    }
    return text;
  }
};

void check_types(const char* name, const std::vector<int64_t>& types, int64_t classes,
                 std::vector<Contradiction>& found) {
  for (const int64_t type : types) {
    if (type < classes) continue;
    found.push_back({{name, "data.node_types"},
                     fmt::format("node types below data.node_types = {}", classes),
                     std::to_string(type),
                     "raise data.node_types or remove that type"});
    return;
  }
}

void check_noise(const Config& config, std::vector<Contradiction>& found) {
  const TrainConfig& train = config.train;
  const std::vector<std::string>& inputs = config.data.inputs;
  const std::vector<std::string>& targets = config.data.targets;
  const std::string& world = config.data.world_position;
  const bool steady = config.task.name == TaskName::steady_field;
  const auto contains = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if ((train.noise > 0 || !train.field_noise.empty()) && config.data.noise_types.empty()) {
    found.push_back({{"train.noise", "data.noise_types"},
                     "0 where data.noise_types is empty",
                     train.field_noise.empty() ? toml_number(train.noise) : "a table",
                     "set train.noise = 0 or name node types in data.noise_types"});
  }
  for (const FieldNumber& number : train.field_noise) {
    const bool input = contains(inputs, number.field);
    if (steady ? input : contains(targets, number.field) && (input || number.field == world)) continue;
    if (!steady && (input || number.field == world)) {
      found.push_back(
          {{"train.noise", "data.targets"},
           fmt::format("fields among data.targets = [{}], as others get no noise", fmt::join(targets, ", ")),
           toml_quoted(number.field),
           "remove it"});
      continue;
    }
    found.push_back({{"train.noise", "data.inputs"},
                     fmt::format("fields among data.inputs = [{}]", fmt::join(inputs, ", ")),
                     toml_quoted(number.field),
                     "remove it, or add it to data.inputs"});
  }
}

void check_loss(const Config& config, std::vector<Contradiction>& found) {
  const LossConfig& loss = config.loss;
  const std::vector<std::string>& targets = config.data.targets;
  for (const FieldNumber& number : loss.field_weights) {
    if (std::find(targets.begin(), targets.end(), number.field) != targets.end()) continue;
    found.push_back({{"loss.field_weights", "data.targets"},
                     fmt::format("fields among data.targets = [{}]", fmt::join(targets, ", ")),
                     toml_quoted(number.field),
                     "remove it, or add it to data.targets"});
  }
  const std::vector<int64_t>& types = config.data.predicted_types;
  for (const FieldNumber& number : loss.type_weights) {
    const bool known = std::any_of(types.begin(), types.end(),
                                   [&](int64_t type) { return std::to_string(type) == number.field; });
    if (known) continue;
    found.push_back({{"loss.type_weights", "data.predicted_types"},
                     fmt::format("node types among data.predicted_types = [{}]", fmt::join(types, ", ")),
                     toml_quoted(number.field),
                     "remove it, or add it to data.predicted_types"});
  }
  const auto all_zero = [](double all, const std::vector<FieldNumber>& numbers, size_t names) {
    if (numbers.empty()) return all == 0.0;
    return numbers.size() == names &&
           std::all_of(numbers.begin(), numbers.end(), [](const FieldNumber& n) { return n.value == 0.0; });
  };
  const bool no_field = all_zero(loss.weight, loss.field_weights, targets.size());
  if (no_field || all_zero(loss.type_weight, loss.type_weights, types.size())) {
    found.push_back({{no_field ? "loss.field_weights" : "loss.type_weights"},
                     "a weight above 0",
                     "0 of all",
                     "set it to 1"});
  }
  if (loss.change_penalty > 0 && config.task.name != TaskName::mesh_dynamics) {
    found.push_back({{"loss.change_penalty", "task.name"},
                     "0 with task.name = \"steady_field\", which predicts no change",
                     toml_number(loss.change_penalty),
                     "set loss.change_penalty = 0"});
  }
}

/// Of keys that only validations read.
void check_validation(const Config& config, std::vector<Contradiction>& found) {
  const TrainConfig& train = config.train;
  if (train.patience > 0 && train.validate_every == 0) {
    found.push_back({{"train.patience", "train.validate_every"},
                     "0 with train.validate_every = 0",
                     std::to_string(train.patience),
                     "set train.validate_every, whose validations are counted"});
  }
  if (train.validate_rollouts > 0 && config.task.name != TaskName::mesh_dynamics) {
    found.push_back({{"train.validate_rollouts", "task.name"},
                     "0 with task.name = \"steady_field\", which has no time",
                     std::to_string(train.validate_rollouts),
                     "set train.validate_rollouts = 0"});
  }
  if (train.best == BestBy::rollout && train.validate_rollouts == 0) {
    found.push_back({{"train.best", "train.validate_rollouts"},
                     "\"loss\" with train.validate_rollouts = 0",
                     "\"rollout\"",
                     "set train.validate_rollouts = 1 or more"});
  }
}

/// Of data.history, which is more than 1.
void check_history(const Config& config, std::vector<Contradiction>& found) {
  const DataConfig& data = config.data;
  const auto refuse = [&](const char* other, const char* why, const char* fix) {
    found.push_back({{"data.history", other}, fmt::format("1 {}", why), std::to_string(data.history), fix});
  };
  const bool given = std::any_of(data.inputs.begin(), data.inputs.end(), [&](const std::string& input) {
    return std::find(data.targets.begin(), data.targets.end(), input) != data.targets.end();
  });
  if (config.task.name == TaskName::steady_field) {
    refuse("task.name", "with task.name = \"steady_field\", which has no time",
           "set data.history = 1, or task.name = \"mesh_dynamics\"");
  } else if (!given) {
    refuse("data.inputs", "where no input is a target: others are given at the latest frame alone",
           "set data.history = 1, or name a target in data.inputs");
  } else if (config.unroll.steps > 1) {
    refuse("unroll.steps", "with unroll.steps above 1, where earlier frames are the data's",
           "set data.history = 1 or unroll.steps = 1");
  }
}

/// Of data.world_radius, which is set.
void check_world_edges(const Config& config, std::vector<Contradiction>& found) {
  const auto refuse = [&](const char* other, const char* why, const char* fix) {
    found.push_back({{"data.world_radius", other}, why, toml_number(config.data.world_radius), fix});
  };
  const auto short_of = [&](double period) {
    return period > 0.0 && 2.0 * config.data.world_radius >= period;
  };
  if (config.data.world_position.empty())
    refuse("data.world_position", "0 where meshes do not move", "name the field of current positions");
  if (std::ranges::any_of(config.data.period, short_of))
    refuse("data.period", "less than half of each period", "lower it: about the length of an edge is usual");
}

void check_task(const Config& config, std::vector<Contradiction>& found) {
  const DataConfig& data = config.data;
  if (data.inputs.empty() && data.world_position.empty()) {
    found.push_back({{"data.inputs", "data.world_position"},
                     "at least one field, unless data.world_position names one",
                     "[]",
                     "name what the model knows of a frame; see meshgrad info"});
  }
  for (const int64_t type : data.kinematic_types) {
    if (std::find(data.predicted_types.begin(), data.predicted_types.end(), type) ==
        data.predicted_types.end())
      continue;
    found.push_back({{"data.kinematic_types", "data.predicted_types"},
                     "types that are not predicted",
                     std::to_string(type),
                     "remove it from one of the two lists"});
  }
  if (!data.kinematic_types.empty() && config.task.name == TaskName::steady_field) {
    found.push_back({{"data.kinematic_types", "task.name"},
                     "[] with task.name = \"steady_field\", which has no time",
                     "a list of types",
                     "set data.kinematic_types = [], or task.name = \"mesh_dynamics\""});
  }
  if (config.unroll.steps > 1 && !data.world_position.empty()) {
    found.push_back({{"unroll.steps", "data.world_position"},
                     "1 with data.world_position: edges are computed once a sample",
                     std::to_string(config.unroll.steps),
                     "set unroll.steps = 1"});
  }
  if (data.world_radius > 0.0) check_world_edges(config, found);
  if (config.task.name != TaskName::steady_field || config.unroll.steps == 1) return;
  found.push_back({{"unroll.steps", "task.name"},
                   "1 with task.name = \"steady_field\", which has no time",
                   std::to_string(config.unroll.steps),
                   "set unroll.steps = 1, or task.name = \"mesh_dynamics\""});
}

/// Of recompute.*, with one another and with graphs.
void check_recompute(const Config& config, std::vector<Contradiction>& found) {
  if (config.recompute.mode == RecomputeMode::budget && config.recompute.budget == 0) {
    found.push_back({{"recompute.budget", "recompute.mode"},
                     "a size, as recompute.mode is \"budget\"",
                     "none",
                     "set recompute.budget = \"2GiB\", or recompute.mode = \"auto\""});
  }
  if (config.recompute.offload != OffloadTo::none && config.recompute.mode == RecomputeMode::off) {
    found.push_back({{"recompute.offload", "recompute.mode"},
                     "\"none\", as recompute.mode is \"off\" and nothing is saved for recomputation",
                     "another",
                     "set recompute.mode = \"block\", or recompute.offload = \"none\""});
  }
  if (config.recompute.offload == OffloadTo::file && config.graphs == GraphsMode::capture) {
    found.push_back({{"recompute.offload", "graphs"},
                     "\"none\" or \"host\" with graphs = \"capture\", whose captured steps cannot read files",
                     "\"file\"",
                     "set recompute.offload = \"host\" or graphs = \"off\""});
  }
  if (config.recompute.check && config.graphs == GraphsMode::capture) {
    found.push_back({{"recompute.check", "graphs"},
                     "false with graphs = \"capture\", whose captured steps cannot wait for a comparison",
                     "true",
                     "set recompute.check = false or graphs = \"off\""});
  }
}

}  // namespace

std::string toml_number(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string toml_quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      quoted += fmt::format("\\u{:04X}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string describe_type(const ConfigKey& key) { return std::visit(TypeDescriber{}, key.type); }

std::string toml_literal(const ConfigKey& key, const Config& config) {
  Config copy = config;  // the accessors reach a member for reading and for writing
  return std::visit(LiteralPrinter{copy}, key.type);
}

std::string to_toml(const Config& config, TomlComments comments) {
  const bool commented = comments == TomlComments::on;
  std::string text;
  std::string_view section;
  for (const ConfigKey& key : config_keys()) {
    if (key.section != section) {
      section = key.section;
      text += fmt::format("\n[{}]\n", section);
    }
    if (commented) text += comment_of(key);
    text += fmt::format("{} = {}\n", key.name, toml_literal(key, config));
  }
  return text;
}

std::string to_toml(const Config& config) { return to_toml(config, TomlComments::off); }

std::string advice_for_key(const std::string& section, const std::string& name) {
  std::vector<std::string> siblings;
  std::vector<std::string> all;
  std::vector<std::string> namesakes;
  for (const ConfigKey& key : config_keys()) {
    if (key.section == section) siblings.emplace_back(key.name);
    if (key.name == name) namesakes.push_back(full_name(key));
    all.push_back(full_name(key));
  }
  const std::string dot = section.empty() ? "" : section + ".";
  std::string meant = nearest_name(name, siblings);
  if (!meant.empty()) meant = dot + meant;
  if (meant.empty() && !namesakes.empty()) meant = namesakes.front();
  if (meant.empty()) meant = nearest_name(dot + name, all);
  return meant.empty() ? "`meshgrad config default` lists all keys" : fmt::format("did you mean {}?", meant);
}

std::string advice_for_section(const std::string& name) {
  std::vector<std::string> names;
  for (const ConfigSection& section : config_sections()) names.emplace_back(section.name);
  const std::string meant = nearest_name(name, names);
  return meant.empty() ? "`meshgrad config default` lists all sections"
                       : fmt::format("did you mean [{}]?", meant);
}

bool is_section(const std::string& name) {
  const auto sections = config_sections();
  return std::any_of(sections.begin(), sections.end(),
                     [&](const auto& section) { return section.name == name; });
}

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
    found.push_back({{"schedule.warmup_steps", "train.steps"},
                     fmt::format("at most train.steps = {}", train.steps),
                     std::to_string(schedule.warmup_steps),
                     "lower schedule.warmup_steps or raise train.steps"});
  }
  if (config.plan.min_batch > config.plan.max_batch) {
    found.push_back({{"plan.min_batch", "plan.max_batch"},
                     fmt::format("at most plan.max_batch = {}", config.plan.max_batch),
                     std::to_string(config.plan.min_batch),
                     "lower plan.min_batch or raise plan.max_batch"});
  }
  if (schedule.name == ScheduleName::exponential && schedule.final_lr <= 0) {
    found.push_back({{"schedule.final_lr", "schedule.name"},
                     "more than 0, as exponential decay never arrives there",
                     toml_number(schedule.final_lr),
                     "set schedule.final_lr = 1e-6 or schedule.name = \"cosine\""});
  }
  if (schedule.restart_every > 0 &&
      (schedule.name == ScheduleName::constant || schedule.name == ScheduleName::step)) {
    found.push_back({{"schedule.restart_every", "schedule.name"},
                     "0 unless schedule.name is \"exponential\" or \"cosine\"",
                     std::to_string(schedule.restart_every),
                     "set schedule.restart_every = 0 or schedule.name = \"cosine\""});
  }
  if (schedule.name != ScheduleName::constant && schedule.final_lr > optimizer.lr) {
    found.push_back({{"schedule.final_lr", "optimizer.lr", "schedule.name"},
                     fmt::format("at most optimizer.lr = {}", toml_number(optimizer.lr)),
                     toml_number(schedule.final_lr),
                     "lower schedule.final_lr or set schedule.name = \"constant\""});
  }
  if (train.epochs == 0 && normalize.mode == NormalizeMode::online && normalize.warmup_steps >= train.steps) {
    found.push_back({{"normalize.warmup_steps", "train.steps", "normalize.mode"},
                     fmt::format("fewer than train.steps = {}", train.steps),
                     std::to_string(normalize.warmup_steps),
                     "lower normalize.warmup_steps or set normalize.mode = \"dataset\""});
  }
  const LossScaleRule& scale = config.loss_scale.rule;
  if (scale.initial < scale.floor || scale.initial > scale.cap) {
    found.push_back({{"loss_scale.initial", "loss_scale.floor", "loss_scale.cap"},
                     fmt::format("a number from loss_scale.floor = {} to loss_scale.cap = {}",
                                 toml_number(scale.floor), toml_number(scale.cap)),
                     toml_number(scale.initial),
                     "move loss_scale.initial between the two, or the bounds apart"});
  }
  if (train.free_gradients && config.graphs == GraphsMode::capture) {
    found.push_back({{"train.free_gradients", "graphs"},
                     "false with graphs = \"capture\", whose recorded steps write to fixed addresses",
                     "true",
                     "set train.free_gradients = false or graphs = \"off\""});
  }
  check_task(config, found);
  add_value_contradictions(config, found);
  check_recompute(config, found);
  if (optimizer.momentum != 0 && optimizer.name != OptimizerKind::sgd) {
    found.push_back({{"optimizer.momentum", "optimizer.name"},
                     "0 unless optimizer.name is \"sgd\"",
                     toml_number(optimizer.momentum),
                     "use optimizer.beta1 with adam and adamw"});
  }
  return found;
}

Config load_config(const std::string& path, const std::vector<std::string>& overrides) {
  std::string text;
  try {
    if (!path_exists(path)) {
      throw config_error(path, "a TOML file that can be read", "none",
                         "check the path, or make one: meshgrad config default > " + path);
    }
    if (path != "/dev/null") text = read_file(path, kLargestConfigFile + 1);  // there: all defaults
  } catch (const DataError& error) {
    throw ConfigError(error.what());
  }
  return parse_config(text, path, overrides);
}

void require_data_path(const Config& config) {
  if (!config.data.path.empty()) return;
  throw config_error(
      "data.path", "a packed file to train on", "none",
      "pack data with `meshgrad convert`, then set data.path or pass --set data.path=FILE.mgd");
}

}  // namespace meshgrad
