// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/number.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/tools/program/foreign_options.h>
#include <meshgrad/train/tools/program/usage.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace meshgrad::cli {
namespace {

/// CLI11 prints "--option: TEXT" for what a validator returns; usage_error turns it into "[--option] TEXT".
CLI::Validator validator(std::function<std::string(const std::string&)> complaint) {
  CLI::Validator check(std::move(complaint), "");
  return check.description("");
}

std::string needed(const std::string& what, const std::string& got) {
  return "needed " + what + ", got \"" + got + "\"";
}

std::vector<std::string> names_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

/// The command that `words` select, and the first word that names none of its subcommands.
struct Walk {
  const CLI::App* command;
  std::string path;
  std::string unknown;
};
Walk walk(const CLI::App& app, const std::vector<std::string>& words) {
  Walk found{&app, "", ""};
  for (const std::string& word : words) {
    const std::vector<std::string> names = names_of(*found.command);
    if (names.empty()) break;
    if (word.empty() || word.front() == '-') continue;
    if (std::find(names.begin(), names.end(), word) == names.end()) {
      found.unknown = word;
      break;
    }
    found.command = found.command->get_subcommand(word);
    found.path += (found.path.empty() ? "" : " ") + word;
  }
  return found;
}

/// The long options that are understood after a command.
std::vector<std::string> options_of(const CLI::App& app, const CLI::App& command) {
  std::vector<std::string> known;
  for (const CLI::App* owner : {&app, &command}) {
    for (const CLI::Option* option : owner->get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
  }
  return known;
}

/// The first word that looks like an option and is none; empty when there is none.
struct UnknownOption {
  std::string name, value;
};
UnknownOption unknown_option(const CLI::App& app, const CLI::App& command,
                             const std::vector<std::string>& words) {
  const std::vector<std::string> known = options_of(app, command);
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    const std::string name = words[i].substr(0, equals);
    if (name.rfind("--", 0) != 0 || std::find(known.begin(), known.end(), name) != known.end()) continue;
    if (equals != std::string::npos) return {name, words[i].substr(equals + 1)};
    const bool has_value = i + 1 < words.size() && words[i + 1].rfind('-', 0) != 0;
    return {name, has_value ? words[i + 1] : "VALUE"};
  }
  return {};
}

/// "--set optimizer.lr=1e-3" for --lr 1e-3, --optimizer.lr=1e-3, "--set train.batch=4" for --batch_size 4, or
/// what another program's flag is here; empty when nothing has this name.
std::string setting_meant(const CLI::App& command, const UnknownOption& option) {
  if (command.get_option_no_throw("--set") == nullptr) return "";
  std::string word = option.name.substr(2);
  std::replace(word.begin(), word.end(), '-', '_');
  std::string found;
  for (const ConfigKey& key : config_keys()) {
    if (word != key.name && word != full_name(key)) continue;
    if (found.empty() || key.section == "train") found = full_name(key);
  }
  if (!found.empty()) return "--set " + found + "=" + option.value;
  const std::string value = option.value == "VALUE" ? "true" : option.value;
  const auto meaning = meaning_of({word, value}, OptionNames::keyvalue);
  if (!meaning) return "";
  std::string text;
  for (const std::string& setting : meaning->settings)
    text += (text.empty() ? "" : " ") + ("--set " + setting);
  if (text.empty()) return meaning->answer;
  return meaning->answer.empty() ? text : text + " (" + meaning->answer + ")";
}

/// The flag without a value that stands before a word: --resume of "--resume runs/a". Null: none.
const CLI::Option* flag_before(const CLI::App& command, const std::vector<std::string>& words,
                               const std::string& extra) {
  const auto at = std::ranges::find(words, extra);
  if (at == words.begin() || at == words.end() || !std::prev(at)->starts_with("--")) return nullptr;
  const CLI::Option* const option = command.get_option_no_throw(*std::prev(at));
  return option != nullptr && option->get_items_expected_max() == 0 ? option : nullptr;
}

/// The commands that read raw data with an option of convert; empty where convert has none of this name.
std::string conversion_meant(const CLI::App& app, const std::string& command, const UnknownOption& option,
                             const std::vector<std::string>& words) {
  const std::vector<std::string> commands = names_of(app);
  if (command == "convert" || std::find(commands.begin(), commands.end(), "convert") == commands.end())
    return "";
  const std::vector<std::string> known = options_of(app, *app.get_subcommand("convert"));
  if (std::find(known.begin(), known.end(), option.name) == known.end()) return "";
  std::string data = "DATA";
  for (size_t i = 1; i < words.size(); ++i)
    if (words[i].rfind('-', 0) != 0 && words[i] != option.value && words[i - 1].rfind("--", 0) != 0)
      data = words[i];
  const std::string packed = std::filesystem::path(data).stem().string() + ".mgd";
  return fmt::format("meshgrad convert {} -o {} {} {}, then name {}", data, packed, option.name, option.value,
                     packed);
}

/// "--set train.batch=4" where a blank stands for the '='; or nothing.
std::string equals_meant(const std::vector<std::string>& words) {
  for (size_t i = 0; i + 2 < words.size(); ++i) {
    const bool set = words[i] == "--set" || words[i] == "-s";
    if (set && words[i + 1].find('=') == std::string::npos && words[i + 2].rfind('-', 0) != 0)
      return words[i] + " " + words[i + 1] + "=" + words[i + 2];
  }
  return "";
}

/// "NAME: TEXT" at its first colon.
std::pair<std::string, std::string> split_at_colon(const std::string& text) {
  const size_t colon = text.find(": ");
  return colon == std::string::npos ? std::pair{std::string(), text}
                                    : std::pair{text.substr(0, colon), text.substr(colon + 2)};
}

template <class T>
bool is(const CLI::ParseError& error) {
  return dynamic_cast<const T*>(&error) != nullptr;
}

/// "[where] needed X, got Y" for a command whose words are known.
std::string complaint(const std::string& where, const CLI::ParseError& error) {
  const std::string text = error.what();
  const auto [name, rest] = split_at_colon(text);
  if (is<CLI::RequiredError>(error))
    return "[" + where + "] needed " + text.substr(0, text.find(' ')) + ", got none";
  if (is<CLI::RequiresError>(error)) {
    const size_t at = text.find(" requires ");
    return "[" + text.substr(0, at) + "] needed " + text.substr(at + 10) + " with it, got none";
  }
  if (is<CLI::ValidationError>(error)) return "[" + name + "] " + rest;
  if (is<CLI::ConversionError>(error)) {  // "Could not convert: --option = value"
    const size_t equals = rest.find(" = ");
    return "[" + rest.substr(0, equals) + "] " +
           needed("a number", equals == std::string::npos ? "" : rest.substr(equals + 3));
  }
  if (is<CLI::ArgumentMismatch>(error) && rest.find("At Most") != rest.npos)
    return "[" + name + "] needed one value, got " + rest.substr(rest.rfind(' ') + 1);
  if (is<CLI::ArgumentMismatch>(error)) return "[" + name + "] needed a value, got none";
  if (is<CLI::ExtrasError>(error)) return "[" + where + "] needed no further argument, got \"" + rest + "\"";
  return "[" + where + "] needed arguments that fit together, got " + text;
}

}  // namespace

CLI::Validator one_of(std::vector<std::string> words) {
  return validator([words = std::move(words)](const std::string& text) {
    if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
    std::string list;
    for (size_t i = 0; i < words.size(); ++i)
      list += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
    return needed(list, text);
  });
}

CLI::Validator whole_number(int64_t least, int64_t most) {
  return validator([least, most](const std::string& text) {
    const std::optional<double> value = parse_number(text);
    const bool whole =
        value && std::floor(*value) == *value && text.find_first_not_of("+-0123456789") == text.npos;
    if (whole && *value >= static_cast<double>(least) && *value <= static_cast<double>(most))
      return std::string();
    const std::string range = most == INT64_MAX ? std::to_string(least) + " or more"
                                                : std::to_string(least) + " to " + std::to_string(most);
    return needed("a whole number, " + range, text);
  });
}

CLI::Validator positive_number() {
  return validator([](const std::string& text) {
    const std::optional<double> value = parse_number(text);
    return value && std::isfinite(*value) && *value > 0 ? std::string() : needed("a number above 0", text);
  });
}

std::string usage_error(const CLI::App& app, const std::vector<std::string>& words,
                        const CLI::ParseError& error) {
  const Walk reached = walk(app, words);
  const std::vector<std::string> names = names_of(*reached.command);
  const std::string where = reached.path.empty() ? "command" : reached.path;
  const std::string help =
      "see `" + app.get_name() + " " + reached.path + (reached.path.empty() ? "" : " ") + "--help`";
  const UnknownOption option = unknown_option(app, *reached.command, words);
  const bool no_command = is<CLI::RequiredError>(error) && reached.path.empty();
  if ((is<CLI::ExtrasError>(error) || no_command) && !option.name.empty() && reached.unknown.empty()) {
    const std::string nearest = nearest_name(option.name, options_of(app, *reached.command));
    std::string meant = conversion_meant(app, reached.path, option, words);
    if (meant.empty()) meant = setting_meant(*reached.command, option);
    if (!nearest.empty()) meant = "did you mean " + nearest + "? " + help;
    return "[" + where + "] needed an option that exists, got " + option.name +
           "; fix: " + (meant.empty() ? help : meant);
  }
  if (names.empty() && is<CLI::ExtrasError>(error)) {
    const std::string extra = split_at_colon(error.what()).second;
    if (const CLI::Option* const flag = flag_before(*reached.command, words, extra)) {
      return "[" + where + ": " + flag->get_name() + "] needed no value, got \"" + extra +
             "\"; fix: leave it out: " + flag->get_description();
    }
  }
  if (names.empty()) {
    const std::string meant = is<CLI::ExtrasError>(error) ? equals_meant(words) : "";
    return complaint(where, error) + "; fix: " + (meant.empty() ? help : "write " + meant);
  }
  std::string choices;
  for (const std::string& name : names) choices += (choices.empty() ? "" : "|") + name;
  const std::string meant = nearest_name(reached.unknown, names);
  return "[" + where + "] needed " + choices + ", got " +
         (reached.unknown.empty() ? "none" : "\"" + reached.unknown + "\"") +
         "; fix: " + (meant.empty() ? help : "did you mean \"" + meant + "\"?");
}

}  // namespace meshgrad::cli
