// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/tools/program/import_config.h>

#include <algorithm>
#include <optional>
#include <span>
#include <sstream>

namespace meshgrad {
namespace {

/// An option of another program. A value in `only` becomes `instead`; with `only` empty, any value is kept.
/// All rows that an option fits count.
struct OptionName {
  std::string_view theirs, ours;
  std::string_view only = {}, instead = {};
};

// github.com/NVIDIA/physicsnemo, examples/cfd/vortex_shedding_mgn.
constexpr OptionName kPhysicsNemo[] = {
    {"batch_size", "train.batch"},
    {"training_batch_size", "train.batch"},
    {"epochs", "train.epochs"},
    {"lr", "optimizer.lr"},
    {"weight_decay", "optimizer.weight_decay"},
    {"noise_std", "train.noise"},
    {"training_noise_std", "train.noise"},
    {"processor_size", "model.blocks"},
    {"hidden_dim_processor", "model.width"},
    {"num_layers_node_processor", "model.hidden_layers"},
    {"mlp_activation_fn", "model.activation"},
    {"amp", "precision", "true", "f16"},
    {"amp", "precision", "false", "f32"},
    {"ckpt_path", "run.dir"},
    {"seed", "run.seed"},
};
// github.com/google-deepmind/deepmind-research, meshgraphnets: run_model.py and core_model.py.
constexpr OptionName kDeepMind[] = {
    {"num_training_steps", "train.steps"},
    {"batch", "train.batch"},
    {"noise", "train.noise"},
    {"gamma", "train.gamma"},
    {"field", "data.targets"},
    {"field", "data.inputs"},
    {"field", "data.world_position", "world_pos", "world_pos"},
    {"model", "data.targets", "cloth", "world_pos"},
    {"model", "data.inputs", "cloth", "world_pos"},
    {"model", "data.world_position", "cloth", "world_pos"},
    {"model", "data.predict", "cloth", "second_change"},
    {"model", "data.predicted_types", "cloth", "0"},
    {"model", "train.batch", "cloth", "1"},
    {"model", "train.noise", "cloth", "0.003"},
    {"model", "train.gamma", "cloth", "0.1"},
    {"model", "data.targets", "cfd", "velocity"},
    {"history", "data.predict", "true", "second_change"},
    {"history", "data.predict", "false", "change"},
    {"latent_size", "model.width"},
    {"message_passing_steps", "model.blocks"},
    {"num_layers", "model.hidden_layers"},
    {"learning_rate", "optimizer.lr"},
    {"checkpoint_dir", "run.dir"},
};

/// Options that follow from the data here, or that have another form.
struct OptionAdvice {
  std::string_view theirs, text;
};
constexpr OptionAdvice kAdvice[] = {
    {"lr_decay_rate", "decay of each step; set schedule.final_lr to the learning rate of the last step"},
    {"data_dir", "pack the data with meshgrad convert, and set data.path"},
    {"dataset_dir", "pack the data with meshgrad convert, and set data.path"},
    {"num_input_features", "follows from data.inputs"},
    {"num_output_features", "follows from data.targets"},
    {"num_edge_features", "follows from the mesh"},
    {"recompute_activation", "see recompute.mode"},
    {"num_processor_checkpoint_segments", "see recompute.mode and recompute.every"},
};

std::string trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r,;\"'()[]{}";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == text.npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(kBlank) - first + 1));
}

struct OptionLine {
  std::string name, value;
};

std::optional<OptionLine> option_of(std::string_view line) {
  line = line.substr(0, line.find_first_of("#%"));
  while (!line.empty() && (line.front() == ' ' || line.front() == '\t' || line.front() == '-'))
    line.remove_prefix(1);
  const size_t end = line.find_first_of(" \t:=");
  if (end == line.npos) return std::nullopt;
  const std::string name = trimmed(line.substr(0, end));
  std::string_view rest = line.substr(end);
  if (const size_t equals = rest.find('='); equals != rest.npos) rest.remove_prefix(equals);
  while (!rest.empty() && std::string_view(" \t:=").find(rest.front()) != std::string_view::npos)
    rest.remove_prefix(1);
  std::string value = trimmed(rest);
  if (name.empty() || value.empty()) return std::nullopt;
  if (value == "True") value = "true";
  if (value == "False") value = "false";
  return OptionLine{name, value};
}

/// "section.key=value" of each key that it sets; empty when no name fits.
std::vector<std::string> settings_of(const OptionLine& option, OptionNames names) {
  const auto search = [&](std::span<const OptionName> table) {
    std::vector<std::string> found;
    for (const OptionName& known : table) {
      if (option.name != known.theirs || (!known.only.empty() && option.value != known.only)) continue;
      found.push_back(fmt::format("{}={}", known.ours, known.only.empty() ? option.value : known.instead));
    }
    return found;
  };
  std::vector<std::string> found;
  if (names != OptionNames::deepmind) found = search(kPhysicsNemo);
  if (found.empty() && names != OptionNames::physicsnemo) found = search(kDeepMind);
  if (!found.empty() || names != OptionNames::keyvalue) return found;
  for (const ConfigKey& key : config_keys()) {
    if (option.name == full_name(key)) return {full_name(key) + "=" + option.value};
  }
  for (const ConfigKey& key : config_keys()) {
    if (option.name == key.name) return {full_name(key) + "=" + option.value};
  }
  return {};
}

std::string why_unmapped(const OptionLine& option) {
  const auto advice = std::ranges::find(kAdvice, option.name, &OptionAdvice::theirs);
  return advice == std::end(kAdvice) ? "no such key" : std::string(advice->text);
}

/// The fault without the name of the file, or empty.
std::string fault_of(const std::vector<std::string>& settings) {
  try {
    parse_config("", "imported", settings);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

std::string imported_toml(const Config& config, const std::vector<std::string>& settings,
                          const ImportedConfig& imported, const std::string& name) {
  std::string text = fmt::format("# From {}.\n", name);
  for (const std::string& line : imported.unmapped) text += "# not mapped: " + line + "\n";
  std::string_view section;
  for (const ConfigKey& key : config_keys()) {
    const auto sets = [&](const std::string& setting) { return setting.starts_with(full_name(key) + "="); };
    if (std::ranges::none_of(settings, sets)) continue;
    if (key.section != section) {
      section = key.section;
      text += fmt::format("\n[{}]\n", section);
    }
    text += fmt::format("{} = {}\n", key.name, toml_literal(key, config));
  }
  return text;
}

}  // namespace

ImportedConfig import_config(const std::string& text, const std::string& name, OptionNames names) {
  if (text.size() > kLargestConfigFile)
    throw config_error(name, "options in at most 64 KiB", fmt::format("{} bytes or more", text.size()),
                       "check the path");
  ImportedConfig imported;
  std::vector<std::string> settings;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::optional<OptionLine> option = option_of(line);
    if (!option) continue;
    const std::string theirs = fmt::format("{} = {}", option->name, option->value);
    const std::vector<std::string> found = settings_of(*option, names);
    if (found.empty()) {
      imported.unmapped.push_back(theirs + ": " + why_unmapped(*option));
      continue;
    }
    // A whole recipe comes first: options of their own count more.
    std::vector<std::string> more = settings;
    more.insert(option->name == "model" ? more.begin() : more.end(), found.begin(), found.end());
    if (const std::string fault = fault_of(more); !fault.empty()) {
      imported.unmapped.push_back(theirs + ": " + fault);
      continue;
    }
    settings = std::move(more);
    imported.mapped.push_back(fmt::format("{} -> {}", theirs, fmt::join(found, ", ")));
  }
  if (settings.empty()) {
    throw config_error(name, "lines NAME: VALUE or NAME = VALUE with known names", "none",
                       "check --from, or begin with meshgrad init");
  }
  imported.toml = imported_toml(parse_config("", name, settings), settings, imported, name);
  return imported;
}

}  // namespace meshgrad
