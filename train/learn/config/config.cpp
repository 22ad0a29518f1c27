// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/data/packed_file.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/config/config_choices.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

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
    const std::vector<std::string>& texts = type.member(config);
    if (texts.size() == 1 && type.is_word(texts.front())) return toml_quoted(texts.front());
    return list_of(texts, [](const std::string& text) { return toml_quoted(text); });
  }
  std::string operator()(const IntegerListKey& type) const {
    return list_of(type.member(config), [](int64_t value) { return std::to_string(value); });
  }
  std::string operator()(const FloatListKey& type) const {
    if (type.is_word(type.member(config))) return toml_quoted(type.word);
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
    std::string text;
    for (const std::string_view word : type.words) text += toml_quoted(word) + ", ";
    text += text.empty() ? "a list of names, each once" : "or a list of names, each once";
    if (type.least > 0) text += ", at least one";
    if (type.names == nullptr) return text;
    return fmt::format("{}: {}", text, fmt::join(type.names(), ", "));
  }
  std::string operator()(const IntegerListKey& type) const {
    return fmt::format("a list of integers from {} to {}, each once{}", type.minimum, type.maximum,
                       type.least > 0 ? fmt::format(", at least {}", type.least) : std::string());
  }
  std::string operator()(const FloatListKey& type) const {
    return fmt::format("a list of at most {} numbers from {} to {}{}", type.most, type.minimum,
                       bound(type.maximum),
                       type.word.empty() ? std::string() : fmt::format(", or \"{}\"", type.word));
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

std::string to_toml(const Config& config) {
  std::string text;
  std::string_view section;
  for (const ConfigKey& key : config_keys()) {
    if (key.section != section) {
      section = key.section;
      text += fmt::format("\n[{}]\n", section);
    }
    text += fmt::format("{} = {}\n", key.name, toml_literal(key, config));
  }
  return text;
}

/// The key of a section, or else the only one, whose help has all words of a name: "learning_rate"; or
/// nothing.
std::string key_with_words(const std::string& section, const std::string& name) {
  const auto lower = [](std::string_view text) {
    std::string result(text);
    for (char& c : result) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return result;
  };
  std::vector<std::string> words;
  std::string word;
  for (const char c : lower(name) + "_") {
    if (c != '_') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::exchange(word, {}));
    }
  }
  std::vector<std::string> found;
  for (const ConfigKey& key : config_keys()) {
    const std::string help = lower(key.help);
    const bool has = words.size() > 1 && std::ranges::all_of(words, [&](const std::string& part) {
                       return help.find(part) != std::string::npos;
                     });
    if (has && key.section == section) return full_name(key);
    if (has) found.push_back(full_name(key));
  }
  return found.size() == 1 ? found.front() : "";
}

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
  if (meant.empty()) meant = key_with_words(section, name);
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

namespace {

constexpr ConfigSection kSections[] = {
    {"run", "Where a run lives and what it runs on"},
    {"task", "What a sample is, and what is learned from it"},
    {"data", "What is read, and what is predicted from what"},
    {"model", "The network"},
    {"gat", "Graph attention networks: model.name = \"gat\""},
    {"vgae", "Variational graph autoencoders: model.name = \"vgae\""},
    {"train", "The training loop"},
    {"loss", "How errors of predictions count in training"},
    {"distill", "A teacher, whose predictions are learned from beside the data"},
    {"curriculum", "Which training samples an epoch draws, by how difficult they are"},
    {"unroll", "Training through several predicted frames"},
    {"optimizer", "Optimizer"},
    {"schedule", "Learning-rate schedule"},
    {"loss_scale", "Dynamic loss scaling for precision = \"f16\""},
    {"normalize", "Means and standard deviations of inputs and targets"},
    {"recompute", "Activation recomputation and offloading"},
    {"memory", "Memory limit and caching allocator"},
    {"plan", "What train.batch = \"auto\" and meshgrad plan go by"},
    {"evaluate", "Errors of a trained model"},
    {"rollout", "Rollouts: predictions fed back as inputs"},
    {"ranks", "Several processes that train one model"},
};

}  // namespace

std::span<const ConfigSection> config_sections() { return kSections; }

MeshGraphNetOptions mesh_graph_net_options(const ModelConfig& config) {
  return {.width = config.width,
          .blocks = config.blocks,
          .hidden_layers = config.hidden_layers,
          .activation = config.activation,
          .norm = config.norm,
          .concat_order = config.concat_order,
          .aggregate = config.aggregate,
          .reduce = config.reduce,
          .graph_pool = config.pool,
          .slices = config.slices,
          .slices_every = config.slices_every,
          .slice_heads = config.slice_heads,
          .path = config.path,
          .keep_hidden = config.keep_hidden};
}

GatOptions gat_options(const ModelConfig& config) {
  const GatConfig& gat = config.gat;
  return {.width = gat.concatenate ? config.width / gat.heads : config.width,
          .heads = gat.heads,
          .blocks = config.blocks,
          .hidden_layers = config.hidden_layers,
          .activation = config.activation,
          .score = gat.score,
          .self_edges = gat.self_edges,
          .concatenate = gat.concatenate,
          .edge_features = gat.edge_features,
          .decoder = gat.decoder,
          .output_heads = gat.output_heads,
          .jumping = gat.jumping,
          .dropout = gat.dropout,
          .attention_dropout = gat.attention_dropout,
          .path = config.path,
          .keep_hidden = config.keep_hidden};
}

std::string parameter_conventions(const ModelConfig& config) {
  if (config.name == ModelName::gat) return parameter_conventions(gat_options(config));
  if (config.name == ModelName::vgae) return parameter_conventions(vgae_options(config));
  return parameter_conventions(mesh_graph_net_options(config));
}

VgaeOptions vgae_options(const ModelConfig& config) {
  return {.encoder = config.vgae.encoder,
          .heads = config.vgae.heads,
          .width = config.width,
          .blocks = config.blocks,
          .activation = config.activation,
          .features = config.vgae.feature_weight > 0.0,
          .hidden_layers = config.hidden_layers,
          .path = config.path,
          .keep_hidden = config.keep_hidden};
}

bool draws_by_node(const ModelConfig& config) {
  return config.name == ModelName::vgae ||
         (config.name == ModelName::gat && (config.gat.dropout > 0.0 || config.gat.attention_dropout > 0.0));
}

bool reads_graph_starts(const ModelConfig& config) {
  return config.name == ModelName::mesh_graph_net && config.slices > 0;
}

bool keeps_normalizers(const Config& config) {
  return !config.train.init.empty() && config.train.init_normalizers == InitNormalizers::keep;
}

bool learns_normalizers(const Config& config) {
  return config.normalize.mode == NormalizeMode::online && !keeps_normalizers(config);
}

std::string_view wider_range_fix(DType precision) {
  return precision == DType::f16 ? "set precision = \"bf16\", as f16 ends at 65504" : "";
}

std::string changed_fixed_key(const Config& saved, const Config& config) {
  const bool over_epochs = saved.curriculum.score != CurriculumScore::none;  // the order of samples
  for (const ConfigKey& key : config_keys()) {
    const std::string name = full_name(key);
    const bool fixed = key.use.fixed || (over_epochs && name == "train.epochs");
    if (!fixed || toml_literal(key, saved) == toml_literal(key, config)) continue;
    const bool unused = name == "normalize.warmup_steps" && config.normalize.mode != NormalizeMode::online;
    if (!unused) return name;
  }
  return "";
}

Config load_config(const std::string& path, const std::vector<std::string>& overrides) {
  std::string text;
  try {
    const std::filesystem::path file(path);
    const bool packed = file.extension() == ".mgd";
    if (path_exists(path) && path != "/dev/null" && (packed || is_packed_file(file))) {
      throw config_error(path, "a configuration, which is TOML", "a packed file of data",
                         fmt::format("meshgrad init --data {0} -o {1}.toml, then name {1}.toml", path,
                                     file.stem().string()));
    }
    if (packed && !path_exists(path)) {
      throw config_error(
          path, "a configuration, which is TOML", "the name of a packed file, which is not there",
          "check the path, and name a configuration: meshgrad init makes one of a packed file");
    }
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

int64_t validated_rollouts(const Config& config) {
  const bool over_time = find_key("unroll.steps")->applies_to(config.task.name);
  return over_time ? config.train.validate_rollouts : 0;
}

bool best_by_rollout(const Config& config) {
  const std::string& best = config.train.best;
  return (best == "auto" || best == "rollout") && validated_rollouts(config) > 0;
}

std::string best_metric(const Config& config) {
  const std::string& best = config.train.best;
  return best == "auto" || best == "loss" || best == "rollout" ? "" : best;
}

const RemovedKey* find_removed_key(std::string_view full_name) {
  static constexpr RemovedKey kRemoved[] = {
      {"run.pin", "false", "leave it out; to pin threads, start meshgrad under taskset or numactl"},
      {"recompute.policy", "\"inputs\"",
       "set recompute.keep = [\"linear\", \"mlp\", \"edge_update\"] for \"products\", \"none\" for "
       "\"inputs\""},
      {"rollout.format", "\"vtu\"", "leave it out: frames are VTU files"},
      {"wgmma", "false", "leave it out: the kernels it chose were not faster"},
  };
  const auto* const found = std::ranges::find(kRemoved, full_name, &RemovedKey::name);
  return found == std::end(kRemoved) ? nullptr : found;
}

std::string_view name_of(ModelName model) {
  return std::ranges::find(choices::kModels, static_cast<int>(model), &Choice::value)->name;
}

std::string_view name_of(TaskName task) {
  return std::ranges::find(choices::kTasks, static_cast<int>(task), &Choice::value)->name;
}

bool ConfigKey::applies_to(TaskName task) const {
  return use.tasks.empty() || std::ranges::find(use.tasks, task) != use.tasks.end();
}

bool TextListKey::is_word(std::string_view text) const {
  return std::ranges::find(words, text) != words.end();
}

bool ConfigKey::applies_to(ModelName model) const {
  return use.models.empty() || std::ranges::find(use.models, model) != use.models.end();
}

std::string full_name(const ConfigKey& key) {
  std::string name(key.section);
  if (!name.empty()) name += '.';
  return name += key.name;
}

const ConfigKey* find_key(std::string_view name) {
  for (const ConfigKey& key : config_keys()) {
    if (full_name(key) == name) return &key;
  }
  return nullptr;
}

}  // namespace meshgrad
